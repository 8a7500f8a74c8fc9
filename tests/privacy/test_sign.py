"""The private vote: exact odds, and an account of what it costs."""

from functools import cache
from math import exp, expm1, inf, sqrt

import numpy as np
import pytest

from fedseed.privacy import PrivateSign, sign


@pytest.mark.parametrize(("total", "epsilon"), [(80, 1.0), (-80, 1.0), (3, 500.0)])
def test_no_outcome_is_impossible(total, epsilon, monkeypatch):
    """From eps S / 2 = 37 on a double near 1 has no room for the other sign."""
    asked = []
    monkeypatch.setattr(
        "fedseed.privacy.sign.happens", lambda above, under, _: asked.append(above / under) or True
    )
    assert PrivateSign(epsilon, random=bytes).draw([total]) == [-1 if total > 0 else 1]
    assert asked == [epsilon * abs(total) / 2]


@pytest.mark.parametrize(
    ("total", "epsilon"), [(9, 1.0), (-9, 1.0), (-1, 12.0), (1, 1e-9), (1, 5e-324), (1, 1.7e308)]
)
def test_draws_of_the_operating_system_have_the_odds(total, epsilon):
    expected = 1 / (1 + exp(max(-700.0, min(700.0, -epsilon * total / 2))))
    drawn = PrivateSign(epsilon).draw([total] * 20_000)
    assert set(drawn) <= {1, -1}
    share = sum(one > 0 for one in drawn) / 20_000
    assert abs(share - expected) < 4.5 * sqrt(expected * (1 - expected) / 20_000) + 1e-9


def test_the_account_says_something_of_every_epsilon():
    """The package's needs e^epsilon as a double.

    A run with more ended with an overflow in place of a summary.
    """
    assert PrivateSign(1.0, 4).spent(0)["epsilon"] == 0
    assert sign._composed(1e-6, 1) == sign._composed(300.0, 1) == inf
    assert PrivateSign(1000.0).spent(3) == {
        "epsilon_per_vote": 1000.0,
        "votes": 3,
        "epsilon_pure": 3000.0,
        "delta": 1e-5,
        "epsilon": 3000.0,
        "adjacency": "replace-one",
    }
    spent = PrivateSign(1.0, 4).spent(25)
    assert spent.items() >= PrivateSign(1.0, 4).counted(25).items()
    # (1, 0)-private votes: 79.84
    assert spent["votes"] == 100 and spent["epsilon"] == pytest.approx(38.95, rel=2e-3)


def test_the_odds_of_a_draw_are_told():
    """Eq. 21; of each pair of sums that one vote tells apart within e^epsilon."""
    told = PrivateSign(0.5).log_chance(np.array([3, -1]), np.array([1, 1]))
    assert exp(told) == pytest.approx(1 / (1 + exp(-0.75)) / (1 + exp(0.25)))
    one, other = (
        PrivateSign(40.0).log_chance(np.array([total]), np.array([-1])) for total in (99, 97)
    )
    assert one == pytest.approx(-40.0 * 99 / 2) and other - one == pytest.approx(40.0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("votes", [1, 2, 4])
def test_no_votes_lose_more_than_the_account_says(epsilon, votes, monkeypatch):
    """Exactly, of the worst sums, each chosen when the draws before are known.

    At a delta that leaves something.
    """
    delta = (-expm1(-epsilon / 2)) ** votes / 8
    monkeypatch.setattr("fedseed.privacy.sign.DELTA", delta)
    spent = PrivateSign(epsilon).spent(votes)["epsilon"]
    totals = range(-9, 9) if votes < 4 else range(-5, 4)

    def chance(total):
        return 1 / (1 + exp(-epsilon * total / 2))

    pairs = [(chance(total + 2), chance(total)) for total in totals] + [
        (chance(t), chance(t + 2)) for t in totals
    ]

    @cache
    def exceeded(here, there, left, allowed):
        if left == 0:
            return max(here - exp(allowed) * there, 0.0)
        found = (
            exceeded(here * p, there * q, left - 1, allowed)
            + exceeded(here * (1 - p), there * (1 - q), left - 1, allowed)
            for p, q in pairs
        )
        return max(found)

    assert exceeded(1.0, 1.0, votes, spent) <= delta * (1 + 1e-9)
    # and it is not far above: few sums will do
    assert epsilon < 1 or exceeded(1.0, 1.0, votes, spent / 1.25) > delta
