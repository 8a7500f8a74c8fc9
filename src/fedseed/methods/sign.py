"""Sign with error feedback: a bit for each entry of the local change, and a scale for each 4,096 of them.

EF-signSGD (Karimireddy, Rebjock, Stich, Jaggi: "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
ICML 2019, Algorithm 1), with a round's change in place of a gradient. A client i remembers e_i, first 0:

    Delta_i  = w_start - w_end                   after T local optimiser steps
    p        = e_i + Delta_i
    q        = s sign(p),  s = |p|_1 / n         for each chunk of n = 4,096 entries; 0 counts as positive
    e_i     <- beta (p - q)                      error feedback; with beta = 1 nothing is lost
    w       <- w - eta_g sum_i c_i q_i           the mean of the clients' scaled signs

With `every` = n, every nth chunk is sent in a round, all of them in n rounds: bytes / n. What waits is remembered.

    up           4 bytes (which chunks), 2 bytes a chunk (s, a bfloat16), a bit an entry
    down         the same and 4 bytes (c_i) for each client that has answered
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from fedseed.methods.base import Answers
from fedseed.methods.feedback import Feedback
from fedseed.methods.packing import CHUNK, halved
from fedseed.methods.payload import Floats, State
from fedseed.methods.signs import Signed, Signs, SignStep, Weighted, chosen, entries_in, turn_of
from fedseed.weights.change import NOTHING, Change, Entries, Patch

_TOGETHER = 64  # chunks worked on at a time
_ROW = CHUNK // 8  # bytes of a chunk's signs


class Sign(Feedback):
    """Sign's settings.

    Args (besides those of `Feedback`):
        every: a chunk of 4,096 entries is sent in each so many rounds.
    """

    name: Literal["sign"] = "sign"
    code: ClassVar[int] = 15
    about: ClassVar[str] = "a bit for each entry of each client's change, scaled, with error feedback (EF-signSGD)"
    update_type, step_type = Signed, SignStep

    every: PositiveInt = 1

    def compressed(self, state: State, vector: Floats, round: int) -> Signed:
        """s and sign(p), chunk by chunk."""
        turn = turn_of(round, self.every)
        chunks = chosen(turn, self.every, len(vector))
        scales, bits = [], []
        for chunk in chunks:
            part = vector[chunk * CHUNK : (chunk + 1) * CHUNK]
            scales.append(np.abs(part).mean(dtype=np.float64))
            bits.append(np.packbits(part >= 0, bitorder="little"))
        together = np.concatenate(bits) if bits else np.zeros(0, dtype=np.uint8)
        return Signed(Signs(turn, halved(np.array(scales)), together, entries_in(chunks, len(vector))))

    def sent(self, state: State, update: Signed, round: int) -> list[Patch]:
        """q, as everybody will read it."""
        return list(self._patches([(1.0, update.signs)], state.layout.size))

    def aggregate(self, state: State, answers: Answers) -> SignStep:
        """All answers, with their weights c_i."""
        return SignStep(tuple(Weighted(weight, update.signs) for _, weight, update in answers))

    def change(self, state: State, step: SignStep) -> Change:
        """w <- w - eta_g sum_i c_i q_i, on the round's chunks."""
        parts = [(float(np.float32(part.weight)), part.signs) for part in step.parts]
        return Entries(list(self._patches(parts, state.layout.size)), -self.global_rate) if parts else NOTHING

    def _patches(self, parts: Sequence[tuple[float, Signs]], size: int) -> Iterator[Patch]:
        """sum_i c_i s_i sign_i: summed up in double precision in the order of the parts, some chunks at a time."""
        chunks = chosen(parts[0][1].turn, self.every, size)
        for lo in range(0, len(chunks), _TOGETHER):
            some = chunks[lo : lo + _TOGETHER]
            count = entries_in(some, size)
            total = np.zeros(count)
            for weight, signs in parts:
                bits = np.unpackbits(signs.bits[lo * _ROW : (lo + len(some)) * _ROW], count=count, bitorder="little")
                scales = weight * signs.scales[lo : lo + len(some)].astype(np.float64)
                total += np.where(bits, 1.0, -1.0) * np.repeat(scales, CHUNK)[:count]
            values = total.astype(np.float32)
            if self.every == 1:
                yield Patch(some[0] * CHUNK, values)
            else:
                yield from (Patch(c * CHUNK, values[i * CHUNK : (i + 1) * CHUNK]) for i, c in enumerate(some))

    @property
    def incomparable(self) -> str | None:
        """Signs are passed on, not combined."""
        return "the signs of all clients are passed on as they are, each with scales of its own"
