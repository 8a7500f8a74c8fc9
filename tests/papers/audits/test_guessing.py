"""What guesses say about epsilon: the bound is the textbook's, and holds for a mechanism whose epsilon is known."""

from math import exp, inf, log

import numpy as np
import pytest

from fedseed_papers.audits.canary import CanaryTest
from fedseed_papers.audits.guessing import (
    at_least,
    epsilon_at_least,
    most_right,
    share_at_least,
)


def test_the_share_is_clopper_and_pearsons():
    assert share_at_least(10, 10, 0.95) == pytest.approx(0.05 ** (1 / 10), abs=1e-9)
    assert share_at_least(0, 10, 0.95) == 0
    assert at_least(9, 10, share_at_least(9, 10, 0.95)) == pytest.approx(0.05)
    assert at_least(0, 10, 0.3) == pytest.approx(1) and at_least(1, 3, 0.1) == pytest.approx(1 - 0.9**3)


def test_the_bound_and_what_epsilon_allows_are_each_others_inverse():
    for epsilon, n, delta in ((1.0, 100, 0.0), (3.0, 10, 0.0), (5.0, 1000, 1e-3)):
        p = most_right(epsilon, n, delta)
        assert log((n - 1) * (p - delta) / (1 - p)) == pytest.approx(epsilon)
    assert most_right(0.0, 100) == pytest.approx(1 / 100) and most_right(1e9, 100) == most_right(inf, 100) == 1.0


@pytest.mark.parametrize(("epsilon", "games"), [(1.0, 10), (2.0, 100), (4.0, 40)])
def test_it_does_not_exceed_the_epsilon_of_randomised_response(epsilon, games):
    """The most telling mechanism of that epsilon: it names the truth with odds e^epsilon. 1 in 20 may exceed it."""
    n, drawn = 50, np.random.default_rng(1)
    right = drawn.binomial(games, exp(epsilon) / (exp(epsilon) + n - 1), 2000)
    bounds = {k: epsilon_at_least(int(k), games, n) for k in set(right.tolist())}
    too_high = np.mean([bounds[k] > epsilon for k in right.tolist()])
    assert too_high <= 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5
    if games == 40:  # a tight mechanism whose account is of zeros in its place: half of that epsilon for an exchange
        spent = {"epsilon": epsilon / 2, "delta": 0.0, "adjacency": "zero-out"}
        account = CanaryTest([], "one", 1, spent).epsilon
        alarms, false = ([bounds[k] > limit for k in right.tolist()] for limit in (account, spent["epsilon"]))
        assert np.mean(alarms) <= 0.07 and np.mean(false) > 0.5
    if games == 100:
        assert np.median([bounds[k] for k in right.tolist()]) > epsilon - 1.2  # and it is not far below
