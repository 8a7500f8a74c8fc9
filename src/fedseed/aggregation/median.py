"""The weighted mean, which the methods' papers use, and medians, which lie between honest vectors
if liars are few.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from fedseed.aggregation.base import AggregationRule, Part, Past, Vector, check_vectors
from fedseed.aggregation.geometry import Matrix, distances_to
from fedseed.aggregation.robust import Entrywise, Geometric

# entries that are added up for all clients before the next ones
IN_CACHE = 1 << 14
# the iteration ends when no coefficient changes by more
_STILL = 1e-12


class Mean(AggregationRule):
    """The weighted mean, sum_i c_i v_i: one client can pull it anywhere.

    Clients' vectors are added one after the other, in double precision. The order is part of the
    definition, because orbits hold the outcome.
    """

    name: Literal["mean"] = "mean"
    compares: ClassVar[bool] = False
    linear: ClassVar[bool] = True
    about: ClassVar[str] = (
        "the weighted mean: what the papers use; one Byzantine client can pull it anywhere"
    )

    def combine(self, vectors: Part, weights: Sequence[float]) -> Vector:
        check_vectors(vectors, weights)
        total = np.zeros(len(vectors[0]))
        room = np.empty(min(IN_CACHE, len(total)))
        for lo in range(0, len(total), IN_CACHE):
            part = total[lo : lo + IN_CACHE]
            product = room[: len(part)]
            for vector, weight in zip(vectors, weights, strict=True):
                np.multiply(vector[lo : lo + IN_CACHE], weight, out=product, dtype=np.float64)
                part += product
        return total

    def combine_parts(
        self, parts: Iterable[Part], weights: Sequence[float], past: Past
    ) -> Iterator[Vector]:
        """Combines part by part.

        Holds no client's vector in double precision longer than it takes to add it.
        """
        for part in parts:
            yield self.combine(part, weights)


class Median(Entrywise):
    """Take the plain median of each entry.

    For an even number of clients it is the mean of the middle two.

    Yin, Chen, Ramchandran, Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates", 2018, Definition 1. The clients' weights are left aside on purpose: a client
    says itself how many examples it has, so with a weighted median one that claims a million
    decides alone.
    """

    name: Literal["median"] = "median"
    about: ClassVar[str] = (
        "the median of each coordinate, all clients counting alike; withstands fewer than half "
        "liars"
    )

    def entries(self, points: Matrix) -> Vector:
        return np.asarray(np.median(points, axis=0), dtype=np.float64)


class TrimmedMean(Entrywise):
    """Take the mean of each entry without its f least and f largest values.

        (1 / (n - 2 f)) sum of the sorted values f + 1, ..., n - f of each entry

    Yin, Chen, Ramchandran, Bartlett, 2018, Definition 2, with beta = f / n.

    Besides the arguments of `Robust`:

    Args:
        liars: f, how many values of each entry are left out at either end.
    """

    name: Literal["trimmed-mean"] = "trimmed-mean"
    about: ClassVar[str] = (
        "the mean of each coordinate without the f least and f largest values; withstands f liars"
    )

    liars: NonNegativeInt = 1

    def entries(self, points: Matrix) -> Vector:
        f, n = self.liars, len(points)
        if f:
            points = np.partition(points, (f, n - f - 1), axis=0)[f : n - f]
        return np.asarray(points.mean(axis=0))


class GeometricMedian(Geometric):
    """Finds the point with the least sum of distances to all vectors, by the smoothed Weiszfeld
    algorithm from z = 0.

        b_i = 1 / max(nu, |x_i - z|),   z <- sum_i b_i x_i / sum_i b_i

    Pillutla, Kakade, Harchaoui: "Robust Aggregation for Federated Learning", 2022, Algorithm 2.

    Besides the arguments of `Robust`:

    Args:
        smoothing: nu; smaller distances count as nu, which keeps the weights finite.
        iterations: how many there are at most; they end earlier once nothing moves any more.
    """

    name: Literal["geometric-median"] = "geometric-median"
    about: ClassVar[str] = (
        "the point with the least sum of distances to all vectors; withstands fewer than half liars"
    )

    smoothing: PositiveFloat = 1e-6
    iterations: PositiveInt = 100

    def coefficients(self, gram: Matrix, past: bool) -> Vector:
        coefficients = np.zeros(len(gram))
        for _ in range(self.iterations):
            last = coefficients
            coefficients = 1.0 / np.maximum(self.smoothing, distances_to(gram, last))
            coefficients /= coefficients.sum()
            if np.abs(coefficients - last).max() < _STILL:
                break
        return coefficients
