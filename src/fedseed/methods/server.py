"""Server optimisers and rates of blocks. They apply to D, the change that results from a round's
answers.

    server       average    w <- w - eta_g D
                 momentum   m <- beta1 m + D;                   w <- w - eta_g m    FedAvgM
                 nesterov   m <- beta1 m + D;                   w <- w - eta_g (D + beta1 m)
                 adam       m <- beta1 m + (1 - beta1) D,                           FedAdam
                            v <- beta2 v + (1 - beta2) D^2;     w <- w - eta_g m / (sqrt(v) + tau)
    block_rate   adagrad    s_l <- s_l + |D_l|^2 / d_l;         D_l over sqrt(s_l) + tau
                 rms        s_l <- beta2 s_l + (1 - beta2) |D_l|^2 / d_l, over 1 - beta2^t;
                                                                D_l over sqrt(s_l) + tau

momentum: Hsu, Qi, Brown, 2019. adam: Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2; its averages are not bias-corrected. `fedseed.optimizers` has the rules. For methods
that send weights, the change has the other sign: w <- w + eta_g D.

Every party can estimate |D_l|^2 of block l from the coefficients alone, because E |gamma_l|^2 =
|D_l|^2 / (rho_l K_l). So the L rates of blocks need not be sent. D^2 of a single entry is mostly
noise of the projection.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from fedseed.methods.base import Method
from fedseed.methods.payload import Floats, State
from fedseed.optimizers.rules import Rule, Squares, square
from fedseed.randomness import Basis
from fedseed.weights.change import Add, Change, Optimize, Rounding, Term

# the coefficients of a step for each block, with their directions
Parts = Sequence[tuple[Basis, Sequence[Floats]]]


class ServerOptimization(Method):
    """Settings of a server's optimiser.

    Args:
        server: the optimiser that applies the change from the answers; "average" is published.
        server_beta1: decay of the average change, for momentum and Adam.
        server_beta2: decay of the average squared change, for Adam and block_rate = "rms".
        server_eps: tau of Adam and of the blocks' rates; smaller values make them more adaptive.
    """

    server: Literal["average", "momentum", "nesterov", "adam"] = "average"
    server_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    server_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    server_eps: PositiveFloat = 1e-3

    def server_rule(self, rate: float) -> Rule:
        """Return the optimiser's rule; `server` must not be "average"."""
        assert self.server != "average"
        return Rule(
            self.server,
            rate,
            self.server_beta1,
            self.server_beta2,
            self.server_eps,
            corrected=False,
        )


@dataclass(frozen=True)
class BlockState(State):
    """The state: the accumulated squares of the blocks' changes."""

    squares: Squares = field(default_factory=Squares)


class BlockRates(ServerOptimization):
    """Settings of methods whose steps are coefficients on directions in blocks.

    Besides the arguments of `ServerOptimization`:

    Args:
        global_rate: eta_g, the rate of the step made from the answers.
        block_rate: divide each block's change by the root of its past mean squares: "adagrad" uses
            their sum, "rms" their average. eta_g is then about the distance that an entry moves in
            the first step. "same": no division.
    """

    global_rate: PositiveFloat = 1.0
    block_rate: Literal["same", "adagrad", "rms"] = "same"

    @model_validator(mode="after")
    def _divided_once(self) -> "BlockRates":
        if self.server == "adam" and self.block_rate != "same":
            raise ValueError(
                f'block_rate = "{self.block_rate}": server = "adam" already gives each entry '
                "its own rate"
            )
        return self

    @property
    def _beta(self) -> float | None:
        if self.block_rate == "rms":
            return self.server_beta2
        return None

    def squares_after(self, state: BlockState, parts: Parts) -> Squares:
        """Return the accumulated |D_l|^2 / d_l after a step with these parts."""
        if self.block_rate == "same" or not parts:
            return state.squares
        squares = []
        for block, size in enumerate(state.layout.block_sizes):
            pairs = ((basis.variance(size), gammas[block]) for basis, gammas in parts)
            squares.append(fsum(rho * len(gamma) * square(gamma) for rho, gamma in pairs) / size)
        return state.squares.take(squares, self._beta)

    def descent(self, state: BlockState, parts: Parts, rounding: Rounding | None) -> Change:
        """Return the weights' change for D, the sum of the parts: w <- w - eta_g D, or the step of
        the server's optimiser.
        """
        if self.block_rate != "same":
            divisors = [
                root + self.server_eps
                for root in self.squares_after(state, parts).roots(self._beta)
            ]
            parts = [(basis, _divide_blocks(gammas, divisors)) for basis, gammas in parts]
        terms = [Term(basis, gammas) for basis, gammas in parts]
        if self.server == "average":
            return Add(terms, -self.global_rate, rounding)
        return Optimize(terms, self.server_rule(self.global_rate), rounding)


def _divide_blocks(gammas: Sequence[Floats], divisors: Sequence[float]) -> list[Floats]:
    """Return the coefficients of each block, divided by the block's divisor."""
    return [
        (gamma.astype(np.float64) / divisor).astype(np.float32)
        for gamma, divisor in zip(gammas, divisors, strict=True)
    ]
