"""What a game of guessing says about privacy: one of N candidates, drawn evenly, is in the data,
and somebody guesses.

Let every exchange of one candidate for another be (epsilon, delta)-private, and p the probability
of a right guess. For candidates i and j, P[guess j | j is in] <= e^epsilon P[guess j | i is in] +
delta; the mean over all i and j is

    p <= e^epsilon (1 - p) / (N - 1) + delta,   so   epsilon >= log((N - 1) (p - delta) / (1 - p))

A lower bound of p from counted guesses (Clopper and Pearson, 1934) gives one of epsilon, with the
same confidence.
"""

from collections.abc import Sequence
from math import exp, log

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom


def chance_of_at_least(right: int, games: int, p: float) -> float:
    """Return the probability of `right` or more right guesses in `games`, each right with
    probability p.
    """
    return float(binom.sf(right - 1, games, p))


def share_at_least(right: int, games: int, confidence: float) -> float:
    """Return the least probability of a right guess that so many right ones allow: Clopper and
    Pearson's lower bound.

    Args:
        right: right guesses.
        games: all guesses.
        confidence: with which it holds, such as 0.95.
    """
    if right:
        return float(beta.ppf(1 - confidence, right, games - right + 1))
    return 0.0


def epsilon_at_least(
    right: int, games: int, candidates: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Return the least epsilon that so many right guesses allow; 0 if they allow any.

    Args:
        right: right guesses.
        games: all guesses.
        candidates: N, of which one was drawn evenly in each game.
        delta: of the account that epsilon belongs to.
        confidence: with which it holds.
    """
    p = share_at_least(right, games, confidence)
    odds = (candidates - 1) * (p - delta) / (1 - p)
    if odds > 0:
        return max(0.0, log(odds))
    return 0.0


def most_right(epsilon: float, candidates: int, delta: float = 0.0) -> float:
    """Return the largest probability of a right guess that epsilon allows."""
    if epsilon > 700:
        return 1.0
    odds = exp(epsilon) / (candidates - 1)
    return min(1.0, (odds + delta) / (1 + odds))


def rank(scores: NDArray[np.float64], planted: int) -> int:
    """Return the place of a candidate by its score, from 1 (the highest).

    Behind all that have the same.
    """
    return int((scores >= scores[planted]).sum())


def percentile(scores: NDArray[np.float64], planted: int) -> float:
    """The share of the others below a candidate, those with the same score as half.

    0.5 in the mean at chance.
    """
    others = np.delete(scores, planted)
    mine = scores[planted]
    return float(((others < mine).sum() + 0.5 * (others == mine).sum()) / len(others))


def shares_found(ranks: Sequence[int], candidates: int) -> list[tuple[float, float]]:
    """Return, for some r from 1 to N, the share of games with the candidate among the first r."""
    points = []
    for guesses in first_guesses(candidates):
        within = sum(rank <= guesses for rank in ranks)
        points.append((float(guesses), within / len(ranks)))
    return points


def first_guesses(candidates: int) -> list[int]:
    """Return numbers from 1 to N for a logarithmic axis."""
    return sorted({round(r) for r in np.geomspace(1, candidates, 24)})
