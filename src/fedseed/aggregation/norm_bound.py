"""The norm bound: the mean of vectors that are clipped, so that none counts for more than so much."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveFloat

from fedseed.aggregation.base import Vector
from fedseed.aggregation.geometry import Matrix, lengths
from fedseed.aggregation.robust import Geometric


class NormBound(Geometric):
    """Norm thresholding; every client counts the same.

        (1 / n) sum_i x_i min(1, M / |x_i|)

    Sun, Kairouz, Suresh, McMahan: "Can You Really Backdoor Federated Learning?", 2019, Section 4. A liar moves the
    outcome by M / n at most, in any direction: it bounds what a lie does and removes none.

    Args (besides those of `Robust`):
        bound: M; "median": the median length of the round's vectors.
    """

    name: Literal["norm-bound"] = "norm-bound"
    about: ClassVar[str] = "the mean of vectors clipped to a length; bounds what a liar does, finds none"

    bound: PositiveFloat | Literal["median"] = "median"

    def coefficients(self, gram: Matrix, past: bool) -> Vector:
        found = lengths(gram)
        return clipping(found, float(np.median(found)) if self.bound == "median" else self.bound) / len(found)


def clipping(found: Vector, bound: float) -> Vector:
    """min(1, bound / length) of each length."""
    return np.minimum(1.0, bound / np.maximum(found, np.finfo(float).tiny))
