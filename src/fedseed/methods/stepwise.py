"""Zeroth-order methods whose round is one optimiser step, along directions that the step's number names.

What a step's coefficients c_i are divided by (`divide_by`), all of it known from the coefficients alone:

    deviation   sigma = eps std(n c_1, ..., n c_n), that of the losses at w + eps z_i         FZOO
    scalar      sqrt(v) + zeta,  v <- beta2 v + (1 - beta2) (sum_i c_i)^2, over 1 - beta2^t   MEAZO

FZOO: Dang et al., arXiv 2506.09034. MEAZO: Dbouk et al., "On Adaptivity in Zeroth-Order Optimization", 2605.03869.

With "hadamard", B steps in a row share a basis number, so that a replay merges them into one pass.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from fedseed.methods.base import State
from fedseed.methods.zeroth import ZerothOrder
from fedseed.optimizers.rules import Rule
from fedseed.optimizers.squares import Squares, deviation, total
from fedseed.weights.change import NOTHING, Add, Change, Floats, Optimize, Rebuild, Term
from fedseed.weights.layout import Layout


@dataclass(frozen=True)
class StepState(State):
    """How many steps are done, which names the next directions, and what of them is remembered.

    Args:
        done: steps.
        coefficients: for "from-base": of all directions so far, at their rates and as far as they have decayed.
        squares: for divide_by = "scalar".
    """

    done: int = 0
    squares: Squares = field(default_factory=Squares)
    coefficients: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float32))


class Stepwise(ZerothOrder):
    """Settings of step-by-step methods, and what their coefficients do to the weights.

    Args (besides those of `ZerothOrder`):
        optimizer: what the update, as a gradient, is given to: "sgd" (the methods as published), "momentum",
            "nesterov" or "adam" (`fedseed.optimizers`; 4 or 8 bytes of memory per parameter; a replay restores its
            averages).
        beta1: decay of the average gradient, for momentum and Adam.
        beta2: decay of the average squared gradient, for Adam and divide_by = "scalar".
        adam_eps: keeps their denominators away from zero.
        divide_by: what a step's coefficients are divided by: "deviation", that of the losses along its directions, of
            which it needs several (FZOO; a step whose losses are all alike does nothing); "scalar", the root of an
            average of their squared sum (MEAZO); "nothing". Each needs a learning rate of its own.
        decay: the share of the distance from the base that each step forgets, before it moves; for "from-base".
    """

    stepwise: ClassVar[bool] = True

    later: ClassVar[frozenset[str]] = frozenset({"divide_by", "decay"})

    optimizer: Literal["sgd", "momentum", "nesterov", "adam"] = "sgd"
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    adam_eps: PositiveFloat = 1e-8
    divide_by: Literal["nothing", "deviation", "scalar"] = "nothing"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _base_needs_plain_steps(self) -> "Stepwise":
        if self.optimizer != "sgd" and self.from_base:
            raise ValueError(
                f'small_steps = "from-base" needs optimizer = "sgd": a step of {self.optimizer} is no sum of '
                'coefficients; "stochastic" loses no small steps either'
            )
        if self.decay and not self.from_base:
            raise ValueError(f'decay = {self.decay} needs small_steps = "from-base": past coefficients must be at hand')
        if self.divide_by == "deviation" and not self.several:
            raise ValueError('divide_by = "deviation" needs several directions a step, of which this has one')
        return self

    @property
    def per_step(self) -> int:
        """Directions a step takes."""
        return 1

    @property
    def several(self) -> bool:
        """Whether a step has more than one direction."""
        return self.per_step > 1

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
            new[: len(coefficients)] = self.divided(state, coefficients)
            if self.decay and len(coefficients):  # a step that nobody answered leaves the weights as they are
                kept = kept * np.float32(1 - self.decay)
            new *= np.float32(self.factor(state.done + 1))  # of a schedule: they meet under one rate
            kept = np.concatenate([kept, new])
        squares = self.squares_after(state, coefficients)
        return replace(state, done=state.done + 1, coefficients=kept, squares=squares)

    def squares_after(self, state: StepState, coefficients: np.ndarray[Any, Any]) -> Squares:
        """What is known of the squared sum of coefficients after a step with these."""
        if self.divide_by != "scalar" or not len(coefficients):
            return state.squares
        mean = total(coefficients)
        return state.squares.take([mean * mean], self.beta2)

    def divided(self, state: StepState, coefficients: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The coefficients of the step after `state`, as `divide_by` says."""
        if self.divide_by == "nothing" or not len(coefficients):
            return coefficients
        if self.divide_by == "scalar":
            (root,) = self.squares_after(state, coefficients).roots(self.beta2)
            by = root + self.adam_eps
        else:
            by = self.scale * len(coefficients) * deviation(coefficients)
        doubles = coefficients.astype(np.float64)
        return (doubles / by if by else np.zeros_like(doubles)).astype(np.float32)

    def descent(self, state: StepState, coefficients: np.ndarray[Any, Any]) -> Change:
        """w <- w - eta sum_i c_i z_i along the directions of the step after `state`."""
        if not len(coefficients):
            return NOTHING
        basis = self.directions(state.seed)
        if self.from_base:
            return Rebuild([Term(basis, self.count(state, coefficients).coefficients)], scale=-self.learning_rate)
        divided = self.divided(state, coefficients)
        return self.descent_along(state, [Term(basis, divided, state.done * self.per_step)])

    def descent_along(self, state: StepState, terms: list[Term]) -> Change:
        """w <- w - eta (sum of the terms), by the optimiser, rounded as the settings say."""
        if not terms:
            return NOTHING
        rounding, rate = self.rounding(state.seed, state.done), self.rate(state.done + 1)
        if self.optimizer == "sgd":
            return Add(terms, scale=-rate, rounding=rounding)
        return Optimize(terms, Rule(self.optimizer, rate, self.beta1, self.beta2, self.adam_eps), rounding)
