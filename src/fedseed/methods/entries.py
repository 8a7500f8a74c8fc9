"""What travels in top-k: which entries of a long vector are kept, and their values in a few bits."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError
from fedseed.methods.packing import (
    CHUNK,
    PLACE_BITS,
    Entrywise,
    Halves,
    Packed,
    Scattered,
    Small,
    check_places,
    chunks_of,
)  # fmt: skip
from fedseed.methods.payload import About, Floats, Payload, State
from fedseed.methods.sizes import of_entries


@dataclass(frozen=True)
class TopKState(State):
    """Which entries a message has.

    Args:
        share: of the entries of a chunk, that are sent.
    """

    share: float

    @property
    def chunks(self) -> int:
        """How many the vector has."""
        return chunks_of(self.layout.size)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """k of each chunk."""
        sizes = np.full(self.chunks, CHUNK)
        sizes[-1] = self.layout.size - CHUNK * (self.chunks - 1)
        return np.maximum(1, np.rint(self.share * sizes)).astype(np.int64)

    @property
    def entries(self) -> int:
        """All of them."""
        return int(self.counts.sum())


@dataclass(frozen=True)
class Kept(Payload):
    """An update: the entries that are kept of a change.

    Args:
        scales: of each chunk.
        places: of the entries, in their chunks.
        codes: their levels, less 1; the highest bit is set where the value is negative.
    """

    scales: Annotated[Floats, Halves("u2", "chunks")]
    places: Annotated[Small, Packed("entries", PLACE_BITS)]
    codes: Annotated[Small, Packed("entries", "bits", "scalars")]

    def check(self, about: About) -> None:
        """Places ascend, and scales are not negative."""
        if (self.scales < 0).any():
            raise MessageError(f"the scale of chunk {int(np.argmax(self.scales < 0))} is negative")
        check_places(about.lookup("counts"), self.places.numbers, about.state.layout.size)

    def values(self, counts: NDArray[np.int64]) -> Floats:
        """q, entry by entry; `counts`: entries of each chunk."""
        sign_bit = 1 << (self.codes.width - 1)
        levels = (self.codes.numbers & (sign_bit - 1)).astype(np.float32) + np.float32(1)
        signed = np.where(self.codes.numbers & sign_bit, -levels, levels)
        with np.errstate(over="ignore"):  # infinite entries are refused, or not taken, as all huge ones are (`size`)
            return signed * np.repeat(self.scales, counts)

    def entries(self, counts: NDArray[np.int64]) -> Scattered:
        """The same with their places."""
        return Scattered(counts.astype(np.uint16), self.places.numbers, self.values(counts))

    def size(self, about: About) -> float:
        """The root of the mean square that the weights are moved by, at a global rate of 1."""
        return of_entries(about.state.layout, self.values(about.lookup("counts")))

    def numbers(self, about: About) -> NDArray[np.int8]:
        """The values' signs."""
        return np.where(self.codes.numbers & 1 << (self.codes.width - 1), -1, 1).astype(np.int8)

    def with_numbers(self, numbers: NDArray[Any], about: About) -> "Kept":
        """With other signs, and the same levels."""
        sign_bit = 1 << (self.codes.width - 1)
        codes = np.where(numbers < 0, self.codes.numbers | sign_bit, self.codes.numbers & (sign_bit - 1))
        return Kept(self.scales, self.places, Small(codes.astype(np.uint16), self.codes.width))


@dataclass(frozen=True)
class Combined(Payload):
    """A step: the entries that any client has sent, combined; none at all: nobody answered."""

    entries: Annotated[Scattered, Entrywise()]

    def size(self, about: About) -> float:
        """As of an update."""
        return of_entries(about.state.layout, self.entries.values)
