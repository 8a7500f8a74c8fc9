"""Zeroth-order methods whose round is one optimiser step, along directions that the step's number names.

With "hadamard", B steps in a row share a basis number, so that a replay merges them into one pass.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from fedseed.methods.base import State
from fedseed.methods.zeroth import ZerothOrder
from fedseed.optimizers.rules import Rule
from fedseed.weights.change import NOTHING, Add, Change, Floats, Optimize, Rebuild, Term
from fedseed.weights.layout import Layout


@dataclass(frozen=True)
class StepState(State):
    """How many steps are done, which names the next directions, and for "from-base" all coefficients so far."""

    done: int = 0
    coefficients: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float32))


class Stepwise(ZerothOrder):
    """Settings of step-by-step methods, and what their coefficients do to the weights.

    Args (besides those of `ZerothOrder`):
        optimizer: what the update, as a gradient, is given to: "sgd" (the methods as published), "momentum" or "adam"
            (`fedseed.optimizers`; 4 or 8 bytes of memory per parameter; a replay restores its averages).
        beta1: decay of the average gradient, for momentum and Adam.
        beta2: decay of the average squared gradient, for Adam.
        adam_eps: keeps Adam's denominator away from zero.
    """

    stepwise: ClassVar[bool] = True

    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    adam_eps: PositiveFloat = 1e-8

    @model_validator(mode="after")
    def _base_needs_plain_steps(self) -> "Stepwise":
        if self.optimizer != "sgd" and self.from_base:
            raise ValueError(
                f'small_steps = "from-base" needs optimizer = "sgd": a step of {self.optimizer} is no sum of '
                'coefficients; "stochastic" loses no small steps either'
            )
        return self

    @property
    def per_step(self) -> int:
        """Directions a step takes."""
        return 1

    def indices(self, number: int) -> range:
        """Indices of the directions of step `number`."""
        return range((number - 1) * self.per_step, number * self.per_step)

    def start(self, layout: Layout, seed: int) -> StepState:
        """The state before the first step."""
        return StepState(layout, seed)

    def count(self, state: StepState, coefficients: np.ndarray[Any, Any]) -> StepState:
        """The state after a step with these coefficients (none: nobody answered)."""
        kept = state.coefficients
        if self.from_base:
            new = np.zeros(self.per_step, dtype=np.float32)
            new[: len(coefficients)] = coefficients
            new *= np.float32(self.factor(state.done + 1))  # of a schedule: they meet under one rate
            kept = np.concatenate([kept, new])
        return replace(state, done=state.done + 1, coefficients=kept)

    def descent(self, state: StepState, coefficients: np.ndarray[Any, Any]) -> Change:
        """w <- w - eta sum_i c_i z_i along the directions of the step after `state`."""
        if not len(coefficients):
            return NOTHING
        basis = self.directions(state.seed)
        if self.from_base:
            return Rebuild([Term(basis, self.count(state, coefficients).coefficients)], scale=-self.learning_rate)
        return self.descent_along(state, [Term(basis, coefficients, state.done * self.per_step)])

    def descent_along(self, state: StepState, terms: list[Term]) -> Change:
        """w <- w - eta (sum of the terms), by the optimiser, rounded as the settings say."""
        if not terms:
            return NOTHING
        rounding, rate = self.rounding(state.seed, state.done), self.rate(state.done + 1)
        if self.optimizer == "sgd":
            return Add(terms, scale=-rate, rounding=rounding)
        return Optimize(terms, Rule(self.optimizer, rate, self.beta1, self.beta2, self.adam_eps), rounding)
