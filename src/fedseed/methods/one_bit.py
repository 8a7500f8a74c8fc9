"""Coefficients in a bit each: signs, and one magnitude for all of a block.

Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation", NeurIPS 2021 (its Eq. for an unbiased scale): random
rotations make entries alike, so that little is lost with their magnitudes.

    q = s sign(gamma),  s = |gamma|^2 / |gamma|_1        0 counts as positive

<q, gamma> = |gamma|^2, so q keeps all of gamma along itself, and |q|^2 is pi/2 |gamma|^2 for normal coefficients: what
is lost is noise of 0.57 |gamma|^2. A bit in place of 32 allows for 32 times the directions, and the noise of Ferret's
projection is in proportion to d / K.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from fedseed.errors import MessageError
from fedseed.methods.coefficients import Coefficients, FerretStep
from fedseed.methods.global_step import GlobalStep
from fedseed.methods.payload import About, Codec, Floats, Many, Ragged, Reader


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

    def write(self, value: Any) -> bytes:
        """Lengths, magnitudes, bits."""
        lengths = np.array([len(part) for part in value]).astype("<u4")
        scales = np.array([magnitude(part) for part in value]).astype("<f4")
        bits = np.packbits(np.concatenate(value) >= 0, bitorder="little")
        return lengths.tobytes() + scales.tobytes() + bits.tobytes()

    def read(self, reader: Reader, about: About, rest: Sequence[Codec]) -> tuple[Floats, ...]:
        """The arrays. Raises MessageError: a magnitude below 0, or a padding bit is set."""
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
class BitStep(FerretStep):
    """A round's step in a bit a coefficient."""

    parts: Annotated[tuple[BitCoefficients, ...], Many(BitCoefficients)]


class OneBit(GlobalStep):
    """Whether coefficients travel in floats or in bits.

    Args:
        scalars: a coefficient in 4 bytes ("float32", as published) or in a "bit": its sign, and one magnitude for all
            of a block, up and down (`fedseed.methods.one_bit`).
    """

    scalars: Literal["float32", "bit"] = "float32"

    def sent(self, gammas: Sequence[Floats]) -> tuple[Floats, ...]:
        """Coefficients as they travel, block by block."""
        return tuple(map(one_bit, gammas) if self.scalars == "bit" else gammas)

    @property
    def update_type(self) -> type[Coefficients]:  # type: ignore[override]
        """With full floats or a bit each."""
        return BitCoefficients if self.scalars == "bit" else Coefficients

    @property
    def step_type(self) -> type[FerretStep]:  # type: ignore[override]
        """The same."""
        return BitStep if self.scalars == "bit" else FerretStep

    @property
    def unsummable(self) -> str | None:
        """A sum of signs is none."""
        return 'scalars = "bit": each client has a magnitude of its own' if self.scalars == "bit" else self.incomparable
