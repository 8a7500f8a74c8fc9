"""The weighted mean, sum_i c_i v_i, which the methods' papers use."""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np

from fedseed.aggregation.base import AggregationRule, Part, Past, Vector, check_vectors


class Mean(AggregationRule):
    """The weighted mean: one client can pull it anywhere.

    Clients' vectors are added one after the other, in double precision. The order is part of the definition, because
    orbits hold the outcome.
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
        """Combines part by part; holds no client's vector in double precision longer than it takes to add it."""
        for part in parts:
            yield self.combine(part, weights)
