"""The geometric median: the point whose distances to all vectors have the least sum; stands almost half of liars."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from fedseed.aggregation.base import Vector
from fedseed.aggregation.geometry import Matrix, distances_to
from fedseed.aggregation.robust import Geometric

_STILL = 1e-12  # coefficients that change by less have arrived


class GeometricMedian(Geometric):
    """By the smoothed Weiszfeld algorithm, from z = 0 on; every client counts the same.

        b_i = 1 / max(nu, |x_i - z|),   z <- sum_i b_i x_i / sum_i b_i

    Pillutla, Kakade, Harchaoui: "Robust Aggregation for Federated Learning", 2022, Algorithm 2.

    Args (besides those of `Robust`):
        smoothing: nu: distances below it count as nu, which keeps the weights finite.
        iterations: at most; it ends before if nothing moves any more.
    """

    name: Literal["geometric-median"] = "geometric-median"
    about: ClassVar[str] = "the point with the least sum of distances to all vectors; stands almost half of liars"

    smoothing: PositiveFloat = 1e-6
    iterations: PositiveInt = 100

    def coefficients(self, gram: Matrix, past: bool) -> Vector:
        found = np.zeros(len(gram))
        for _ in range(self.iterations):
            before = found
            found = 1.0 / np.maximum(self.smoothing, distances_to(gram, before))
            found /= found.sum()
            if np.abs(found - before).max() < _STILL:
                break
        return found
