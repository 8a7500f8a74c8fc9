"""The Walsh-Hadamard transform, compiled: the reference's butterflies without its temporary arrays."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedseed.randomness.kernels import reference
from fedseed.randomness.kernels.reference import Floats, Spec


@njit(cache=True)
def _butterflies(x):  # type: ignore[no-untyped-def]
    width = 1
    while width < x.size:
        for at in range(0, x.size, 2 * width):
            left, right = x[at : at + width], x[at + width : at + 2 * width]
            for i in range(width):
                a, b = left[i], right[i]
                left[i], right[i] = a + b, a - b
        width *= 2


def hadamard_transform(values: NDArray[Any]) -> NDArray[np.float64]:
    """H x: see `reference.hadamard_transform`."""
    x = np.array(values, dtype=np.float64)
    _butterflies(x)
    return x


def hadamard_tables(tile: int, first: int, coefficients: Floats) -> list[tuple[int, Floats]]:
    """(number, H^T c): see `reference.hadamard_tables`."""
    return reference.hadamard_tables(tile, first, coefficients, hadamard_transform)


def project_finish(spec: Spec, first: int, count: int, sums: NDArray[np.float64]) -> Floats:
    """The products, from sums: see `reference.project_finish`."""
    return reference.project_finish(spec, first, count, sums, hadamard_transform)
