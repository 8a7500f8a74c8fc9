"""Typed values in a payload: reading never goes past the end, and never yields a number that is not finite."""

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError


class Reader:
    """Reads typed values from a payload, never past its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > self.left:
            raise MessageError(f"payload too short: {count} bytes wanted at byte {self._position}, {self.left} left")
        self._position += count
        return self._data[self._position - count : self._position]

    def u64(self) -> int:
        """An unsigned 64-bit integer."""
        return int.from_bytes(self.take(8), "little")

    def u32s(self, count: int) -> NDArray[np.uint32]:
        """`count` unsigned 32-bit integers."""
        return np.frombuffer(self.take(4 * count), dtype="<u4").astype(np.uint32)

    def f32s(self, count: int) -> NDArray[np.float32]:
        """`count` finite single-precision numbers."""
        values = np.frombuffer(self.take(4 * count), dtype="<f4").astype(np.float32)
        if not np.isfinite(values).all():
            at = int(np.flatnonzero(~np.isfinite(values))[0])
            raise MessageError(f"value {at} of {count} is {values[at]}: only finite numbers are accepted")
        return values

    def end(self) -> None:
        """Check that nothing is left."""
        if self.left:
            raise MessageError(f"payload too long: {self.left} bytes left over")


def u64_bytes(value: int) -> bytes:
    """An unsigned 64-bit integer, little-endian."""
    return value.to_bytes(8, "little")


def u32_bytes(values: NDArray[np.integer]) -> bytes:
    """Unsigned 32-bit integers, little-endian."""
    return np.asarray(values).astype("<u4").tobytes()


def f32_bytes(values: NDArray[np.floating]) -> bytes:
    """Single-precision numbers, little-endian."""
    return np.asarray(values).astype("<f4").tobytes()
