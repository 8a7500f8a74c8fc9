"""Averages of squares that are a number each, not one for every parameter, and what else rates are divided by.

Sums are exact before they are rounded (`math.fsum`), and what follows are single operations that IEEE 754 rounds alike
everywhere: a replay on another machine finds the same bits, whatever its BLAS does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def power(base: float, exponent: int) -> float:
    """base^exponent by squaring: products are rounded alike everywhere, the C library's powers need not be."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def total(values: Floats) -> float:
    """The sum of single-precision numbers, rounded once."""
    return fsum(values.tolist())


def square(values: Floats) -> float:
    """|values|^2 of single-precision numbers, rounded once: their squares are exact in double precision."""
    return fsum(value * value for value in values.tolist())


def deviation(values: Floats) -> float:
    """The standard deviation of a sample: the root of sum (x - mean)^2 / (N - 1); 0 of fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = total(values) / len(values)
    return sqrt(fsum((value - mean) * (value - mean) for value in values.tolist()) / (len(values) - 1))


@dataclass(frozen=True)
class Squares:
    """Sums or averages of squares after a number of steps.

    sum        v <- v + x                            Adagrad's
    average    v <- beta v + (1 - beta) x            RMSProp's and Adam's; over 1 - beta^t when it is used

    Args:
        values: v of each; none before the first step.
        steps: t, how many steps there were.
    """

    values: tuple[float, ...] = ()
    steps: int = 0

    def take(self, squares: Sequence[float], beta: float | None) -> "Squares":
        """With those of one more step.

        Args:
            squares: x of each.
            beta: how much of an average stays; None: a sum.
        """
        before = self.values or (0.0,) * len(squares)
        kept, gain = (1.0, 1.0) if beta is None else (beta, 1.0 - beta)
        return Squares(tuple(kept * v + gain * x for v, x in zip(before, squares, strict=True)), self.steps + 1)

    def roots(self, beta: float | None) -> tuple[float, ...]:
        """sqrt(v) of each, an average corrected for its start from zero. `beta` as in `take`."""
        bias = 1.0 if beta is None else 1.0 - power(beta, self.steps)
        return tuple(sqrt(v / bias) for v in self.values)
