"""Codecs for small numbers: of any number of bits next to each other, in 16-bit floats, and entries of a long vector.

A vector is cut into chunks of 4,096 entries, the last one shorter, so that a place in a chunk is 12 bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError
from fedseed.methods.payload import About, Array, Codec, Floats, Reader, from_floats, to_floats

CHUNK = 4096
PLACE_BITS = 12  # of a place in a chunk
_GROUPS = 1 << 15  # of 8 numbers, worked on at a time: bounds what is needed besides by 8 MiB

Places = NDArray[np.uint16]


def pack(numbers: NDArray[Any], width: int) -> bytes:
    """Numbers of `width` bits each (1 to 16) next to each other, lowest bit first, padded with zeros to whole bytes."""
    parts = []
    for lo in range(0, len(numbers), 8 * _GROUPS):
        part = np.ascontiguousarray(numbers[lo : lo + 8 * _GROUPS].astype("<u2"))
        bits = np.unpackbits(part.view(np.uint8).reshape(-1, 2), axis=1, count=width, bitorder="little")
        parts.append(np.packbits(bits, bitorder="little").tobytes())
    return b"".join(parts)


def packed_bytes(count: int, width: int) -> int:
    """Bytes that `pack` makes."""
    return -(-count * width // 8)


def unpack(data: bytes, width: int, count: int) -> Places:
    """The inverse of `pack`.

    Raises:
        MessageError: not so many bytes, or a padding bit is set.
    """
    if len(data) != packed_bytes(count, width):
        raise MessageError(f"{len(data)} bytes: {count} numbers of {width} bits take {packed_bytes(count, width)}")
    if count * width % 8 and data[-1] >> count * width % 8:
        raise MessageError(f"more than {count} numbers of {width} bits: a padding bit is set")
    numbers = np.zeros(count, dtype=np.uint16)
    for lo in range(0, count, 8 * _GROUPS):
        size = min(8 * _GROUPS, count - lo)
        begin = lo * width // 8
        part = np.frombuffer(data, dtype=np.uint8, count=packed_bytes(size, width), offset=begin)
        bits = np.unpackbits(part, count=size * width, bitorder="little").reshape(size, width)
        wide = np.zeros((size, 16), dtype=np.uint8)
        wide[:, :width] = bits
        numbers[lo : lo + size] = np.packbits(wide, axis=1, bitorder="little").view("<u2").reshape(-1)
    return numbers


class Small(NamedTuple):
    """Whole numbers below 2^width.

    Args:
        numbers: uint16.
        width: bits that each travels in.
    """

    numbers: NDArray[np.uint16]
    width: int


@dataclass(frozen=True)
class Packed(Codec):
    """`Small` numbers, without a gap between them.

    Args:
        length: the name of how many there are.
        width: bits of each, or the name of that.
        kind: what they are when the content of messages is counted.
    """

    length: str
    width: int | str
    kind: Literal["integers", "scalars"] = "integers"

    def held(self, value: Small, size: int) -> tuple[int, int, int]:
        return (len(value.numbers), 0, 0) if self.kind == "scalars" else (0, len(value.numbers), 0)

    def write(self, value: Small) -> bytes:
        return pack(value.numbers, value.width)

    def read(self, reader: Reader, about: About, rest: Sequence[Codec]) -> Small:
        width = self.width if isinstance(self.width, int) else int(about.lookup(self.width))
        count = int(about.lookup(self.length))
        return Small(unpack(reader.take(packed_bytes(count, width)), width, count), width)


class Halves(Array):
    """Numbers in bfloat16, which has float32's range: 2 bytes each, within 1/256 of what they were."""

    def write(self, value: Any) -> bytes:
        return from_floats(np.asarray(value, dtype=np.float32), "bfloat16")

    def decoded(self, values: NDArray[Any]) -> Floats:
        return finite(to_floats(values.astype("<u2").tobytes(), "bfloat16"))


class Scattered(NamedTuple):
    """Values for some entries of a vector.

    Args:
        counts: how many of each chunk; none at all: no entry of any.
        places: in their chunks, ascending in each.
        values: float32.
    """

    counts: NDArray[np.uint16]
    places: Places
    values: Floats

    @property
    def indices(self) -> NDArray[np.int64]:
        """Of the entries, in the vector."""
        first = np.arange(len(self.counts), dtype=np.int64) * CHUNK
        return np.repeat(first, self.counts) + self.places


def nothing() -> Scattered:
    """No entry of any chunk: nobody answered."""
    return Scattered(np.zeros(0, np.uint16), np.zeros(0, np.uint16), np.zeros(0, np.float32))


def scattered(indices: NDArray[np.int64], values: Floats, chunks: int) -> Scattered:
    """From ascending indices into a vector of so many chunks."""
    counts = np.bincount(indices // CHUNK, minlength=chunks)
    return Scattered(counts.astype(np.uint16), (indices % CHUNK).astype(np.uint16), values)


@dataclass(frozen=True)
class EntriesCodec(Codec):
    """`Scattered` values: 2 bytes for each chunk's count, 12 bits for each place, a bfloat16 for each value.

    In a step no bytes at all are possible: nobody answered.
    """

    def held(self, value: Scattered, size: int) -> tuple[int, int, int]:
        return len(value.values), len(value.places), 0

    def write(self, value: Scattered) -> bytes:
        if not len(value.counts):
            return b""
        places, values = pack(value.places, PLACE_BITS), from_floats(value.values, "bfloat16")
        return value.counts.astype("<u2").tobytes() + places + values

    def read(self, reader: Reader, about: About, rest: Sequence[Codec]) -> Scattered:
        if about.kind == "step" and not reader.left:
            return nothing()
        size = about.state.layout.size
        counts = reader.array("u2", chunks_of(size))
        count = int(counts.sum(dtype=np.int64))
        wanted = packed_bytes(count, PLACE_BITS) + 2 * count
        if reader.left != wanted:  # before anything of that size is made
            raise MessageError(f"{reader.left} bytes of entries: {count} take {wanted}")
        places = unpack(reader.take(packed_bytes(count, PLACE_BITS)), PLACE_BITS, count)
        values = finite(to_floats(reader.take(2 * count), "bfloat16"))
        check_places(counts, places, size)
        return Scattered(counts, places, values)


def chunks_of(size: int) -> int:
    """Chunks of a vector of `size` entries."""
    return -(-size // CHUNK)


def check_places(counts: NDArray[Any], places: Places, size: int) -> None:
    """Raise MessageError unless places ascend in each chunk and lie in the vector."""
    ascending = np.diff(places.astype(np.int32)) > 0
    ends = np.cumsum(counts, dtype=np.int64)[:-1]
    ascending[ends[(ends > 0) & (ends < len(places))] - 1] = True  # a new chunk begins
    if not ascending.all():
        at = int(np.flatnonzero(~ascending)[0]) + 1
        raise MessageError(f"entry {at} of {len(places)}: places in a chunk must ascend")
    rest = size - CHUNK * (len(counts) - 1)
    last = places[len(places) - int(counts[-1]) :]
    if len(last) and last[-1] >= rest:
        raise MessageError(f"place {last[-1]} in the last chunk, which has {rest} entries")


def halved(values: NDArray[Any]) -> Floats:
    """Numbers as they are after they have travelled as bfloat16."""
    return to_floats(from_floats(values.astype(np.float32), "bfloat16"), "bfloat16")


def finite(values: Floats) -> Floats:
    """The values. Raises MessageError if one is NaN or infinite."""
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise MessageError(f"value {at} of {len(values)} is {values[at]}: only finite numbers are accepted")
    return values
