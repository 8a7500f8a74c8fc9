"""What travels in sign: scaled signs of some chunks of a vector."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError
from fedseed.methods.packing import CHUNK, chunks_of, finite
from fedseed.methods.payload import About, Codec, Floats, Many, Payload, Reader, Scalar, from_floats, to_floats
from fedseed.methods.sizes import SMALLEST_MOVE


class Signs(NamedTuple):
    """Scaled signs of some chunks.

    Args:
        turn: which: those whose number is this modulo `every`.
        scales: s of each chunk.
        bits: a bit an entry, 1 for positive; chunk by chunk, lowest bit first.
        entries: how many.
    """

    turn: int
    scales: Floats
    bits: NDArray[np.uint8]
    entries: int


class SignCodec(Codec):
    """`Signs`: the turn, scales as bfloat16, bits."""

    def write(self, value: Signs) -> bytes:
        """4 bytes, 2 a chunk, 1/8 an entry."""
        turn = np.array(value.turn, dtype="<u4").tobytes()
        return turn + from_floats(value.scales, "bfloat16") + value.bits.tobytes()

    def read(self, reader: Reader, about: About, rest: Sequence[Codec]) -> Signs:
        """The signs. Raises MessageError: another turn than the round's, a scale below 0, a padding bit that is set."""
        every, size = about.lookup("every"), about.state.layout.size
        turn = int(reader.array("u4", 1)[0])
        if turn >= every or (about.kind == "update" and turn != turn_of(about.round, every)):
            raise MessageError(f"chunks {turn} modulo {every}, in round {about.round}")
        chunks = chosen(turn, every, size)
        scales = finite(to_floats(reader.take(2 * len(chunks)), "bfloat16"))
        if (scales < 0).any():
            raise MessageError(f"the scale of chunk {chunks[int(np.argmax(scales < 0))]} is negative")
        count = entries_in(chunks, size)
        bits = np.frombuffer(reader.take(-(-count // 8)), dtype=np.uint8)
        if count % 8 and bits[-1] >> count % 8:
            raise MessageError(f"more than {count} signs: a padding bit is set")
        return Signs(turn, scales, bits, count)


def turn_of(round: int, every: int) -> int:
    """Which chunks a round is about."""
    return (round - 1) % every


def chosen(turn: int, every: int, size: int) -> range:
    """The chunks of a turn."""
    return range(turn, chunks_of(size), every)


def entries_in(chunks: range, size: int) -> int:
    """How many entries some chunks have; only the vector's last one is short."""
    short = -size % CHUNK if len(chunks) and chunks[-1] == chunks_of(size) - 1 else 0
    return len(chunks) * CHUNK - short


@dataclass(frozen=True)
class Signed(Payload):
    """An update."""

    signs: Annotated[Signs, SignCodec()]

    def size(self, about: About) -> float:
        """The root of the mean square that the weights are moved by, at a global rate of 1."""
        squares = float(np.square(self.signs.scales, dtype=np.float64).sum()) * CHUNK
        return max(SMALLEST_MOVE, sqrt(squares / about.state.layout.size))

    def numbers(self, about: About) -> NDArray[np.int8]:
        """The signs."""
        bits = np.unpackbits(self.signs.bits, count=self.signs.entries, bitorder="little")
        return np.where(bits, 1, -1).astype(np.int8)

    def with_numbers(self, numbers: NDArray[Any], about: About) -> "Signed":
        """Other signs."""
        turn, scales, _, entries = self.signs
        return Signed(Signs(turn, scales, np.packbits(numbers > 0, bitorder="little"), entries))


@dataclass(frozen=True)
class Weighted(Payload):
    """A client's part of a step.

    Args:
        weight: c_i.
        signs: what the client has sent.
    """

    weight: Annotated[float, Scalar("f4")]
    signs: Annotated[Signs, SignCodec()]


@dataclass(frozen=True)
class SignStep(Payload):
    """A step: the updates of a round, passed on with their weights; none: nobody answered."""

    parts: Annotated[tuple[Weighted, ...], Many(Weighted)]

    def check(self, about: About) -> None:
        """All of one turn."""
        if len({part.signs.turn for part in self.parts}) > 1:
            raise MessageError("a step whose parts are about different chunks")

    def size(self, about: About) -> float:
        """At most: if all signs agree."""
        return sum(abs(part.weight) * Signed(part.signs).size(about) for part in self.parts)
