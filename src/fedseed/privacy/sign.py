"""DP-FeedSign's private vote, and its account.

    P(f = +1) = e^{eps q+ / 4} / (e^{eps q+ / 4} + e^{eps q- / 4})    FeedSign Eq. 21
              = sigma(eps S / 2),  S = sum_k vote_k, as q+ - q- = 2 S

The draw comes from the operating system: anybody can regenerate the shared stream. It is exact, in
whole numbers: in floating point P would be 0 or 1 from eps S / 2 = 37 or 745 on, and an outcome of
probability 0 is one that no epsilon allows. One client's vote moves S by at most 2, so P by a
factor of at most e^eps: what the account counts.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, expm1, inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedseed.privacy.draws import Bytes, below, happens

DELTA = 1e-5
# of losses from 0 to epsilon in the account, which is at most some thousandths above that of more
STEPS = 20


@dataclass(frozen=True)
class PrivateSign:
    """The exponential mechanism on two outcomes.

    Each vote is (epsilon, 0)-private (FeedSign, Theorem D.2).
    """

    epsilon: float  # privacy of one vote
    votes: int = 1  # votes a round
    random: Bytes = os.urandom  # makes random bytes

    by_turns: ClassVar[bool] = False  # the account is of all rounds
    affordable: ClassVar[None] = None  # rounds within a budget: there is none

    def draw(self, sums: Sequence[int] | NDArray[Any]) -> list[int]:
        """Return +1 or -1 for each sum S of votes, exactly with the odds of Eq. 21.

        Of a fair coin's outcomes the likely one is always kept, the other with probability e^-(eps
        |S| / 2).
        """
        above, under = self.epsilon.as_integer_ratio()

        def one(total: int) -> int:
            likely = 1 if total >= 0 else -1
            while below(2, self.random) == 0:
                if happens(abs(total) * above, 2 * under, self.random):
                    return -likely
            return likely

        return [one(int(total)) for total in sums]

    def log_chance(self, sums: NDArray[Any], signs: NDArray[np.integer[Any]]) -> float:
        """Return log P(draw(sums) = signs)."""
        return float(-np.logaddexp(0.0, -0.5 * self.epsilon * sums * signs).sum())

    def counted(self, rounds: int) -> dict[str, float]:
        """Return what `spent` says and takes no time to compute, for `status`."""
        votes = rounds * self.votes
        return {
            "epsilon_per_vote": self.epsilon,
            "votes": votes,
            "epsilon_pure": votes * self.epsilon,
        }

    def spent(self, rounds: int) -> dict[str, Any]:
        """Return, over T votes, T epsilon by plain composition, and the tighter epsilon at delta =
        1e-5.

        Both are of another client's data in place of one's (`adjacency`). The latter is what the
        privacy loss distributions of the `dp-accounting` package give.
        """
        counted = self.counted(rounds)
        found = _composed(self.epsilon, rounds * self.votes) if rounds else 0.0
        return {
            **counted,
            "adjacency": "replace-one",
            "delta": DELTA,
            "epsilon": min(found, counted["epsilon_pure"]),
        }


def _composed(epsilon: float, votes: int) -> float:
    """Return epsilon at delta of so many votes, by their privacy loss distribution.

    Infinite: it can't be computed.

    A vote moves S by 2, so the odds' logarithm t by epsilon, whatever t is: that bounds more than
    (epsilon, 0)-privacy does (Dong, Durfee, Rogers, "Optimal Differential Privacy Composition for
    Exponential Mechanisms", ICML 2020). The distribution's delta(e) is the largest of sigma(t +
    epsilon) - e^e sigma(t) over all t, so it holds for votes that depend on those before.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    # there doubles cancel or overflow, and plain composition is all there is to say
    if not 1e-6 < epsilon < 300:
        return inf
    places = np.arange(-STEPS, STEPS + 1)
    at = places[1:-1] * (epsilon / STEPS)
    more = np.exp((epsilon - at) / 2)
    odds = (more - 1) / (exp(epsilon) - more)  # e^t of the largest
    inner = odds * exp(epsilon) / (1 + odds * exp(epsilon)) - np.exp(at) * odds / (1 + odds)
    deltas = np.concatenate([[-expm1(-epsilon)], inner, [0.0]])
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(epsilon / STEPS, places, deltas)
    one = privacy_loss_distribution.PrivacyLossDistribution(pmf)
    return float(one.self_compose(votes).get_epsilon_for_delta(DELTA))
