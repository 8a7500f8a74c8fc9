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
    """How numbers are written."""

    bits: int  # of a word: 32 or 64
    fraction: int  # bits behind the point; 0: whole numbers
    clients: int  # how many summands a sum may have without an overflow

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return a word's dtype, little-endian."""
        return np.dtype(f"<u{self.bits // 8}")

    def write(self, values: NDArray[np.floating[Any]], weight: int = 1) -> Words:
        """Return words for weight * values.

        One that is too large becomes the largest that a client may have.

        Args:
            values: finite numbers, 1-D.
            weight: what they are multiplied by.
        """
        with np.errstate(over="ignore"):  # what overflows is limited like all that is too large
            scaled = np.rint(np.asarray(values, dtype=np.float64) * (weight * 2.0**self.fraction))
        most = np.floor(np.nextafter((2.0 ** (self.bits - 1) - 1) / self.clients, 0))
        return np.clip(scaled, -most, most).astype(np.int64).astype(self.dtype)

    def read(self, words: Words) -> NDArray[np.float64]:
        """Return the numbers that a sum of words stands for."""
        return (
            words.astype(self.dtype).view(self.dtype.str.replace("u", "i")).astype(np.float64)
            / 2.0**self.fraction
        )
