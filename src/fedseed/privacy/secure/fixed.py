"""Vectors as whole numbers modulo 2^bits, which add up exactly, in any order.

q = round(c x 2^fraction), limited to what leaves room for `clients` of them;  x = q / 2^fraction
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class FixedPoint:
    """The encoding of numbers."""

    bits: int  # bits of a word: 32 or 64
    fraction: int  # bits after the binary point; 0: whole numbers
    clients: int  # the most summands of a sum without an overflow

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a word, little-endian."""
        return np.dtype(f"<u{self.bits // 8}")

    def encode(self, values: NDArray[np.floating[Any]], weight: int = 1) -> Words:
        """Return words for weight * values; a value that is too large becomes the largest allowed.

        Args:
            values: finite numbers, 1-D.
            weight: factor of the values.
        """
        with np.errstate(over="ignore"):  # overflows are limited like all values that are too large
            scaled = np.rint(np.asarray(values, dtype=np.float64) * (weight * 2.0**self.fraction))
        limit = np.floor(np.nextafter((2.0 ** (self.bits - 1) - 1) / self.clients, 0))
        return np.clip(scaled, -limit, limit).astype(np.int64).astype(self.dtype)

    def decode(self, words: Words) -> NDArray[np.float64]:
        """Return the numbers that a sum of words encodes."""
        return (
            words.astype(self.dtype).view(self.dtype.str.replace("u", "i")).astype(np.float64)
            / 2.0**self.fraction
        )
