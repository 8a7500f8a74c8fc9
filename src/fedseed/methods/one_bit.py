"""Coefficients in a bit each: signs, and one magnitude for all of a block.

Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation", NeurIPS 2021, its Eq. for an unbiased scale: random
rotations make entries alike, so that little is lost with their magnitudes.

    q = s sign(gamma),  s = |gamma|^2 / |gamma|_1        0 counts as positive

<q, gamma> = |gamma|^2, so q keeps all of gamma along itself, and |q|^2 is pi/2 |gamma|^2 for normal coefficients: what
is lost is noise of 0.57 |gamma|^2. A bit in place of 32 allows for 32 times the directions, and the noise of a
projection is in proportion to d / K. Directions of signs are no random rotation: the mean over them of what comes back
is the change itself only where it has many entries. Of one with three entries it is off by 0.5 to 0.7 |Delta|.
"""

from typing import Any

import numpy as np

from fedseed.errors import MessageError
from fedseed.methods.payload import Content, Floats, Ragged, Reader, pack_numbers, unpack_numbers


def magnitude(gamma: Floats) -> np.float32:
    """Returns s of a block's coefficients, shape (K_l,); 0 if they all are; that of q is s again, bit for bit."""
    doubles = np.abs(gamma.astype(np.float64))
    largest = doubles.max(initial=0.0)
    if largest == 0:
        return np.float32(0)
    doubles /= largest
    return np.float32(largest * (np.square(doubles).sum() / doubles.sum()))


class RaggedBits(Ragged):
    """A tuple of arrays, read as q of each: all lengths (u32), all magnitudes (f32), then a bit for each element.

    The blocks' bits follow one another without a gap: 1 for positive, lowest first, zeros behind the last.
    """

    def held(self, value: Any, size: int) -> Content:
        return Content(scalars=len(value), bits=sum(map(len, value)))

    def write(self, value: Any) -> bytes:
        lengths = np.array([len(part) for part in value]).astype("<u4")
        scales = np.array([magnitude(part) for part in value]).astype("<f4")
        return lengths.tobytes() + scales.tobytes() + pack_numbers(np.concatenate(value) >= 0, 1)

    def read(self, reader: Reader) -> tuple[Floats, ...]:
        lengths = self.lengths(reader)
        scales = reader.array("f4", len(lengths))
        if (scales < 0).any():
            raise MessageError(f"the magnitude of block {int(np.argmax(scales < 0))} is negative")
        blocks = np.split(unpack_numbers(reader, 1, sum(lengths)), np.cumsum(lengths)[:-1])
        return tuple(np.where(block, s, -s) for block, s in zip(blocks, scales, strict=True))
