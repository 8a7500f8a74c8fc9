"""Scalars in a byte each: a sign and a magnitude.

Zelikman et al., "Just One Byte (per gradient)", 2023, send a projection in one byte.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseed.methods.payload import Array, Floats


class OneByte(Array):
    """float32 numbers in a byte each: a sign and a magnitude 2^((c - 80) / 5), c = 1..127; c = 0 is zero.

    From 2^-15.8 to 2^9.4 in steps of 15%: nearest in the logarithm, too small becomes 0, too large the largest.
    """

    def write(self, value: Any) -> bytes:
        """The codes."""
        return to_byte(value).tobytes()

    def decoded(self, values: NDArray[Any]) -> NDArray[Any]:
        """The numbers that codes stand for."""
        return _VALUES[values]


_OCTAVE, _OFFSET = 5, 80
_magnitudes = [0.0] + [2.0 ** ((c - _OFFSET) / _OCTAVE) for c in range(1, 128)]
_VALUES = np.array(_magnitudes + [-m for m in _magnitudes], dtype=np.float32)


def to_byte(values: Floats) -> NDArray[np.uint8]:
    """The one-byte code of each value."""
    magnitude = np.abs(values.astype(np.float64))
    code = np.round(np.log2(np.where(magnitude > 0, magnitude, 1.0)) * _OCTAVE + _OFFSET)
    code = np.where((magnitude > 0) & (code >= 1), np.minimum(code, 127), 0).astype(np.uint8)
    return np.where(values < 0, code | 0x80, code).astype(np.uint8)
