"""Losses without their scale: what the three ways make of them, and that methods compare what comes
out.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedseed import FedZO, MeZO
from fedseed.methods.zeroth import normalise
from support.made_up import MadeUp
from support.zeroth_order import LAYOUT

LOSSES = st.lists(st.integers(-50, 50), min_size=1, max_size=12)


@given(LOSSES, st.floats(0.01, 100), st.integers(-9, 9))
def test_neither_a_scale_nor_a_constant_makes_a_difference(values, scale, constant):
    losses = np.array(values, dtype=float)
    for how in ("z-score", "ranks"):
        expected = normalise(losses, how)
        np.testing.assert_allclose(normalise(losses * scale + constant, how), expected, atol=1e-6)
        assert abs(expected.sum()) < 1e-9
        order = [np.sign(np.subtract.outer(x, x).round(9)) for x in (expected, losses)]
        assert (order[0] == order[1]).all()
    assert (normalise(losses, "none") == losses).all()


def test_by_hand():
    np.testing.assert_allclose(
        normalise([3.0, 1.0, 1.0, 7.0], "ranks"), [1 / 6, -1 / 3, -1 / 3, 1 / 2]
    )
    np.testing.assert_allclose(normalise([1.0, 3.0], "z-score"), [-1.0, 1.0])
    assert normalise([1.0, 3.0], "ranks").tolist() == [-0.5, 0.5]
    assert normalise([3e5, 3e5 + 1e-9], "z-score").tolist() == [0.0, 0.0]  # rounding, no deviation
    np.testing.assert_allclose(
        normalise([1.0, 2.0, 3.0], "z-score"), np.array([-1, 0, 1]) * 1.5**0.5
    )
    for how in ("z-score", "ranks"):
        assert (
            normalise([0.1 + 0.2] * 3, how).tolist()
            == normalise([0.0] * 3, how).tolist()
            == [0.0] * 3
        )
        assert normalise([], how).tolist() == []


@pytest.mark.parametrize("how", ["z-score", "ranks"])
def test_how_hard_a_part_of_the_batch_is_says_nothing_of_its_direction(how):
    """A population's pairs are of other examples each: taken together their losses would leave
    signs and noise.
    """
    pairs, hard = (
        np.array([[0.3, 0.1], [0.1, 0.2], [0.2, 0.21]]),
        np.array([[0.0], [50.0], [900.0]]),
    )
    method = MeZO(normalize=how, scale=0.5)

    def rho(found):
        return [one.rho for one in method.quotients(*found.T.tolist(), 1.0, apart=True)]

    alike, apart = rho(pairs), rho(pairs + hard)
    np.testing.assert_allclose(apart, alike, rtol=1e-6)
    parts, client = (
        MeZO(normalize=how, scale=0.5, population=3, batch=3),
        MadeUp((pairs + hard).tolist()),
    )
    assert [
        one.rho for one in parts.measure_projections(client, None, range(3), [0] * 3, False)
    ] == apart
    half = (pairs[:, 0] - pairs[:, 1]) / 2
    together = normalise([*half, *-half], how)
    np.testing.assert_allclose(alike, together[:3] - together[3:], rtol=1e-6)
    if how == "z-score":
        # as large as a deviation, and as apart as the differences are
        assert np.abs(alike).max() > 1
        np.testing.assert_allclose(np.array(alike) / alike[0], half / half[0], rtol=1e-6)
    else:
        assert len(set(np.abs(np.round(alike, 6)))) == 3  # not signs alone


SIDES = [(4.0, 1.0), (2.0, 3.0), (0.5, 0.5)]  # plus and minus of three directions


@pytest.mark.parametrize("how", ["none", "z-score", "ranks"])
@pytest.mark.parametrize("estimator", ["two-point", "one-point"])
def test_a_steps_losses_are_one_population(how, estimator):
    settings = {
        "estimates": 3,
        "estimator": estimator,
        "normalize": how,
        "scale": 0.5,
        "autocast": "bfloat16",
    }
    plus, minus = np.array(SIDES).T
    if estimator == "two-point":
        scaled = normalise([*plus, *minus], how)
        expected = (scaled[:3] - scaled[3:]) / 1.0 / 3
    else:
        scaled = normalise([*plus, 1.5], how)
        expected = (scaled[:3] - scaled[3]) / 0.5 / 3
    mezo = MeZO(**settings)
    update = mezo.train(mezo.start(LAYOUT, 1), None, MadeUp(SIDES, 1.5, round=1))
    np.testing.assert_allclose(update.scalars, expected, rtol=1e-6)
    client = MadeUp(SIDES, 1.5, round=1)
    zo = FedZO(**settings, steps=1)
    zo.train(zo.start(LAYOUT, 1), None, client)
    np.testing.assert_allclose(client.changes[0].terms[0].coefficients, expected, rtol=1e-6)
    assert client.cast == "bfloat16"
