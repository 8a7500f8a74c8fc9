"""Exact draws: whole numbers and the discrete Gaussian, from random bytes that a test gives.

Private batches.
"""

from collections import Counter
from fractions import Fraction
from itertools import islice
from math import exp
from random import Random

import numpy as np
import pytest

from fedseed.privacy import PrivacySettings, draws


def source(seed=1):
    return Random(seed).randbytes


def odds(sigma, far=40):
    values = np.arange(-far * sigma, far * sigma + 1)
    mass = np.exp(-(values.astype(float) ** 2) / (2 * sigma**2))
    return dict(zip(values.tolist(), (mass / mass.sum()).tolist(), strict=True))


def chi_square(found, expected):
    """Over the values that are expected ten times at least, and all others together: (statistic,
    cells).
    """
    count, seen = len(found), Counter(found.tolist())
    usual = {value: p * count for value, p in expected.items() if p * count >= 10}
    statistic = sum((seen[value] - times) ** 2 / times for value, times in usual.items())
    rest, left = count - sum(usual.values()), count - sum(seen[value] for value in usual)
    return statistic + (left - rest) ** 2 / max(rest, 1), len(usual)


@pytest.mark.parametrize("sigma", [1, 2, 7])
def test_the_discrete_gaussian_has_its_odds(sigma):
    """With the source's seed fixed this is one number, not a gamble.

    A sigma 6% off is far outside.
    """
    found = draws.discrete_gaussian(sigma, 20_000, source())
    statistic, cells = chi_square(found, odds(sigma))
    assert statistic < cells + 5 * (2 * cells) ** 0.5
    if sigma == 7:
        wrong = np.round(np.random.default_rng(1).normal(0, 1.06 * sigma, 20_000)).astype(int)
        statistic, cells = chi_square(wrong, odds(sigma))
        assert statistic > cells + 5 * (2 * cells) ** 0.5


def test_large_sigmas_have_their_moments():
    found = draws.discrete_gaussian(1 << 24, 20_000, source()) / (1 << 24)
    assert (
        abs(found.mean()) < 0.02
        and abs(found.std() - 1) < 0.015
        and abs((found**4).mean() - 3) < 0.15
    )
    # no bit of it is always the same
    assert (found * (1 << 24) % 2 == 1).mean() == pytest.approx(0.5, abs=0.01)


def test_all_that_is_random_comes_from_the_source():
    first, second = (draws.discrete_gaussian(7, 2_000, source(3)) for _ in range(2))
    # rare ones take a shorter way
    assert first.tolist() == second.tolist() and any(abs(first) > 21)


def test_whole_numbers_are_as_likely():
    random = source()
    found = [draws.random_below(5, random) for _ in range(50_000)]
    assert (
        np.bincount(found, minlength=5).tolist() == pytest.approx([10_000] * 5, abs=400)
        and max(found) == 4
    )
    assert [draws.random_below(1) for _ in range(3)] == [0, 0, 0]


class UnknownError(Exception):
    """More whole numbers are asked for than a test gives."""


def chance(above, under, given, monkeypatch):
    """Between which fractions the chance of an event is, where up to so many whole numbers below a
    limit are drawn.
    """
    taken = []

    def random_below(limit, random=None):
        if len(taken) == len(script):
            raise UnknownError(limit)
        taken.append(limit)
        return script[len(taken) - 1]

    monkeypatch.setattr(draws, "random_below", random_below)
    low, unknown, scripts = Fraction(0), Fraction(0), [((), Fraction(1))]
    while scripts:
        script, odds = scripts.pop()
        taken.clear()
        try:
            low += odds * draws.happens(above, under)
        except UnknownError as asked:
            if len(script) == given:
                unknown += odds
            else:
                scripts += [
                    ((*script, value), odds / asked.args[0]) for value in range(asked.args[0])
                ]
    return low, low + unknown


@pytest.mark.parametrize(
    ("above", "under", "given"), [(0, 3, 2), (1, 2, 5), (2, 3, 4), (1, 1, 6), (3, 2, 6)]
)
def test_an_event_has_exactly_its_probability(above, under, given, monkeypatch):
    """Over all that can be drawn: e^-g lies between the odds of what is settled by then, and those
    of the rest.
    """
    low, high = chance(above, under, given, monkeypatch)
    assert (
        low <= exp(-above / under) * (1 + 1e-15)
        and exp(-above / under) <= high
        and high - low < 0.03
    )


# -- batches: what the account is told of them; false alarms below one in 10^9
# -----------------------------------------

ITEMS = list(range(20))


def drawn(sampling, count, items=ITEMS, size=6, examples=20):
    sampled = {} if sampling == "none" else {"sampling": sampling, "examples": examples}
    privacy = PrivacySettings(level="example", clip=1.0, noise=1.0, **sampled)
    return list(islice(draws.private_batches(items, size, privacy, 7), count))


def test_poisson_batches_have_each_example_by_itself():
    """With probability 6/20 whatever the others do; sizes vary as a binomial's do."""
    count = 4000
    found = np.zeros((count, 20))
    for row, batch in zip(found, drawn("poisson", count), strict=True):
        assert len(batch) == len(set(batch))
        row[batch] = 1
    together = found.T @ found / count
    expected = np.where(np.eye(20, dtype=bool), 0.3, 0.09)
    assert np.abs(together - expected).max() < 7 * (0.25 / count) ** 0.5
    assert found.sum(axis=1).var() == pytest.approx(20 * 0.3 * 0.7, rel=0.25)
    fewer = [len(batch) for batch in drawn("poisson", count, items=ITEMS[:5])]
    # the rate is the recipe's, not the client's
    assert np.mean(fewer) == pytest.approx(1.5, abs=0.15) and 0 in fewer
    assert drawn("poisson", 2, items=[]) == [[], []]


def test_without_sampling_no_example_is_in_a_batch_twice():
    """Nor where one pass ends and the next begins, nor where a client has fewer than a batch."""
    batches = drawn("none", 7)
    assert [len(batch) for batch in batches] == [6] * 7 and all(
        len(set(batch)) == 6 for batch in batches
    )
    assert len({i for batch in batches[:3] for i in batch}) == 18  # a pass
    assert [sorted(batch) for batch in drawn("none", 2, items=ITEMS[:4])] == [[0, 1, 2, 3]] * 2
    assert drawn("none", 2, items=[]) == [[], []] and drawn("none", 7) == batches
    # two batches are a pass, and the next has an order of its own
    fitting = drawn("none", 8, items=ITEMS[:12])
    assert [sorted(a + b) for a, b in zip(fitting[::2], fitting[1::2], strict=True)] == [
        ITEMS[:12]
    ] * 4
    assert len({tuple(batch) for batch in fitting}) == 8
    # five are left over
    assert [len(batch) for batch in drawn("none", 3, items=ITEMS[:11])] == [6] * 3
