"""Top-k: sends the largest entries of the local change with few bits each, and remembers the rest.

The compressor of SparseLoCo (Sarfi, Therien, Lidin, Belilovsky: "Communication Efficient LLM
Pre-training with SparseLoCo", 2025): top-k in chunks of 4,096 entries, 2-bit values, error
feedback. Client i remembers e_i, which starts at 0:

    Delta_i  = w_start - w_end                   after T local optimiser steps
    p        = e_i + Delta_i
    q        = Q(top_k(p))                       of each chunk the k entries of largest magnitude
    e_i     <- beta (p - q)                      error feedback; with beta = 1 nothing is lost
    w       <- w - eta_g sum_i c_i q_i

Q with b bits has for each entry a sign and a level from 1 to 2^(b - 1), and for each chunk a scale.
Starting from the scale max |p| / 2^(b - 1), it alternates between choosing the levels and fitting
the scale by least squares, as in Lloyd's algorithm.

    up           2 bytes for each chunk (its scale, a bfloat16); 12 bits (the place in its chunk)
                 and b bits for each entry
    down         2 bytes for each chunk (a count); 12 bits and a bfloat16 for each entry that any
                 client has sent
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedseed.aggregation.base import Parts
from fedseed.errors import MessageError
from fedseed.methods.base import Answers
from fedseed.methods.feedback import CHUNK, TOGETHER, Feedback, Scales, round_to_brain
from fedseed.methods.payload import (
    Counts,
    DecodeContext,
    Floats,
    Halves,
    Packed,
    Payload,
    Reader,
    Small,
    State,
    move_size,
)
from fedseed.weights.change import NOTHING, Change, Entries, Patch

PLACE_BITS = 12  # bits of a place in a chunk
_TURNS = 3  # iterations of Lloyd's algorithm

Places = NDArray[np.uint16]


def indices(counts: NDArray[Any], places: Places) -> NDArray[np.int64]:
    """Return the positions of entries in the vector, given the number of entries in each chunk and
    their places in the chunk.
    """
    return np.repeat(np.arange(len(counts), dtype=np.int64) * CHUNK, counts) + places


def check_places(counts: NDArray[Any], places: Places, size: int) -> None:
    """Raise MessageError unless places ascend in each chunk and are inside the vector."""
    ascending = np.diff(places.astype(np.int32)) > 0
    ends = np.cumsum(counts, dtype=np.int64)[:-1]
    # a new chunk may begin with a smaller place
    ascending[ends[(ends > 0) & (ends < len(places))] - 1] = True
    if not ascending.all():
        index = int(np.flatnonzero(~ascending)[0]) + 1
        raise MessageError(f"entry {index} of {len(places)}: places in a chunk must ascend")
    rest = size - CHUNK * (len(counts) - 1)
    last = places[len(places) - int(counts[-1]) :]
    if len(last) and last[-1] >= rest:
        raise MessageError(f"place {last[-1]} in the last chunk, which has only {rest} entries")


def _entry_counts(context: DecodeContext) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = context.method.counts(context.state)
    return counts


def _entries(reader: Reader) -> int:
    return int(_entry_counts(reader.context).sum())


@dataclass(frozen=True)
class KeptEntries(Payload):
    """An update: the kept entries of a change."""

    scales: Annotated[
        Floats, Scales(lambda reader: len(_entry_counts(reader.context)))
    ]  # scale of each chunk
    # places of the entries in their chunks
    places: Annotated[Small, Packed(_entries, width=PLACE_BITS)]
    # the entries' levels minus 1; the highest bit is set for negative values
    codes: Annotated[Small, Packed(_entries, width="bits", kind="scalars")]

    def check(self, context: DecodeContext) -> None:
        check_places(_entry_counts(context), self.places.numbers, context.state.layout.size)

    def patch(self, counts: NDArray[np.int64]) -> Patch:
        """Return q as a patch. `counts`: the number of entries of each chunk."""
        sign_bit = 1 << (self.codes.width - 1)
        levels = (self.codes.numbers & (sign_bit - 1)).astype(np.float32) + np.float32(1)
        signed = np.where(self.codes.numbers & sign_bit, -levels, levels)
        # infinite entries need no check here: huge values are refused, or the step is not applied
        # (`size`)
        with np.errstate(over="ignore"):
            values = signed * np.repeat(self.scales, counts)
        return Patch(0, values, indices(counts, self.places.numbers))

    def size(self, context: DecodeContext) -> float:
        return _moved_by(self.patch(_entry_counts(context)).values, context)

    def numbers(self, context: DecodeContext) -> NDArray[np.int8]:
        return np.where(self.codes.numbers & 1 << (self.codes.width - 1), -1, 1).astype(np.int8)

    def with_numbers(self, numbers: NDArray[Any], context: DecodeContext) -> "KeptEntries":
        sign_bit = 1 << (self.codes.width - 1)
        codes = np.where(
            numbers < 0, self.codes.numbers | sign_bit, self.codes.numbers & (sign_bit - 1)
        )
        return KeptEntries(
            self.scales, self.places, Small(codes.astype(np.uint16), self.codes.width)
        )


def _count_of(reader: Reader) -> int:
    return int(reader.fields_read["counts"].sum(dtype=np.int64))


@dataclass(frozen=True)
class Combined(Payload):
    """A step: the combined entries that any client has sent, and their number in each chunk.

    It is empty if nobody answered.
    """

    counts: Annotated[
        NDArray[np.uint16],
        Counts("u2", lambda reader: len(_entry_counts(reader.context)), optional=True),
    ]
    # places of the entries within their chunks, ascending in each chunk
    places: Annotated[Small, Packed(_count_of, width=PLACE_BITS)]
    values: Annotated[Floats, Halves(_count_of)]  # values of the entries

    @classmethod
    def from_entries(
        cls, indices_in_vector: NDArray[np.int64], values: Floats, chunks: int
    ) -> "Combined":
        """Make a step from values at ascending indices of a vector with `chunks` chunks."""
        counts = np.bincount(indices_in_vector // CHUNK, minlength=chunks).astype(np.uint16)
        return cls(counts, Small((indices_in_vector % CHUNK).astype(np.uint16), PLACE_BITS), values)

    def check(self, context: DecodeContext) -> None:
        if len(self.counts):
            check_places(self.counts, self.places.numbers, context.state.layout.size)

    def size(self, context: DecodeContext) -> float:
        return _moved_by(self.values, context)


def _moved_by(values: Floats, context: DecodeContext) -> float:
    if len(values):
        return move_size(context.state.layout, float(np.square(values, dtype=np.float64).sum()))
    return 0.0


class TopK(Feedback):
    """Top-k's settings.

    Besides the arguments of `Feedback`:

    Args:
        share: the share of each chunk of 4,096 entries that is sent, k / 4,096; at least one entry.
        bits: b, the bits of each value, for its sign and its level.
    """

    name: Literal["topk"] = "topk"
    code: ClassVar[int] = 14
    about: ClassVar[str] = (
        "the largest entries of each client's change with 2 bits each, and error feedback "
        "(SparseLoCo)"
    )
    update_type, step_type = KeptEntries, Combined

    share: Annotated[float, Field(gt=0, le=1)] = 1 / 64
    bits: Annotated[int, Field(ge=1, le=8)] = 2

    def counts(self, state: State) -> NDArray[np.int64]:
        """Return k of each chunk."""
        size = state.layout.size
        return np.maximum(1, np.rint(self.share * np.diff([*range(0, size, CHUNK), size]))).astype(
            np.int64
        )

    def compress(self, state: State, vector: Floats, round: int) -> KeptEntries:
        scales, places, codes = [], [], []
        for rows, count in _chunks(vector, self.counts(state)):
            kept_places = np.sort(np.argpartition(np.abs(rows), -count, axis=1)[:, -count:], axis=1)
            values = np.take_along_axis(rows, kept_places, axis=1).astype(np.float64)
            scale, levels = quantized(np.abs(values), 1 << (self.bits - 1))
            scales.append(scale)
            places.append(kept_places.astype(np.uint16).ravel())
            codes.append((levels - 1 | (values < 0) << self.bits - 1).astype(np.uint16).ravel())
        packed_places = Small(np.concatenate(places), PLACE_BITS)
        return KeptEntries(
            round_to_brain(np.concatenate(scales)),
            packed_places,
            Small(np.concatenate(codes), self.bits),
        )

    def to_patches(self, state: State, update: KeptEntries) -> list[Patch]:
        return [update.patch(self.counts(state))]

    def aggregate(self, state: State, answers: Answers) -> Combined:
        """Combine the clients' entries, some chunks at a time.

        An entry that a client has not sent counts as 0.
        """
        if not answers:
            return Combined.from_entries(np.zeros(0, np.int64), np.zeros(0, np.float32), 0)
        counts = self.counts(state)
        patches = [update.patch(counts) for update in answers.updates]
        totals = answers.combine_parts(Parts(lambda: _dense_chunks(patches, state.layout.size)))
        positions, values = [], []
        for lo, total in zip(range(0, state.layout.size, TOGETHER * CHUNK), totals, strict=True):
            nonzero = np.flatnonzero(total)
            positions.append(nonzero + lo)
            values.append(total[nonzero].astype(np.float32))
        return Combined.from_entries(np.concatenate(positions), np.concatenate(values), len(counts))

    def change(self, state: State, step: Combined) -> Change:
        """w <- w - eta_g sum_i c_i q_i, on the entries that were sent."""
        if not len(step.counts):
            return NOTHING
        return Entries(
            [Patch(0, step.values, indices(step.counts, step.places.numbers))], -self.global_rate
        )


def _dense_chunks(patches: Sequence[Patch], size: int) -> Iterator[list[NDArray[np.float64]]]:
    """Yield a few chunks of each client's vector at a time."""
    for lo in range(0, size, TOGETHER * CHUNK):
        hi = min(lo + TOGETHER * CHUNK, size)
        dense = []
        for entries in patches:
            positions, values = entries.within(lo, hi)
            dense.append(np.zeros(hi - lo))
            dense[-1][positions] = values
        yield dense


def quantized(
    magnitudes: NDArray[np.float64], level_count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return Q of each row: the row's scale, and each entry's level from 1 to `level_count`."""
    least = np.finfo(np.float32).tiny
    scale = np.maximum(magnitudes.max(axis=1) / level_count, least)
    for _ in range(_TURNS):
        levels = np.clip(np.rint(magnitudes / scale[:, None]), 1, level_count)
        scale = np.maximum((magnitudes * levels).sum(axis=1) / np.square(levels).sum(axis=1), least)
    return scale, levels.astype(np.int64)


def _chunks(vector: Floats, counts: NDArray[np.int64]) -> Iterator[tuple[Floats, int]]:
    """Yield chunks of equal length as rows, and the number of entries to keep of each."""
    whole = len(vector) // CHUNK
    for lo in range(0, whole, TOGETHER):
        hi = min(whole, lo + TOGETHER)
        yield vector[lo * CHUNK : hi * CHUNK].reshape(-1, CHUNK), int(counts[0])
    if len(vector) % CHUNK:
        yield vector[None, whole * CHUNK :], int(counts[-1])
