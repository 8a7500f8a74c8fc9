"""Exact draws: whole numbers and the discrete Gaussian, from random bytes that a test gives."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from fedseed.privacy import draws


def source(seed=1):
    return np.random.default_rng(seed).bytes


def odds(sigma, far=40):
    values = np.arange(-far * sigma, far * sigma + 1)
    mass = np.exp(-(values.astype(float) ** 2) / (2 * sigma**2))
    return dict(zip(values.tolist(), (mass / mass.sum()).tolist(), strict=True))


def chi_square(found, expected):
    """Over the values that are expected ten times at least, and all others together: (statistic, cells)."""
    count, rest, statistic, cells = len(found), 0.0, 0.0, 0
    values, seen = np.unique(found, return_counts=True)
    seen = dict(zip(values.tolist(), seen.tolist(), strict=True))
    left = count
    for value, p in expected.items():
        if p * count < 10:
            rest += p * count
            continue
        statistic += (seen.get(value, 0) - p * count) ** 2 / (p * count)
        left -= seen.get(value, 0)
        cells += 1
    return statistic + (left - rest) ** 2 / max(rest, 1), cells


@pytest.mark.parametrize("sigma", [1, 2, 7])
def test_the_discrete_gaussian_has_its_odds(sigma):
    """With the source's seed fixed this is one number, not a gamble; a sigma 3% off is far outside."""
    found = draws.discrete_gaussian(sigma, 60_000, source())
    statistic, cells = chi_square(found, odds(sigma))
    assert statistic < cells + 5 * (2 * cells) ** 0.5
    if sigma == 7:
        wrong = np.round(np.random.default_rng(1).normal(0, 1.03 * sigma, 60_000)).astype(int)
        statistic, cells = chi_square(wrong, odds(sigma))
        assert statistic > cells + 5 * (2 * cells) ** 0.5


def test_large_sigmas_have_their_moments():
    found = draws.discrete_gaussian(1 << 24, 40_000, source()) / (1 << 24)
    assert abs(found.mean()) < 0.02 and abs(found.std() - 1) < 0.015 and abs((found**4).mean() - 3) < 0.15
    assert (found * (1 << 24) % 2 == 1).mean() == pytest.approx(0.5, abs=0.01)  # no bit of it is always the same


@pytest.mark.parametrize("sigma", [0, (1 << 44) + 1])
def test_a_sigma_out_of_bounds_is_refused(sigma):
    with pytest.raises(ValueError, match="sigma"):
        draws.discrete_gaussian(sigma, 1)


def test_whole_numbers_are_as_likely():
    found = draws.below(5, 50_000, source())
    assert np.bincount(found, minlength=5).tolist() == pytest.approx([10_000] * 5, abs=400) and found.max() == 4
    assert draws.below(1, 3).tolist() == [0, 0, 0] and len(draws.below(7, 0)) == 0


def test_doubles_decide_as_exact_numbers_do(monkeypatch):
    """Where all events are settled with as many digits as it takes, the same bytes give the same numbers."""
    quick = draws.discrete_gaussian(1 << 20, 200, source(3))
    monkeypatch.setattr(draws, "MARGIN", 2.0)
    assert draws.discrete_gaussian(1 << 20, 200, source(3)).tolist() == quick.tolist()


@pytest.mark.parametrize(("above", "under"), [(1, 1), (3, 7), (40, 1)])
def test_near_numbers_are_told_apart_by_more_bits(above, under):
    """The bits of e^-g themselves, 64 at a time: with one more in the third piece it is not below."""
    with localcontext() as context:
        context.prec = 200
        bits = int((-Decimal(above) / under).exp() * (1 << 192))
    for off, expected in ((1, False), (-1, True)):
        near = bits + off
        rest = [((near >> 64) & (2**64 - 1)).to_bytes(8, "big"), (near & (2**64 - 1)).to_bytes(8, "big")]

        def random(count, rest=rest):
            assert count == 8
            return rest.pop(0)

        assert draws.is_below(near >> 128, above, under, random) is expected
        assert not rest  # it took all of them
    assert draws.is_below(2**64 - 1, 0, 1)
