"""Products of two factors for CPUs: the reference's bits, compiled by numba.

Rows are independent, so threads share them out without changing a bit. Four terms are added to a
sum each time it is read and written; a block of columns keeps the sums in the first-level cache.
"""

import numpy as np
from numba import njit, prange

from fedseed.randomness.kernels.reference import Floats

__all__ = ["outer_sums"]

_COLUMNS = 2048  # sums of a row that are worked on at a time: 8 KiB
_FEW = 1 << 16  # sums up to which threads would take longer to start than the work does


@njit(cache=True)
def _sum_row(total, left_factor, right_factor):
    """total[c] = sum_j left[j] right[j, c], in the order of j."""
    width, columns = right_factor.shape
    for first in range(0, columns, _COLUMNS):
        last = min(columns, first + _COLUMNS)
        for c in range(first, last):
            total[c] = np.float32(0)
        whole = width - width % 4
        for j in range(0, whole, 4):
            a, b, d, e = left_factor[j], left_factor[j + 1], left_factor[j + 2], left_factor[j + 3]
            for c in range(first, last):
                value = total[c] + a * right_factor[j, c]
                value = value + b * right_factor[j + 1, c]
                value = value + d * right_factor[j + 2, c]
                total[c] = value + e * right_factor[j + 3, c]
        for j in range(whole, width):
            a = left_factor[j]
            for c in range(first, last):
                total[c] += a * right_factor[j, c]


@njit(cache=True)
def _sum_rows(total, left_factor, right_factor):
    for row in range(len(total)):
        _sum_row(total[row], left_factor[row], right_factor)


@njit(cache=True, parallel=True)
def _sum_rows_in_threads(total, left_factor, right_factor):
    for row in prange(len(total)):
        _sum_row(total[row], left_factor[row], right_factor)


def outer_sums(left_factor: Floats, right_factor: Floats) -> Floats:
    """Return left @ right, as `factors_reference.outer_sums` does."""
    total = np.empty((len(left_factor), right_factor.shape[1]), dtype=np.float32)
    act = _sum_rows if total.size <= _FEW else _sum_rows_in_threads
    act(total, np.ascontiguousarray(left_factor), np.ascontiguousarray(right_factor))
    return total
