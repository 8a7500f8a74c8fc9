"""The coordinate-wise trimmed mean: of each entry the f least and the f largest values do not count."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeInt

from fedseed.aggregation.base import Vector
from fedseed.aggregation.geometry import Matrix
from fedseed.aggregation.robust import Entrywise


class TrimmedMean(Entrywise):
    """Yin, Chen, Ramchandran, Bartlett, 2018, Definition 2, with beta = f / n.

        (1 / (n - 2 f)) sum of the sorted values f + 1, ..., n - f of each entry

    Args (besides those of `Robust`):
        liars: f: so many values of each entry are left out at either end.
    """

    name: Literal["trimmed-mean"] = "trimmed-mean"
    about: ClassVar[str] = "the mean of each coordinate without the f least and f largest values; stands f liars"

    liars: NonNegativeInt = 1

    def entries(self, points: Matrix) -> Vector:
        f, n = self.liars, len(points)
        if f:
            points = np.partition(points, (f, n - f - 1), axis=0)[f : n - f]
        return np.asarray(points.mean(axis=0))
