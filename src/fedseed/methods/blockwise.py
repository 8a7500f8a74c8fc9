"""Methods whose step is a sum over directions, block by block: settings, and what becomes of the sum.

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
from dataclasses import dataclass, field
from itertools import pairwise
from math import fsum
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, model_validator

from fedseed.methods.base import Method
from fedseed.methods.coefficients import BitCoefficients, BitStep, Coefficients, CoefficientStep, one_bit
from fedseed.methods.payload import State
from fedseed.optimizers.rules import Rule, Squares, square
from fedseed.randomness import Basis
from fedseed.randomness.basis import MAX_RANK, MAX_SIZE
from fedseed.randomness.matrices import Matrices
from fedseed.weights.change import Add, Change, Floats, Optimize, Rounding, Term
from fedseed.weights.layout import Layout

EXACT_LIMIT = 512  # K_l^2 inner products of length d_l and K_l^2 numbers of memory are needed
GRAM_PIECE = 1 << 17  # elements of each direction held at a time


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
            of a block, up and down (`fedseed.methods.coefficients`).
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
    def unsummable(self) -> str | None:
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


def least_squares(layout: Layout, basis: Basis, products: Sequence[Floats]) -> list[Floats]:
    """(V^T V)^-1 V^T Delta of each block, in double precision.

    Args:
        layout: the blocks.
        basis: the directions.
        products: V^T Delta of each block.

    Raises:
        ValueError: more than EXACT_LIMIT directions.
    """
    blocks = enumerate(pairwise(layout.boundaries))
    return [_least_squares(basis, block, products[block], a, b, layout.matrices) for block, (a, b) in blocks]


def _least_squares(
    basis: Basis, block: int, products: Floats, start: int, stop: int, matrices: Matrices | None
) -> Floats:
    """gamma = (V^T V)^-1 V^T Delta, in double precision.

    Args:
        basis: the directions.
        block: the block's number, for errors.
        products: V^T Delta, shape (K_l,).
        start: where the block begins in the parameter vector.
        stop: where it ends.
        matrices: where the vector's matrices lie.

    Raises:
        ValueError: more than EXACT_LIMIT directions.
    """
    count = len(products)
    if count > EXACT_LIMIT:
        raise ValueError(f"exact: {count} directions in block {block}; at most {EXACT_LIMIT} are possible")
    gram = np.zeros((count, count))
    for a in range(start, stop, GRAM_PIECE):
        b = min(a + GRAM_PIECE, stop)
        v = np.stack([basis.direction(k, a, b, stop - start, matrices) for k in range(count)]).astype(np.float64)
        gram += v @ v.T
    solution: NDArray[np.floating] = np.linalg.lstsq(gram, products.astype(np.float64), rcond=None)[0]
    return solution.astype(np.float32)
