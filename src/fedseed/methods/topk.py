"""Top-k: the largest entries of the local change, in few bits each; what is not sent is remembered.

The compressor of SparseLoCo (Sarfi, Therien, Lidin, Belilovsky: "Communication Efficient LLM Pre-training with
SparseLoCo", 2025): top-k in chunks of 4,096 entries, 2-bit values, error feedback. A client i remembers e_i, first 0:

    Delta_i  = w_start - w_end                   after T local optimiser steps
    p        = e_i + Delta_i
    q        = Q(top_k(p))                       of each chunk the k entries of largest magnitude
    e_i     <- beta (p - q)                      error feedback; with beta = 1 nothing is lost
    w       <- w - eta_g sum_i c_i q_i

Q, with b bits: a sign and a level from 1 to 2^(b - 1), times a scale for each chunk. From max |p| / 2^(b - 1) on,
levels and the scale that fits them best in least squares take turns, as in Lloyd's algorithm.

    up           2 bytes a chunk (its scale, a bfloat16), 12 bits (the place in its chunk) and b bits an entry
    down         2 bytes a chunk (a count), 12 bits and a bfloat16 for each entry that any of the clients has sent
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedseed.aggregation.base import Parts
from fedseed.errors import MessageError
from fedseed.methods.base import Answers
from fedseed.methods.feedback import Feedback
from fedseed.methods.packing import (
    CHUNK,
    PLACE_BITS,
    EntriesCodec,
    Halves,
    Packed,
    Scattered,
    Small,
    check_places,
    chunks_of,
    halved,
    nothing,
    scattered,
)  # fmt: skip
from fedseed.methods.payload import About, Floats, Payload, State
from fedseed.methods.summands import of_entries
from fedseed.weights.change import NOTHING, Change, Entries, Patch
from fedseed.weights.layout import Layout


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
class KeptEntries(Payload):
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
        return of_entries(about.state.layout, self.values(about.lookup("counts")))

    def numbers(self, about: About) -> NDArray[np.int8]:
        return np.where(self.codes.numbers & 1 << (self.codes.width - 1), -1, 1).astype(np.int8)

    def with_numbers(self, numbers: NDArray[Any], about: About) -> "KeptEntries":
        sign_bit = 1 << (self.codes.width - 1)
        codes = np.where(numbers < 0, self.codes.numbers | sign_bit, self.codes.numbers & (sign_bit - 1))
        return KeptEntries(self.scales, self.places, Small(codes.astype(np.uint16), self.codes.width))


@dataclass(frozen=True)
class Combined(Payload):
    """A step: the entries that any client has sent, combined; none at all: nobody answered."""

    entries: Annotated[Scattered, EntriesCodec()]

    def size(self, about: About) -> float:
        return of_entries(about.state.layout, self.entries.values)


_TURNS = 3  # of Lloyd's algorithm
_TOGETHER = 64  # chunks worked on at a time


class TopK(Feedback):
    """Top-k's settings.

    Args (besides those of `Feedback`):
        share: of each chunk of 4,096 entries, how much is sent: k / 4,096; at least one entry is.
        bits: b, for each value: its sign and its level.
    """

    name: Literal["topk"] = "topk"
    code: ClassVar[int] = 14
    about: ClassVar[str] = "the largest entries of each client's change in 2 bits each, error feedback (SparseLoCo)"
    update_type, step_type = KeptEntries, Combined

    share: Annotated[float, Field(gt=0, le=1)] = 1 / 64
    bits: Annotated[int, Field(ge=1, le=8)] = 2

    def start(self, layout: Layout, seed: int) -> TopKState:
        return TopKState(layout, seed, self.share)

    def compressed(self, state: TopKState, vector: Floats, round: int) -> KeptEntries:
        scales, places, codes = [], [], []
        for rows, kept in _chunks(vector, state):
            where = np.sort(np.argpartition(np.abs(rows), -kept, axis=1)[:, -kept:], axis=1)
            chosen = np.take_along_axis(rows, where, axis=1).astype(np.float64)
            scale, levels = quantized(np.abs(chosen), 1 << (self.bits - 1))
            scales.append(scale)
            places.append(where.astype(np.uint16).ravel())
            codes.append((levels - 1 | (chosen < 0) << self.bits - 1).astype(np.uint16).ravel())
        which = Small(np.concatenate(places), PLACE_BITS)
        return KeptEntries(halved(np.concatenate(scales)), which, Small(np.concatenate(codes), self.bits))

    def sent(self, state: TopKState, update: KeptEntries, round: int) -> list[Patch]:
        entries = update.entries(state.counts)
        return [Patch(0, entries.values, entries.indices)]

    def aggregate(self, state: TopKState, answers: Answers) -> Combined:
        """The clients' entries combined, some chunks at a time; an entry that a client has not sent is 0 there."""
        if not answers:
            return Combined(nothing())
        sent = [update.entries(state.counts) for update in answers.updates]
        totals = answers.combine_parts(Parts(lambda: _dense(sent, state.layout.size)))
        indices, values = [], []
        for lo, total in zip(range(0, state.layout.size, _TOGETHER * CHUNK), totals, strict=True):
            found = np.flatnonzero(total)
            indices.append(found + lo)
            values.append(total[found].astype(np.float32))
        return Combined(scattered(np.concatenate(indices), np.concatenate(values), state.chunks))

    def change(self, state: TopKState, step: Combined) -> Change:
        """w <- w - eta_g sum_i c_i q_i, on the entries that were sent."""
        if not len(step.entries.counts):
            return NOTHING
        return Entries([Patch(0, step.entries.values, step.entries.indices)], -self.global_rate)


def _dense(sent: Sequence[Scattered], size: int) -> Iterator[list[NDArray[np.float64]]]:
    """Some chunks of each client's vector at a time."""
    for lo in range(0, size, _TOGETHER * CHUNK):
        hi = min(lo + _TOGETHER * CHUNK, size)
        dense = []
        for entries in sent:
            a, b = np.searchsorted(entries.indices, (lo, hi))
            dense.append(np.zeros(hi - lo))
            dense[-1][entries.indices[a:b] - lo] = entries.values[a:b]
        yield dense


def quantized(magnitudes: NDArray[np.float64], most: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Q of each row: its scale, and each entry's level from 1 to `most`."""
    least = np.finfo(np.float32).tiny
    scale = np.maximum(magnitudes.max(axis=1) / most, least)
    for _ in range(_TURNS):
        levels = np.clip(np.rint(magnitudes / scale[:, None]), 1, most)
        scale = np.maximum((magnitudes * levels).sum(axis=1) / np.square(levels).sum(axis=1), least)
    return scale, levels.astype(np.int64)


def _chunks(vector: Floats, state: TopKState) -> Iterator[tuple[Floats, int]]:
    """Chunks of one length as rows, and how many entries are kept of each."""
    whole = len(vector) // CHUNK
    for lo in range(0, whole, _TOGETHER):
        hi = min(whole, lo + _TOGETHER)
        yield vector[lo * CHUNK : hi * CHUNK].reshape(-1, CHUNK), int(state.counts[0])
    if len(vector) % CHUNK:
        yield vector[whole * CHUNK :].reshape(1, -1), int(state.counts[-1])
