"""DP-FeedSign's private vote, and its account.

    P(f = +1) = e^{eps q+ / 4} / (e^{eps q+ / 4} + e^{eps q- / 4})    FeedSign Eq. 21
              = sigma(eps S / 2),  S = sum_k vote_k, as q+ - q- = 2 S

Random bits come from the operating system, because anybody can regenerate the shared stream. The
draw is exact, in whole numbers: in floating point, P would be 0 or 1 from eps S / 2 = 37 or 745 on,
but no epsilon allows an outcome of probability 0. One client's vote changes S by at most 2, so P by
a factor of at most e^eps, which is what the account counts.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, expm1, inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedseed.privacy.draws import Bytes, happens, random_below

DELTA = 1e-5
# number of grid points from 0 to epsilon in the account, whose result is at most thousandths too
# high
STEPS = 20


@dataclass(frozen=True)
class PrivateSign:
    """The exponential mechanism on two outcomes.

    Each vote is (epsilon, 0)-private (FeedSign, Theorem D.2).
    """

    epsilon: float  # privacy of one vote
    votes: int = 1  # votes in a round
    random: Bytes = os.urandom  # makes random bytes

    by_turns: ClassVar[bool] = False  # the account counts all rounds
    affordable: ClassVar[None] = None  # there is no budget of rounds

    def draw(self, sums: Sequence[int] | NDArray[Any]) -> list[int]:
        """Return +1 or -1 for each sum S of votes, with exactly the probabilities of Eq. 21.

        A fair coin is drawn; its unlikely outcome is kept with probability e^-(eps |S| / 2).
        """
        numerator, denominator = self.epsilon.as_integer_ratio()

        def one(total: int) -> int:
            likely = 1 if total >= 0 else -1
            while random_below(2, self.random) == 0:
                if happens(abs(total) * numerator, 2 * denominator, self.random):
                    return -likely
            return likely

        return [one(int(total)) for total in sums]

    def log_chance(self, sums: NDArray[Any], signs: NDArray[np.integer[Any]]) -> float:
        """Return log P(draw(sums) = signs)."""
        return float(-np.logaddexp(0.0, -0.5 * self.epsilon * sums * signs).sum())

    def counted(self, rounds: int) -> dict[str, float]:
        """Return the part of `spent` that is quick to compute, for `status`."""
        votes = rounds * self.votes
        return {
            "epsilon_per_vote": self.epsilon,
            "votes": votes,
            "epsilon_pure": votes * self.epsilon,
        }

    def spent(self, rounds: int) -> dict[str, Any]:
        """Return what T votes have spent.

        That is T epsilon by plain composition, and a tighter epsilon at delta = 1e-5. Both compare
        one client's data with other data of that client (`adjacency`). The tighter one is computed
        with the privacy loss distributions of the `dp-accounting` package.
        """
        counted = self.counted(rounds)
        composed = _composed(self.epsilon, rounds * self.votes) if rounds else 0.0
        return {
            **counted,
            "adjacency": "replace-one",
            "delta": DELTA,
            "epsilon": min(composed, counted["epsilon_pure"]),
        }


def _composed(epsilon: float, votes: int) -> float:
    """Return epsilon at delta of some votes, by their privacy loss distribution.

    Infinite if it can't be computed.

    A vote changes S by 2, and so the logarithm t of the odds by epsilon, for any t. This is a
    stronger bound than (epsilon, 0)-privacy (Dong, Durfee, Rogers, "Optimal Differential Privacy
    Composition for Exponential Mechanisms", ICML 2020). The distribution's delta(e) is the largest
    of sigma(t + epsilon) - e^e sigma(t) over all t, so it also holds for votes that depend on
    earlier ones.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    # beyond this, doubles cancel or overflow, and only plain composition is possible
    if not 1e-6 < epsilon < 300:
        return inf
    places = np.arange(-STEPS, STEPS + 1)
    losses = places[1:-1] * (epsilon / STEPS)
    factors = np.exp((epsilon - losses) / 2)
    odds = (factors - 1) / (exp(epsilon) - factors)  # e^t at the largest
    inner = odds * exp(epsilon) / (1 + odds * exp(epsilon)) - np.exp(losses) * odds / (1 + odds)
    deltas = np.concatenate([[-expm1(-epsilon)], inner, [0.0]])
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(epsilon / STEPS, places, deltas)
    distribution = privacy_loss_distribution.PrivacyLossDistribution(pmf)
    return float(distribution.self_compose(votes).get_epsilon_for_delta(DELTA))
