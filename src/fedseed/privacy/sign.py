"""DP-FeedSign's private vote, and its account.

    P(f = +1) = e^{eps q+ / 4} / (e^{eps q+ / 4} + e^{eps q- / 4})    FeedSign Eq. 21
              = sigma(eps S / 2),  S = sum_k vote_k, as q+ - q- = 2 S

The draw comes from the operating system: anybody can regenerate the shared stream. It is exact, in whole numbers: in
floating point P would be 0 or 1 from eps S / 2 = 37 or 745 on, and an outcome of probability 0 is one that no epsilon
allows. One client's vote moves S by at most 2, so P by a factor of at most e^eps: what the account counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from secrets import randbelow, randbits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseed.privacy.settings import Mechanism

DELTA = 1e-5


@dataclass(frozen=True)
class PrivateSign(Mechanism):
    """The exponential mechanism on two outcomes; each vote is (epsilon, 0)-private (FeedSign, Theorem D.2).

    Args:
        epsilon: privacy of one vote.
        votes: votes a round.
    """

    epsilon: float
    votes: int = 1

    def draw(self, sums: Iterable[int]) -> list[int]:
        """+1 or -1 for each sum S of votes."""
        return [private_sign(int(total), self.epsilon) for total in sums]

    def log_chance(self, sums: NDArray[Any], signs: NDArray[np.integer[Any]]) -> float:
        """log P(draw(sums) = signs)."""
        return float(-np.logaddexp(0.0, -0.5 * self.epsilon * sums * signs).sum())

    def counted(self, rounds: int) -> dict[str, float]:
        votes = rounds * self.votes
        return {"epsilon_per_vote": self.epsilon, "votes": votes, "epsilon_pure": votes * self.epsilon}

    def spent(self, rounds: int) -> dict[str, float]:
        """Over T votes: T epsilon by plain composition, and the tighter epsilon at delta = 1e-5.

        The latter is what the `dp-accounting` package's privacy loss distributions give.
        """
        counted = self.counted(rounds)
        found = _composed(self.epsilon, rounds * self.votes) if rounds else 0.0
        return {**counted, "delta": DELTA, "epsilon": min(found, counted["epsilon_pure"])}


def _composed(epsilon: float, votes: int) -> float:
    """Epsilon at delta of so many votes, by their privacy loss distribution; infinite where it can't be computed."""
    from dp_accounting.pld import common, privacy_loss_distribution

    try:
        # an (epsilon, 0)-private vote loses +epsilon or -epsilon: steps of epsilon hold its losses without rounding
        one = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=epsilon
        )
        return float(one.self_compose(votes).get_epsilon_for_delta(DELTA))
    except OverflowError:  # e^epsilon is no double: there plain composition is all there is to say
        return inf


# -- exact draws ---------------------------------------------------------------------------------------------------
#
# Bernoulli(e^-g) from coins, without e: of events with probabilities g, g/2, g/3, ... in turn, all of the first k
# happen with probability g^k / k!, so that the first one that does not happen has an odd number with probability
# 1 - g + g^2/2! - ... = e^-g. Numbers are fractions with a power of two below, as every float is.


def private_sign(total: int, epsilon: float) -> int:
    """+1 with probability sigma(epsilon S / 2), else -1, exactly (Eq. 21).

    Args:
        total: S, the sum of the votes.
        epsilon: privacy of this one vote.
    """
    above, below = epsilon.as_integer_ratio()
    likely = 1 if total >= 0 else -1
    while True:  # of a fair coin's outcomes one is kept always, the other with probability e^-h, h = eps |S| / 2
        if randbits(1):
            return likely
        if happens_exp(abs(total) * above, 2 * below):
            return -likely


def happens_exp(above: int, below: int) -> bool:
    """True with probability e^-g, exactly.

    Args:
        above: of the fraction g = above / below, at least 0.
        below: a power of two.
    """
    whole, rest = divmod(above, below)
    for _ in range(whole):  # e^-g = e^-1 ... e^-1 e^-(g - floor(g)); the first that does not happen ends it
        if not _happens_exp_below_one(1, 1):
            return False
    return _happens_exp_below_one(rest, below)


def _happens_exp_below_one(above: int, below: int) -> bool:
    number = 1
    # with probability g / number: one event of probability g, and one of 1 / number
    while randbits(below.bit_length() - 1) < above and randbelow(number) == 0:
        number += 1
    return number % 2 == 1
