"""Vectors with few bits for each number; each group of numbers has its own magnitude.

    1 bit     q = s sign(v),                       s = mean |v| of the group    0 counts as positive
    b bits    q = (s / L) floor(L v / s + u),      s = max |v|,  L = 2^(b-1) - 1

u is uniform on [0, 1) and drawn from the shared stream. So with at least two bits, q equals v on
average, and all parties round equally. A magnitude is sent as a bfloat16. With one bit it is
rounded to nearest, and otherwise up, so that no number exceeds it.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedseed.methods.payload import Floats, from_floats, to_floats
from fedseed.randomness import Domain
from fedseed.randomness.stream import uniform_integers

Bits = Literal[1, 2, 4, 8, 32]  # bits of a number; 32: not quantised
Codes = NDArray[np.uint16]


def quantise(
    values: Floats, sizes: NDArray[np.int64], bits: int, seed: int
) -> tuple[Floats, Codes]:
    """Return magnitudes and codes of a vector.

    Args:
        values: the vector, finite.
        sizes: the number of values in each group, in order; no group is empty.
        bits: of a code: 1, 2, 4 or 8.
        seed: seed of the rounding; one bit needs no random numbers.

    Returns:
        The magnitude of each group, already rounded to bfloat16, and a code below 2^bits for each
        number.
    """
    starts = np.cumsum(sizes) - sizes
    absolute = np.abs(values, dtype=np.float64)
    if bits == 1:
        magnitudes = _to_brain(np.add.reduceat(absolute, starts) / sizes)
        return magnitudes, (values >= 0).astype(np.uint16)
    magnitudes = _up_to_brain(np.maximum.reduceat(absolute, starts))
    levels = level_count(bits)
    scale = np.repeat(np.where(magnitudes > 0, magnitudes, 1).astype(np.float64), sizes)
    noise = uniform_integers(seed, Domain.ROUNDING, len(values)).astype(np.float64) * 2.0**-64
    numbers = np.floor(values.astype(np.float64) / scale * levels + noise)
    return magnitudes, (np.clip(numbers, -levels, levels) + levels).astype(np.uint16)


def dequantise(magnitudes: Floats, codes: Codes, sizes: NDArray[np.int64], bits: int) -> Floats:
    """Return the vector encoded by magnitudes and codes.

    The arguments are those that `quantise` takes and returns.
    """
    if bits == 1:
        steps, numbers = magnitudes, np.where(codes > 0, np.float32(1), np.float32(-1))
    else:
        levels = level_count(bits)
        steps = magnitudes / np.float32(levels)
        numbers = codes.astype(np.float32) - np.float32(levels)
    return (numbers * np.repeat(steps, sizes)).astype(np.float32)


def level_count(bits: int) -> int:
    """Return L, the number of levels above zero."""
    return int(2 ** (bits - 1) - 1)


def _to_brain(values: NDArray[np.float64]) -> Floats:
    return to_floats(from_floats(values.astype(np.float32), "bfloat16"), "bfloat16")


def _up_to_brain(values: NDArray[np.float64]) -> Floats:
    """Round non-negative values up to bfloat16."""
    rounded: Any = _to_brain(values)
    next_up = (rounded.view(np.uint32) + np.uint32(1 << 16)).view(np.float32)
    return np.where(rounded < values, next_up, rounded).astype(np.float32)
