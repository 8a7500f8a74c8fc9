"""Plain reference of products of two factors, added to a matrix: NumPy.

A product is summed up in single precision, in the order of the inner index, from zero. One of the
two factors holds signs (+1 and -1) only, so every single product is exact, and a fused
multiply-add gives the same bits as a multiplication and an addition.
"""

from typing import Any, NamedTuple

import numpy as np

from fedseed.randomness.kernels.reference import Floats


class FactorJob(NamedTuple):
    """Rows of one matrix to which left @ right is added (`structured.Kernels.add_factors`)."""

    destination: Any  # 1-D: whole rows, one after the other
    source: Any  # as `destination`; what the product is added to
    dtype: str
    left_factor: Floats  # shape (rows, width)
    right_factor: Floats  # shape (width, columns)
    start: int  # index of the first element in the parameter vector


def outer_sums(left_factor: Floats, right_factor: Floats) -> Floats:
    """Return left @ right, shape (rows, columns), summed up in the order of the inner index.

    Args:
        left_factor: shape (rows, width).
        right_factor: shape (width, columns).
    """
    total = np.zeros((len(left_factor), right_factor.shape[1]), dtype=np.float32)
    for inner in range(len(right_factor)):
        total += left_factor[:, inner, None] * right_factor[inner]
    return total
