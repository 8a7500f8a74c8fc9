"""Sign with error feedback: one bit for each entry of the local change, and one scale for every
4,096 entries.

EF-signSGD (Karimireddy, Rebjock, Stich, Jaggi: "Error Feedback Fixes SignSGD and other Gradient
Compression Schemes", ICML 2019, Algorithm 1), with a round's change in place of a gradient. Client
i remembers e_i, which starts at 0:

    p        = e_i + Delta_i                Delta_i = w_start - w_end, after T local optimiser steps
    q        = s sign(p),  s = |p|_1 / n    for each chunk of n = 4,096 entries; 0 counts as +
    e_i     <- beta (p - q)                 error feedback; with beta = 1 nothing is lost
    w       <- w - eta_g sum_i c_i q_i      the mean of the clients' scaled signs

With `every` = n, a round sends every nth chunk, so that n rounds send all chunks and the bytes of a
round are divided by n. Unsent chunks are remembered.

    up           4 bytes (which chunks), 2 bytes for each chunk (s, a bfloat16), a bit for each
                 entry
    down         the same plus 4 bytes (c_i), for each client that has answered
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt

from fedseed.errors import MessageError
from fedseed.methods.base import Answers
from fedseed.methods.feedback import CHUNK, TOGETHER, Feedback, Scales, chunks_of, round_to_brain
from fedseed.methods.payload import (
    Bits,
    DecodeContext,
    Floats,
    Many,
    Payload,
    Reader,
    Scalar,
    State,
    move_size,
)
from fedseed.weights.change import NOTHING, Change, Entries, Patch


def chunks_of_turn(turn: int, every: int, size: int) -> range:
    """Return the chunks of a turn."""
    return range(turn, chunks_of(size), every)


def entries_in(chunks: range, size: int) -> int:
    """Return the number of entries in these chunks. Only the vector's last chunk may be shorter."""
    short = -size % CHUNK if len(chunks) and chunks[-1] == chunks_of(size) - 1 else 0
    return len(chunks) * CHUNK - short


def _chunks_sent(reader: Reader) -> range:
    """Return the chunks in an update or in a part of a step.

    Raises:
        MessageError: the round asked for other chunks.
    """
    context, turn, every = (
        reader.context,
        reader.fields_read["turn"],
        reader.context.lookup("every"),
    )
    if turn >= every or (context.kind == "update" and turn != (context.round - 1) % every):
        raise MessageError(f"chunks {turn} modulo {every} do not belong to round {context.round}")
    return chunks_of_turn(turn, every, _size(reader))


def _size(reader: Reader) -> int:
    return reader.context.state.layout.size


@dataclass(frozen=True)
class Signed(Payload):
    """Scaled signs of some chunks: an update, or one client's part of a step, which also has c_i
    (`weight`).
    """

    weight: Annotated[float | None, Scalar("f4", payload_kind="step")] = field(
        default=None, kw_only=True
    )
    # the chunks whose number is this modulo `every`
    turn: Annotated[int, Scalar("u4")]
    # scale s of each chunk
    scales: Annotated[Floats, Scales(lambda reader: len(_chunks_sent(reader)))]
    signs: Annotated[
        NDArray[np.int8],
        Bits(lambda reader: entries_in(_chunks_sent(reader), _size(reader)), optional=False),
    ]

    def size(self, context: DecodeContext) -> float:
        return move_size(
            context.state.layout, float(np.square(self.scales, dtype=np.float64).sum()) * CHUNK
        )

    def numbers(self, context: DecodeContext) -> NDArray[np.int8]:
        return self.signs

    def with_numbers(self, numbers: NDArray[Any], context: DecodeContext) -> "Signed":
        return replace(self, signs=numbers)


@dataclass(frozen=True)
class SignStep(Payload):
    """A step: the updates of a round with their weights; empty if nobody answered."""

    parts: Annotated[tuple[Signed, ...], Many(Signed)]

    def check(self, context: DecodeContext) -> None:
        if len({part.turn for part in self.parts}) > 1:
            raise MessageError("a step whose parts have different chunks")

    def size(self, context: DecodeContext) -> float:
        """Return the largest possible size, which the step has if all signs are equal."""
        return sum(abs(part.weight or 0.0) * part.size(context) for part in self.parts)


class Sign(Feedback):
    """Sign's settings.

    Besides the arguments of `Feedback`:

    Args:
        every: number of rounds in which each chunk of 4,096 entries is sent once.
    """

    name: Literal["sign"] = "sign"
    code: ClassVar[int] = 15
    about: ClassVar[str] = (
        "a scaled sign bit for each entry of each client's change, with error feedback (EF-signSGD)"
    )
    update_type, step_type = Signed, SignStep
    incomparable = (
        "the signs of all clients are passed on unchanged, each client's with its own scales"
    )

    every: PositiveInt = 1

    def compress(self, state: State, vector: Floats, round: int) -> Signed:
        turn = (round - 1) % self.every
        chunks = [
            vector[c * CHUNK : (c + 1) * CHUNK]
            for c in chunks_of_turn(turn, self.every, len(vector))
        ]
        scales = round_to_brain(
            np.array([np.abs(chunk).mean(dtype=np.float64) for chunk in chunks])
        )
        positive = np.concatenate([np.zeros(0, dtype=bool), *(chunk >= 0 for chunk in chunks)])
        return Signed(turn, scales, np.where(positive, np.int8(1), np.int8(-1)))

    def to_patches(self, state: State, update: Signed) -> list[Patch]:
        return list(self._patches([update], state.layout.size))

    def aggregate(self, state: State, answers: Answers) -> SignStep:
        return SignStep(tuple(replace(update, weight=weight) for _, weight, update in answers))

    def change(self, state: State, step: SignStep) -> Change:
        """w <- w - eta_g sum_i c_i q_i, on the round's chunks."""
        if step.parts:
            return Entries(list(self._patches(step.parts, state.layout.size)), -self.global_rate)
        return NOTHING

    def _patches(self, parts: Sequence[Signed], size: int) -> Iterator[Patch]:
        """Yield sum_i c_i s_i sign_i, some chunks at a time, added up in double precision in the
        order of the parts.
        """
        chunks = chunks_of_turn(parts[0].turn, self.every, size)
        for lo in range(0, len(chunks), TOGETHER):
            group = chunks[lo : lo + TOGETHER]
            count = entries_in(group, size)
            total = np.zeros(count)
            for part in parts:
                weight = 1.0 if part.weight is None else float(np.float32(part.weight))
                scales = weight * part.scales[lo : lo + len(group)].astype(np.float64)
                total += part.signs[lo * CHUNK :][:count] * np.repeat(scales, CHUNK)[:count]
            if self.every == 1:
                apart = None
            else:
                apart = CHUNK * self.every * np.arange(len(group))[:, None] + np.arange(CHUNK)
            yield Patch(
                group[0] * CHUNK,
                total.astype(np.float32),
                None if apart is None else apart.ravel()[:count],
            )
