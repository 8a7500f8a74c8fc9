"""The coordinate-wise median: while fewer than half of the clients lie, each entry stays between honest ones."""

from typing import ClassVar, Literal

import numpy as np

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
