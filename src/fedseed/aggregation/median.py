"""The median and the trimmed mean of each entry: while few enough clients lie, it stays between honest ones."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeInt

from fedseed.aggregation.base import Vector
from fedseed.aggregation.geometry import Matrix
from fedseed.aggregation.robust import Entrywise


class Median(Entrywise):
    """The plain median of each entry; of an even number of clients, the mean of the middle two.

    Yin, Chen, Ramchandran, Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018,
    Definition 1. The clients' weights are left aside on purpose: a client says itself how many examples it has, so with
    a weighted median one that claims a million decides alone.
    """

    name: Literal["median"] = "median"
    about: ClassVar[str] = "the median of each coordinate, every client counting the same; stands almost half of liars"

    def entries(self, points: Matrix) -> Vector:
        return np.asarray(np.median(points, axis=0), dtype=np.float64)


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
