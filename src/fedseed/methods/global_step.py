"""What becomes of a round's sum over directions, other than w <- w - eta_g D: settings that Ferret is given.

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

from abc import abstractmethod
from collections.abc import Sequence
from math import fsum
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from fedseed.methods.base import Method
from fedseed.methods.coefficients import FerretState, FerretStep
from fedseed.optimizers.rules import Rule
from fedseed.optimizers.squares import Squares, square
from fedseed.randomness import Basis
from fedseed.weights.change import Add, Change, Floats, Optimize, Rounding, Term


class GlobalStep(Method):
    """Settings of the step that a round's coefficients make.

    Args:
        global_rate: eta_g, the rate of the step that the answers make.
        server: what it is given to: "average" (as published), "momentum", "nesterov" or "adam" (4 or 8 bytes of
            memory per parameter, of everybody who holds the model; a replay restores its averages).
        server_beta1: decay of the average change, for momentum and Adam.
        server_beta2: decay of the average squared change, for Adam and block_rate = "rms".
        server_eps: Adam's tau, and that of the blocks' rates: how adaptive they are.
        block_rate: each block's change is divided by the root of its mean squares so far: "adagrad" (their sum),
            "rms" (an average); then eta_g is about how far an entry moves in the first step. "same": it is not.
    """

    global_rate: PositiveFloat = 1.0
    server: Literal["average", "momentum", "nesterov", "adam"] = "average"
    server_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    server_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    server_eps: PositiveFloat = 1e-3
    block_rate: Literal["same", "adagrad", "rms"] = "same"

    @model_validator(mode="after")
    def _divided_once(self) -> "GlobalStep":
        if self.server == "adam" and self.block_rate != "same":
            raise ValueError(f'block_rate = "{self.block_rate}": server = "adam" gives each entry a rate already')
        return self

    @property
    def _beta(self) -> float | None:
        return self.server_beta2 if self.block_rate == "rms" else None

    @abstractmethod
    def directions_of(self, seed: int) -> Basis:
        """The basis of a seed."""

    def squares_after(self, state: FerretState, step: FerretStep) -> Squares:
        """What is known of |D_l|^2 / d_l after a step."""
        if self.block_rate == "same" or not step.parts:
            return state.squares
        basis, found = self.directions_of(0), []
        for block, size in enumerate(state.layout.block_sizes):
            scalars = [part.gammas[block] for part in step.parts]
            found.append(fsum(basis.variance(size) * len(g) * square(g) for g in scalars) / size)
        return state.squares.take(found, self._beta)

    def moved(self, state: FerretState, step: FerretStep, rounding: Rounding | None) -> Change:
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
