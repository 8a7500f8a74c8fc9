"""DP-FeedSign's private vote, and its account.

    P(f = +1) = e^{eps q+ / 4} / (e^{eps q+ / 4} + e^{eps q- / 4})    FeedSign Eq. 21
              = sigma(eps S / 2),  S = sum_k vote_k, as q+ - q- = 2 S

The draw comes from the operating system: anybody can regenerate the shared stream.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp
from secrets import SystemRandom

DELTA = 1e-5


@dataclass(frozen=True)
class PrivateSign:
    """The exponential mechanism on two outcomes; each vote is (epsilon, 0)-private (FeedSign, Theorem D.2).

    Args:
        epsilon: privacy of one vote.
        votes: votes a round.
    """

    epsilon: float
    votes: int = 1

    def draw(self, sums: Iterable[int]) -> list[int]:
        """+1 or -1 for each sum S of votes."""
        secret = SystemRandom()
        return [private_sign(int(total), self.epsilon, secret.random()) for total in sums]

    def spent(self, rounds: int) -> dict[str, float]:
        """Over T votes: T epsilon by plain composition, and the tighter epsilon at delta = 1e-5.

        The latter is what the `dp-accounting` package's privacy loss distributions give.
        """
        from dp_accounting.pld import common, privacy_loss_distribution

        votes = rounds * self.votes
        # an (epsilon, 0)-private vote loses +epsilon or -epsilon: steps of epsilon hold its losses without rounding
        one = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(self.epsilon, 0.0), value_discretization_interval=self.epsilon
        )
        spent = one.self_compose(votes).get_epsilon_for_delta(DELTA)
        return {
            "epsilon_per_vote": self.epsilon,
            "votes": votes,
            "epsilon_pure": votes * self.epsilon,
            "delta": DELTA,
            "epsilon": min(float(spent), votes * self.epsilon),
        }


def private_sign(total: int, epsilon: float, uniform: float) -> int:
    """+1 with probability sigma(epsilon S / 2), else -1 (Eq. 21).

    Args:
        total: S, the sum of the votes.
        epsilon: privacy of this one vote.
        uniform: a secret number, uniform on [0, 1).
    """
    half = epsilon * total / 2
    probability = 1 / (1 + exp(-half)) if half > -700 else 0.0
    return 1 if uniform < probability else -1
