"""What travels of coefficients on seeds' directions, block by block: in floats, or in a bit each.

In a bit each they are signs, and one magnitude for all of a block (Vargaftik et al., "DRIVE: One-bit Distributed Mean
Estimation", NeurIPS 2021, its Eq. for an unbiased scale): random rotations make entries alike, so that little is lost
with their magnitudes.

    q = s sign(gamma),  s = |gamma|^2 / |gamma|_1        0 counts as positive

<q, gamma> = |gamma|^2, so q keeps all of gamma along itself, and |q|^2 is pi/2 |gamma|^2 for normal coefficients: what
is lost is noise of 0.57 |gamma|^2. A bit in place of 32 allows for 32 times the directions, and the noise of a
projection is in proportion to d / K.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError
from fedseed.methods.payload import About, Codec, Floats, Many, Payload, Ragged, Reader, Scalar
from fedseed.methods.summands import Summand, Vector, filled, moved


@dataclass(frozen=True)
class Coefficients(Summand):
    """One seed, and for each block the coefficients on its directions 0, 1, ...

    As an update: a client's projected change. In bytes: 8 for the seed, 4 per block for the counts, 4 per coefficient.
    """

    seed: Annotated[int, Scalar("u8")]
    gammas: Annotated[tuple[Floats, ...], Ragged("most")]

    def check(self, about: About) -> None:
        if about.kind == "update" and about.lookup("shared"):
            planned = about.lookup("round_seed")(about.state, about.round)
            if self.seed != planned:
                raise MessageError(f"seed {self.seed}: the round's seed is {planned}")

    def size(self, about: About) -> float:
        return moved(about.method.directions_of(0), about.state.layout, [self.gammas])

    def times(self, weight: float) -> "Coefficients":
        """c gamma, in double precision and rounded once."""
        return replace(self, gammas=tuple((weight * g.astype(np.float64)).astype(np.float32) for g in self.gammas))

    @classmethod
    def words(cls, about: About) -> int:
        return sum(summed_counts(about))

    def vector(self, about: About) -> Vector:
        """Block by block; each as long as any client's can be."""
        pairs = zip(self.gammas, summed_counts(about), strict=True)
        return np.concatenate([filled(gamma.astype(np.float64), count) for gamma, count in pairs])

    @classmethod
    def of(cls, vector: Vector, about: About) -> "Coefficients":
        """With the round's seed; blocks without the zeros at their ends where a change decides how long they are."""
        blocks = np.split(vector, np.cumsum(summed_counts(about))[:-1])
        if decided_by_change(about):
            blocks = [block[: np.flatnonzero(block).max(initial=0) + 1] for block in blocks]
        return cls(about.lookup("round_seed")(about.state, about.round), tuple(blocks))  # type: ignore[arg-type]  # doubles

    def with_vector(self, vector: NDArray[Any], about: About) -> "Coefficients":
        blocks = np.split(vector.astype(np.float32), np.cumsum(summed_counts(about))[:-1])
        kept = [max(len(g), np.flatnonzero(b).max(initial=0) + 1) for g, b in zip(self.gammas, blocks, strict=True)]
        return replace(self, gammas=tuple(block[:k] for block, k in zip(blocks, kept, strict=True)))

    def numbers(self, about: About) -> NDArray[Any]:
        return self.vector(about)

    def with_numbers(self, numbers: NDArray[Any], about: About) -> "Coefficients":
        return self.with_vector(numbers, about)


def summed_counts(about: About) -> list[int]:
    """How many coefficients of each block are summed: what is allocated, or all there can be if a change decides."""
    if decided_by_change(about):
        return [about.lookup("most")] * about.state.blocks
    return [int(count) for count in about.lookup("allocate")(about.state)]


def decided_by_change(about: About) -> bool:
    """Whether a client's change decides how many coefficients a block gets."""
    return about.lookup("allocation") in ("norm", "sqrt")


@dataclass(frozen=True)
class CoefficientStep(Payload):
    """What a round adds: with shared seeds one sum, otherwise one part per client, weights c_i multiplied in."""

    parts: Annotated[tuple[Coefficients, ...], Many(Coefficients)]

    def check(self, about: About) -> None:
        if about.lookup("shared") and len(self.parts) > 1:
            raise MessageError(f"{len(self.parts)} parts in a step whose clients share a seed")

    def size(self, about: About) -> float:
        return moved(about.method.directions_of(0), about.state.layout, [part.gammas for part in self.parts])


# -- in a bit each -----------------------------------------------------------------------------------------------


def magnitude(gamma: Floats) -> np.float32:
    """s of a block's coefficients, shape (K_l,); 0 if they all are. That of signs times s is s, to the last bit."""
    doubles = np.abs(gamma.astype(np.float64))
    largest = doubles.max(initial=0.0)
    if largest == 0:
        return np.float32(0)
    doubles /= largest
    return np.float32(largest * (np.square(doubles).sum() / doubles.sum()))


def one_bit(gamma: Floats) -> Floats:
    """q of a block's coefficients, shape (K_l,)."""
    s = magnitude(gamma)
    return np.where(gamma >= 0, s, -s)


class RaggedBits(Ragged):
    """A tuple of arrays as `one_bit` makes them: all lengths (u32), all magnitudes (f32), then a bit for each element.

    The blocks' bits follow one another without a gap: 1 for positive, lowest first, zeros behind the last.
    """

    def held(self, value: Any, size: int) -> tuple[int, int, int]:
        return len(value), 0, sum(map(len, value))

    def write(self, value: Any) -> bytes:
        lengths = np.array([len(part) for part in value]).astype("<u4")
        scales = np.array([magnitude(part) for part in value]).astype("<f4")
        bits = np.packbits(np.concatenate(value) >= 0, bitorder="little")
        return lengths.tobytes() + scales.tobytes() + bits.tobytes()

    def read(self, reader: Reader, about: About, rest: Sequence[Codec]) -> tuple[Floats, ...]:
        lengths = self.lengths(reader, about)
        scales = reader.array("f4", len(lengths))
        if (scales < 0).any():
            raise MessageError(f"the magnitude of block {int(np.argmax(scales < 0))} is negative")
        total = sum(lengths)
        data = reader.take(-(-total // 8))
        if total % 8 and data[-1] >> total % 8:
            raise MessageError(f"more than {total} coefficients: a padding bit is set")
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=total, bitorder="little") > 0
        blocks = np.split(bits, np.cumsum(lengths)[:-1])
        return tuple(np.where(block, s, -s) for block, s in zip(blocks, scales, strict=True))


@dataclass(frozen=True)
class BitCoefficients(Coefficients):
    """The same in a bit each. In bytes: 8 for the seed, 8 per block, 1/8 per coefficient."""

    gammas: Annotated[tuple[Floats, ...], RaggedBits("most")]


@dataclass(frozen=True)
class BitStep(CoefficientStep):
    """A round's step in a bit a coefficient."""

    parts: Annotated[tuple[BitCoefficients, ...], Many(BitCoefficients)]
