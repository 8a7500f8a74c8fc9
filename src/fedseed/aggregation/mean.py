"""The weighted mean, sum_i c_i v_i: what the methods' papers use."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedseed.aggregation.base import AggregationRule, Part, Past, Vector, check_vectors


class Mean(AggregationRule):
    """The weighted mean: one client can pull it anywhere.

    Clients are added one after the other, in double precision: the order is part of the definition, because orbits
    hold what came out.
    """

    name: Literal["mean"] = "mean"
    compares: ClassVar[bool] = False
    linear: ClassVar[bool] = True
    about: ClassVar[str] = "the weighted mean: what the papers use; one Byzantine client can pull it anywhere"

    def combine(self, vectors: Part, weights: Sequence[float]) -> Vector:
        check_vectors(vectors, weights)
        total = np.zeros(len(vectors[0]))
        for vector, weight in zip(vectors, weights, strict=True):
            total += weight * np.asarray(vector, dtype=np.float64)
        return total

    def combine_parts(self, parts: Iterable[Part], weights: Sequence[float], past: Past) -> Iterator[Vector]:
        """Part by part; no client's vector is held in double precision longer than it is added."""
        for part in parts:
            yield self.combine(part, weights)

    def accumulate(
        self,
        total: NDArray[np.floating[Any]],
        indices: Sequence[NDArray[np.integer[Any]]],
        values: Sequence[NDArray[np.floating[Any]]],
        weights: Sequence[float],
    ) -> Vector:
        result = total.astype(np.float64)
        for where, what, weight in zip(indices, values, weights, strict=True):
            np.add.at(result, where, weight * what.astype(np.float64))
        return result
