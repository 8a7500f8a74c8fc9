"""Differential privacy of a few scalars: bounded, summed up in whole numbers, with discrete Gaussian noise.

    v_i   <- v_i min(1, C / |v_i|)                                one vector for each example, or for each client
    answer = (C / B) [ sum_i trunc(B v_i / C) + Y ],  Y_j discrete Gaussian with sigma = ceil(noise B),  B = 2^24

DP-ZO (Tang et al., 2024) and DPZero (Zhang et al., 2024) clip an example's difference of losses and add noise to the
sum; of several directions an example's differences are one vector, bounded before they are summed up, as in DP-AggZO.
Of clients the vectors are what they send.

All that depends on data is a sum of whole numbers: what comes after (the division by B, single precision) is the same
for all data, so that no rounding tells anything. Truncation makes no vector longer, and |trunc(B v / C)| <= B exactly.

The account is `dp-accounting`'s, in Renyi divergences of whole orders. There the discrete Gaussian's are those of the
continuous one (Canonne, Kamath, Steinke, 2020, Proposition 5), for E_Q (P/Q)^k of whole k and whole shifts is the same
number; so it holds for sampled batches too, whose bounds are made of those moments.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedseed.privacy.draws import Bytes, discrete_gaussian
from fedseed.privacy.settings import Mechanism, PrivacySettings

LEVELS = 1 << 24  # B: whole numbers from 0 to a vector's bound
ORDERS = (*range(2, 33), 36, 40, 48, 56, 64, 80, 96, 128, 512, 1024)
MOST = 1 << 40  # counts that are looked at
Adjacency = Literal["add-or-remove", "replace-one", "zero-out"]


@dataclass(frozen=True)
class PrivateScalars(Mechanism):
    """The mechanism of a recipe's `[privacy]`, for one method.

    Args:
        settings: the recipe's.
        releases: noisy vectors that a client's turn gives away: local steps, or 1.
        batch: examples that an estimate is made on, as the method says.
        levels: B.
        random: makes random bytes.
    """

    settings: PrivacySettings
    releases: int = 1
    batch: int = 1
    levels: int = LEVELS
    random: Bytes = os.urandom

    by_turns: ClassVar[bool] = True

    # -- the noise ---------------------------------------------------------------------------------------------------

    @property
    def sigma(self) -> int:
        """Of the noise, in whole numbers."""
        return ceil(self.settings.noise * self.levels)

    def noisy_sum(self, vectors: Sequence[NDArray[np.floating[Any]]], length: int) -> NDArray[np.float64]:
        """The sum of bounded vectors, and noise.

        Args:
            vectors: each of shape (length,); one that is not finite counts as zeros. There may be none.
            length: entries of the answer.
        """
        total = discrete_gaussian(self.sigma, length, self.random)
        for vector in vectors:
            total += whole(vector, self.settings.clip, self.levels)
        return np.asarray(total * (self.settings.clip / self.levels), dtype=np.float64)

    def mean(self, vectors: Sequence[NDArray[np.floating[Any]]], asked: int) -> NDArray[np.float64]:
        """The noisy sum of clients' vectors over how many were asked, whoever has answered.

        Args:
            vectors: one of each client that has answered, equally long; at least one.
            asked: clients.
        """
        return self.noisy_sum(vectors, len(vectors[0])) / asked

    # -- the account -------------------------------------------------------------------------------------------------

    @property
    def adjacency(self) -> Adjacency:
        """Which data sets are told apart: an example (or client) more or less, another one, or nothing in its place."""
        return {"none": "zero-out", "fixed": "replace-one", "poisson": "add-or-remove"}[self.settings.sampling]  # type: ignore[return-value]

    @property
    def multiplier(self) -> float:
        """The noise's deviation over how far a neighbour moves the sum: twice the bound, if one replaces another."""
        return self.sigma / (self.levels * (2 if self.adjacency == "replace-one" else 1))

    @property
    def affordable(self) -> int | None:
        if (budget := self.settings.budget) is None:
            return None
        low, high = 0, 1  # what is within it, and what is not
        while high < MOST and self.epsilon(high) <= budget:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= budget else (low, middle)
        return low

    def epsilon(self, turns: int) -> float:
        """Epsilon at delta of so many turns."""
        if turns == 0:
            return 0.0
        settings = self.settings
        rates = (self.batch, settings.examples) if settings.examples is not None else None
        one = _one_release(self.multiplier, self.adjacency, rates)
        from dp_accounting.rdp import compute_epsilon

        return float(compute_epsilon(ORDERS, one * (turns * self.releases), settings.delta)[0])

    def counted(self, rounds: int) -> dict[str, Any]:
        return self.spent(rounds)

    def spent(self, rounds: int) -> dict[str, Any]:
        """What so many turns of the client that was asked most often have spent.

        Returns:
            `level`, `adjacency`, `turns`, `releases` (noisy vectors of one client), `noise`, `delta`, `epsilon`; with a
            budget `budget`.
        """
        settings = self.settings
        found = {
            "level": settings.level,
            "adjacency": self.adjacency,
            "turns": rounds,
            "releases": rounds * self.releases,
            "noise": settings.noise,
            "delta": settings.delta,
            "epsilon": self.epsilon(rounds),
        }
        return found if settings.budget is None else {**found, "budget": settings.budget}


def whole(vector: NDArray[np.floating[Any]], clip: float, levels: int) -> NDArray[np.int64]:
    """A vector in whole numbers, at most `levels` long.

    Args:
        vector: 1-D; zeros, if it is not finite.
        clip: the length that `levels` stands for; longer vectors are shortened to it.
        levels: at most 2^24.

    Returns:
        Whole numbers whose squares add up to at most levels^2.
    """
    doubles = np.asarray(vector, dtype=np.float64)
    if not np.isfinite(doubles).all():
        return np.zeros(len(doubles), dtype=np.int64)
    largest = float(np.abs(doubles).max(initial=0.0))
    if largest == 0:
        return np.zeros(len(doubles), dtype=np.int64)
    scaled = doubles / largest  # so that no square overflows
    norm = float(np.sqrt(np.square(scaled).sum()))
    times = levels * (1.0 if largest * norm > clip else largest * norm / clip) / norm
    found = np.trunc(scaled * times).astype(np.int64)
    while int(np.square(found).sum()) > levels * levels:  # what the last bits of doubles may add
        found -= np.sign(found)
    return found


def bounded(vector: NDArray[np.floating[Any]], clip: float) -> NDArray[np.float64]:
    """A vector shortened to `clip`, up to rounding; zeros, if it is not finite."""
    return np.asarray(whole(vector, clip, LEVELS) * (clip / LEVELS), dtype=np.float64)


@cache
def _one_release(multiplier: float, adjacency: Adjacency, rates: tuple[int, int] | None) -> NDArray[np.float64]:
    """The Renyi divergences of one noisy vector at ORDERS.

    Args:
        multiplier: the noise's deviation over the sensitivity.
        adjacency: which data sets are neighbours.
        rates: sample and source, where the batch is sampled.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    relations = dp_accounting.NeighboringRelation
    event: Any = dp_accounting.GaussianDpEvent(multiplier)
    if rates is not None and adjacency == "replace-one":
        event = dp_accounting.SampledWithoutReplacementDpEvent(rates[1], rates[0], event)
    elif rates is not None:
        event = dp_accounting.PoissonSampledDpEvent(rates[0] / rates[1], event)
    relation = {
        "add-or-remove": relations.ADD_OR_REMOVE_ONE,
        "replace-one": relations.REPLACE_ONE,
        "zero-out": relations.REPLACE_SPECIAL,
    }[adjacency]
    accountant = RdpAccountant(ORDERS, relation)
    accountant.compose(event)
    return np.asarray(accountant.rdp, dtype=np.float64)


def noise_for(epsilon: float, turns: int, settings: PrivacySettings, releases: int = 1, batch: int = 1) -> float:
    """The least noise, to a thousandth of it, with which so many turns spend epsilon.

    Args:
        epsilon: at the settings' delta.
        turns: of the client that is asked in most rounds.
        settings: what is protected; their noise does not matter.
        releases: noisy vectors of a turn.
        batch: examples that an estimate is made on.

    Raises:
        ValueError: no noise that is possible is enough.
    """
    low, high = 1e-3, 1e5
    while high > 1.0005 * low:
        middle = (low * high) ** 0.5
        tried = settings.model_copy(update={"noise": middle})
        within = PrivateScalars(tried, releases, batch).epsilon(turns) <= epsilon
        low, high = (low, middle) if within else (middle, high)
    if high > 0.999e5:
        raise ValueError(f"epsilon = {epsilon:g} in {turns} turns takes more noise than 1e5 times clip")
    return high
