"""Coefficients on seeds' directions, block by block: what travels of them, and what becomes of the step they make.

In a bit each they are signs, and one magnitude for all of a block (Vargaftik et al., "DRIVE: One-bit Distributed Mean
Estimation", NeurIPS 2021, its Eq. for an unbiased scale): random rotations make entries alike, so that little is lost
with their magnitudes.

    q = s sign(gamma),  s = |gamma|^2 / |gamma|_1        0 counts as positive

<q, gamma> = |gamma|^2, so q keeps all of gamma along itself, and |q|^2 is pi/2 |gamma|^2 for normal coefficients: what
is lost is noise of 0.57 |gamma|^2. A bit in place of 32 allows for 32 times the directions, and the noise of a
projection is in proportion to d / K. Directions of signs are no random rotation: the mean over them of what comes back
is the change itself only where it has many entries. Of one with three entries it is off by 0.5 to 0.7 |Delta|.

D is the change that the round's coefficients make up, block by block D_l. `fedseed.optimizers` has the rules.

    server       average    w <- w - eta_g D
                 momentum   m <- beta1 m + D;                   w <- w - eta_g m              FedAvgM's
                 nesterov   m <- beta1 m + D;                   w <- w - eta_g (D + beta1 m)
                 adam       m <- beta1 m + (1 - beta1) D,
                            v <- beta2 v + (1 - beta2) D^2;     w <- w - eta_g m / (sqrt(v) + tau)    FedAdam's
    block_rate   adagrad    s_l <- s_l + |D_l|^2 / d_l;         D_l over sqrt(s_l) + tau
                 rms        s_l <- beta2 s_l + (1 - beta2) |D_l|^2 / d_l, over 1 - beta2^t;    the same

Of |D_l|^2 everybody knows an estimate from the coefficients alone, as E |gamma_l|^2 = |D_l|^2 / (rho_l K_l). So rates
of blocks are L numbers that no message carries. An entry's own D^2 is mostly noise of the projection.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, model_validator

from fedseed.errors import MessageError
from fedseed.methods.base import Method
from fedseed.methods.payload import (
    About,
    Codec,
    Content,
    Floats,
    Many,
    Payload,
    Ragged,
    Reader,
    Scalar,
    State,
    check_bits,
)  # fmt: skip
from fedseed.methods.summands import Summand, Vector, filled, moved
from fedseed.optimizers.rules import Rule, Squares, square
from fedseed.randomness import Basis
from fedseed.randomness.basis import MAX_RANK, MAX_SIZE
from fedseed.weights.change import Add, Change, Optimize, Rounding, Term


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

    numbers = Payload.numbers

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

    def held(self, value: Any, size: int) -> Content:
        return Content(scalars=len(value), bits=sum(map(len, value)))

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
        check_bits(data, total, "coefficients")
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


# -- the step ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockState(State):
    """What is known of the squares of blocks' changes."""

    squares: Squares = field(default_factory=Squares)


class Blockwise(Method):
    """Settings of directions, of coefficients that travel, and of the step that they make.

    Args:
        directions: K. For allocation "norm" the count of the block with the largest update, otherwise the total.
        basis: where directions come from. "truncated_normal" is published; "hadamard" tunes as well and costs the same
            for any number of directions (benchmarks/README.md).
        basis_rank: for "lowrank", how many outer products of signs a direction is, on each matrix.
        scalars: a coefficient in 4 bytes ("float32", as published) or in a "bit": its sign, and one magnitude for all
            of a block, up and down (`fedseed.methods.blockwise`).
        global_rate: eta_g, the rate of the step that the answers make.
        server: what it is given to: "average" (as published), "momentum", "nesterov" or "adam" (4 or 8 bytes of
            memory per parameter, of everybody who holds the model; a replay restores its averages).
        server_beta1: decay of the average change, for momentum and Adam.
        server_beta2: decay of the average squared change, for Adam and block_rate = "rms".
        server_eps: Adam's tau, and that of the blocks' rates: how adaptive they are.
        block_rate: each block's change is divided by the root of its mean squares so far: "adagrad" (their sum),
            "rms" (an average); then eta_g is about how far an entry moves in the first step. "same": it is not.
    """

    directions: Annotated[int, Field(ge=1, le=MAX_SIZE)] = 200
    basis: Literal["normal", "truncated_normal", "rademacher", "hadamard", "lowrank"] = "hadamard"
    basis_rank: Annotated[int, Field(ge=1, le=MAX_RANK)] = 1
    scalars: Literal["float32", "bit"] = "float32"
    global_rate: PositiveFloat = 1.0
    server: Literal["average", "momentum", "nesterov", "adam"] = "average"
    server_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    server_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    server_eps: PositiveFloat = 1e-3
    block_rate: Literal["same", "adagrad", "rms"] = "same"

    @model_validator(mode="after")
    def _divided_once(self) -> "Blockwise":
        if self.server == "adam" and self.block_rate != "same":
            raise ValueError(f'block_rate = "{self.block_rate}": server = "adam" gives each entry a rate already')
        return self

    @property
    def _beta(self) -> float | None:
        return self.server_beta2 if self.block_rate == "rms" else None

    @property
    def most(self) -> int:
        """The largest count a block can have."""
        return max(2, self.directions)

    def directions_of(self, seed: int) -> Basis:
        """The basis of a seed."""
        return Basis(self.basis, seed, self.most, self.basis_rank)

    def sent(self, seed: int, gammas: Sequence[Floats]) -> Coefficients:
        """Coefficients as they travel, block by block."""
        if self.scalars == "bit":
            return BitCoefficients(seed, tuple(map(one_bit, gammas)))
        return Coefficients(seed, tuple(gammas))

    @property
    def update_type(self) -> type[Coefficients]:  # type: ignore[override]
        return BitCoefficients if self.scalars == "bit" else Coefficients

    @property
    def step_type(self) -> type[CoefficientStep]:  # type: ignore[override]
        return BitStep if self.scalars == "bit" else CoefficientStep

    @property
    def needs_each(self) -> str | None:
        return 'scalars = "bit": each client has a magnitude of its own' if self.scalars == "bit" else self.incomparable

    def squares_after(self, state: BlockState, step: CoefficientStep) -> Squares:
        """What is known of |D_l|^2 / d_l after a step."""
        if self.block_rate == "same" or not step.parts:
            return state.squares
        basis, found = self.directions_of(0), []
        for block, size in enumerate(state.layout.block_sizes):
            scalars = [part.gammas[block] for part in step.parts]
            found.append(fsum(basis.variance(size) * len(g) * square(g) for g in scalars) / size)
        return state.squares.take(found, self._beta)

    def moved(self, state: BlockState, step: CoefficientStep, rounding: Rounding | None) -> Change:
        """w <- w - eta_g times what the settings make of the step's sum."""
        parts: list[Sequence[Floats]] = [part.gammas for part in step.parts]
        if self.block_rate != "same":
            over = [root + self.server_eps for root in self.squares_after(state, step).roots(self._beta)]
            parts = [
                [(g.astype(np.float64) / by).astype(np.float32) for g, by in zip(gammas, over, strict=True)]
                for gammas in parts
            ]
        terms = [Term(self.directions_of(part.seed), g) for part, g in zip(step.parts, parts, strict=True)]
        if self.server == "average":
            return Add(terms, -self.global_rate, rounding)
        betas = self.server_beta1, self.server_beta2
        return Optimize(terms, Rule(self.server, self.global_rate, *betas, self.server_eps, False), rounding)
