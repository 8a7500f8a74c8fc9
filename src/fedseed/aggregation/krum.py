"""Krum and multi-Krum, which choose the vectors of clients whom most others are near to.

Blanchard, El Mhamdi, Guerraoui, Stainer: "Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent", NeurIPS 2017. A vector's score is the sum of its squared distances to the n - f -
1 nearest others, with which the guarantee of Allouah et al., "Fixing by Mixing", AISTATS 2023,
needs n > 2 f alone; the first paper takes n - f - 2 of them, and needs n > 2 f + 2.

    Krum         x_i with the least score; of equal ones the first
    multi-Krum   the mean of the m with the least scores, m = n - f

All distances are needed, so the cost grows with n^2.
"""

from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from fedseed.aggregation.base import Vector
from fedseed.aggregation.geometry import Matrix, squared_distances
from fedseed.aggregation.robust import Geometric


class Krum(Geometric):
    """Chooses the vector with the least score.

    Besides the arguments of `Robust`:

    Args:
        liars: f, how many clients may lie.
    """

    name: Literal["krum"] = "krum"
    about: ClassVar[str] = (
        "the vector of the client whom most others are near to; withstands f liars; n^2 distances"
    )

    liars: NonNegativeInt = 1

    def coefficients(self, gram: Matrix, past: bool) -> Vector:
        squares = squared_distances(gram)
        # column 0 is a vector's distance to itself
        nearest = np.sort(squares, axis=1)[:, 1 : len(gram) - self.liars]
        best = np.argsort(nearest.sum(axis=1), kind="stable")[: self.count_of_best(len(gram))]
        coefficients = np.zeros(len(gram))
        coefficients[best] = 1.0 / len(best)
        return coefficients

    def count_of_best(self, n: int) -> int:
        """Return the number of vectors, of n, that are chosen and averaged."""
        return 1


class MultiKrum(Krum):
    """Take the mean of the m vectors with the least scores.

    Besides the arguments of `Krum`:

    Args:
        chosen: m, how many vectors the outcome is the mean of; by default n - f.
    """

    name: Literal["multi-krum"] = "multi-krum"  # type: ignore[assignment]
    about: ClassVar[str] = (
        "the mean of the m vectors that Krum likes best; withstands f liars; n^2 distances"
    )

    chosen: PositiveInt | None = None

    @property
    def fewest(self) -> int:
        return max(super().fewest, 0 if self.chosen is None else self.chosen + self.liars)

    def count_of_best(self, n: int) -> int:
        if self.chosen is None:
            return n - self.liars
        return self.chosen
