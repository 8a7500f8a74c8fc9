"""How large updates and steps are, so that they can be laid beside others: `Payload.size`. NumPy only.

    projections         the largest |rho|; below 1 they all count as 1, as chance makes them as small as it likes
    coefficients        the root of the mean square that the weights are moved by, in expectation
    whole weights       the same, from the weights that the coordinator holds
    entries             the root of the mean square that the weights are moved by
    gradients           the root of the mean square of their entries; a norm below 1 counts as 1

Floors keep what is next to nothing, such as what is left of a change in 16 bit, from making anything else look large.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseed.methods.payload import to_floats
from fedseed.randomness import Basis
from fedseed.weights.layout import ITEM_BYTES, Layout

SMALLEST_MOVE = 1e-6  # moves below this are alike
_PIECE = 1 << 20


def largest(scalars: NDArray[Any]) -> float:
    """Of projections: the largest magnitude, at least 1; 0 if there is none."""
    return max(1.0, float(np.abs(scalars).max())) if len(scalars) else 0.0


def moved(basis: Basis, layout: Layout, parts: Sequence[Sequence[NDArray[np.float32]]]) -> float:
    """Of coefficients: sqrt(E |V gamma|^2 / d), as directions are nearly orthogonal; 0 if there are none.

    Args:
        basis: the directions'.
        layout: the parameter space.
        parts: gamma_l of each block, for each seed.
    """
    if not parts:
        return 0.0
    square = 0.0
    rho = [basis.variance(size) * size for size in layout.block_sizes]
    for gammas in parts:
        doubles = (gamma.astype(np.float64) for gamma in gammas)
        square += sum(weight * float(np.dot(gamma, gamma)) for weight, gamma in zip(rho, doubles, strict=True))
    return max(SMALLEST_MOVE, sqrt(square / layout.size))


def of_entries(layout: Layout, values: NDArray[np.floating[Any]]) -> float:
    """Of values for single entries: sqrt(|v|^2 / d); 0 if there are none."""
    if not len(values):
        return 0.0
    return max(SMALLEST_MOVE, sqrt(float(np.square(values, dtype=np.float64).sum()) / layout.size))


def distance(layout: Layout, data: bytes, before: bytes | None) -> float:
    """Of whole weights: how far they are from those before; 0 if there are none to compare.

    Args:
        layout: the tensors.
        data: their bytes.
        before: the same before; None: not known.
    """
    if not data or before is None:
        return 0.0
    return max(SMALLEST_MOVE, sqrt(_squares(layout, data, before) / layout.size))


def gradient_size(layout: Layout, data: bytes) -> float:
    """Of a gradient: the root of the mean square of its entries."""
    return sqrt(max(1.0, _squares(layout, data, None)) / layout.size)


def _squares(layout: Layout, data: bytes, before: bytes | None) -> float:
    """The sum of squares of tensors, or of how they differ; a piece at a time, in double precision."""
    total, position = 0.0, 0
    for entry in layout.tensors:
        width = ITEM_BYTES[entry.dtype]
        end = position + entry.size * width
        for start in range(position, end, _PIECE * width):
            stop = min(end, start + _PIECE * width)
            values = to_floats(data[start:stop], entry.dtype).astype(np.float64)
            if before is not None:
                values -= to_floats(before[start:stop], entry.dtype)
            total += float(np.square(values).sum())
        position = end
    return total
