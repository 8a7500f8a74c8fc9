"""Zeroth-order methods whose round is one optimiser step, along directions that the step's number
determines.

`divide_by` selects a divisor of a step's coefficients c_i, which depends only on the coefficients:

    deviation   sigma = eps std(n c_1, ..., n c_n), the deviation of losses at w + eps z_i    FZOO
    scalar      sqrt(v / (1 - beta2^t)) + zeta,                                               MEAZO
                v <- beta2 v + (1 - beta2) (sum_i c_i)^2

FZOO: Dang et al., arXiv 2506.09034. MEAZO: Dbouk et al., "On Adaptivity in Zeroth-Order
Optimization", 2605.03869.

`optimizer` selects the rule of `fedseed.optimizers.rules` that gets the sum. "adam-rebuilt" is Adam
of only the last h gradients g_t = sum_i c_i z_i, rebuilt in each step from their seeds and
coefficients:

    m = (1 - beta1) sum_{i<h} beta1^i g_{t-i} / (1 - beta1^h),   v likewise of g^2

AdaMeZO (Cai et al., arXiv 2605.00650) does this without the corrections 1 - beta^h, which are a
constant factor of the rate for t >= h.

If directions have entries of +1 and -1 and a step has one direction, g^2 = c^2 in every entry, so
Adam and HiSo divide by a single number, like "scalar". With "normal" entries, E g^2 = |dl|^2 + 2
(dl)_i^2 for a gradient dl, so that only about 2 parts in d come from an entry's own gradient.

With "hadamard", B consecutive steps share a basis number, so that a replay can merge them into one
pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from fedseed.methods.payload import State
from fedseed.methods.zeroth import ZerothOrder
from fedseed.optimizers.rules import Rule, Squares, deviation, total
from fedseed.weights.change import NOTHING, Add, Change, Floats, Optimize, Rebuild, Term

# the most steps that are remembered; all of them are rebuilt at every step
MOST_STEPS = 4096


@dataclass(frozen=True)
class StepState(State):
    """The state: the number of steps, which determines the next directions, and what is remembered
    of past steps.
    """

    steps_done: int = 0
    # for divide_by = "scalar": the average squared sum
    squares: Squares = field(default_factory=Squares)
    # for "from-base": the coefficients of all past directions, times the factors of schedule and
    # decay
    coefficients: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    # for "adam-rebuilt": the sums of the last steps that changed the weights, at most h - 1, the
    # oldest first
    window: tuple[tuple[Term, ...], ...] = ()


class Stepwise(ZerothOrder):
    """Settings of step-by-step methods, and how their coefficients change the weights.

    Besides the arguments of `ZerothOrder`:

    Args:
        optimizer: the rule that turns the update, as a gradient, into a step. "sgd": as in the
            published methods. "momentum", "nesterov", "rmsprop" or "adam": see
            `fedseed.optimizers`; they take 4 bytes of memory per parameter, Adam 8, and a replay
            restores their averages. "adam-rebuilt": Adam of the last `horizon` steps, which takes
            no memory but the time to make their directions again. "hiso": scales directions before
            a measurement by a diagonal learnt from the steps (4 bytes per parameter; beta2 is its 1
            - nu).
        beta1: decay of the average gradient, for momentum and Adam.
        beta2: decay of the average squared gradient, for Adam, "rmsprop" (torch's alpha), "hiso"
            and divide_by = "scalar".
        horizon: h, the number of steps that "adam-rebuilt" remembers.
        adam_eps: keeps the denominators of these rules away from zero.
        divide_by: the divisor of a step's coefficients. "deviation": the deviation of the losses
            along the step's directions, of which there must be several (FZOO; if all losses are
            equal, the step does nothing). "scalar": the root of an average of their squared sum
            (MEAZO), for one direction in a step. "nothing": no division. Each choice needs its own
            learning rate.
        decay: the share by which each step first shrinks the distance from the base; for
            "from-base".
    """

    stepwise: ClassVar[bool] = True
    state_type = StepState

    optimizer: Literal["sgd", "momentum", "nesterov", "rmsprop", "adam", "adam-rebuilt", "hiso"] = (
        "sgd"
    )
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    adam_eps: PositiveFloat = 1e-8
    horizon: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 32
    divide_by: Literal["nothing", "deviation", "scalar"] = "nothing"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _base_needs_plain_steps(self) -> "Stepwise":
        if self.optimizer != "sgd" and self.from_base:
            raise ValueError(
                'small_steps = "from-base" needs optimizer = "sgd", because a step of '
                f'{self.optimizer} is not a sum of coefficients; "stochastic" keeps small steps '
                "as well"
            )
        if self.decay and not self.from_base:
            raise ValueError(
                f'decay = {self.decay} needs small_steps = "from-base", which keeps past '
                "coefficients"
            )
        if self.divide_by == "deviation" and not self.has_many_directions:
            raise ValueError(
                'divide_by = "deviation" needs several directions in a step, but here a step '
                "has one"
            )
        return self

    @property
    def settings_problem(self) -> str | None:
        if self.divide_by == "scalar" and self.has_many_directions:
            return (
                'divide_by = "scalar": a step has several directions, and their projections may '
                "cancel in the divisor's sum (steps up to 209 times the rate were measured); use "
                '"deviation", or one direction in a step'
            )
        return super().settings_problem

    @property
    def per_step(self) -> int:
        """Return the number of directions in a step."""
        return 1

    @property
    def has_many_directions(self) -> bool:
        """Return whether a step has more than one direction."""
        return self.per_step > 1

    def indices(self, number: int) -> range:
        """Return the indices of the directions of step `number`."""
        return range((number - 1) * self.per_step, number * self.per_step)

    def coefficients_and_terms(
        self, state: StepState, step: Any
    ) -> tuple[np.ndarray[Any, Any], Sequence[Term] | None]:
        """Return a step's coefficients, and the terms of its sum.

        The coefficients are empty if nobody answered. The terms are None if they are along the
        directions that the step's number determines.
        """
        return step.scalars, None

    def change(self, state: StepState, step: Any) -> Change:
        return self.descent(state, *self.coefficients_and_terms(state, step))

    def advance(self, state: StepState, step: Any) -> StepState:
        return self.count(state, *self.coefficients_and_terms(state, step))

    def count(
        self,
        state: StepState,
        coefficients: np.ndarray[Any, Any],
        terms: Sequence[Term] | None = None,
    ) -> StepState:
        """Return the state after a step with these coefficients (empty: nobody answered).

        `terms`: the terms of its sum; None: terms along the directions that the step's number
        determines.
        """
        coefficients_so_far, window = state.coefficients, state.window
        if self.optimizer == "adam-rebuilt" and len(coefficients):
            latest = tuple(terms or self.terms(state, coefficients))
            window = (*window, latest)[max(0, len(window) + 2 - self.horizon) :]
        if self.from_base:
            new = np.zeros(self.per_step, dtype=np.float32)
            new[: len(coefficients)] = self.divide(state, coefficients)
            # a step that nobody answered does not change the weights
            if self.decay and len(coefficients):
                coefficients_so_far = coefficients_so_far * np.float32(1 - self.decay)
            # the schedule's factor, which multiplies all coefficients
            new *= np.float32(self.factor(state.steps_done + 1))
            coefficients_so_far = np.concatenate([coefficients_so_far, new])
        squares = self.squares_after(state, coefficients)
        return replace(
            state,
            steps_done=state.steps_done + 1,
            coefficients=coefficients_so_far,
            squares=squares,
            window=window,
        )

    def squares_after(self, state: StepState, coefficients: np.ndarray[Any, Any]) -> Squares:
        """Return the average of the squared sums after a step with these coefficients."""
        if self.divide_by != "scalar" or not len(coefficients):
            return state.squares
        mean = total(coefficients)
        return state.squares.take([mean * mean], self.beta2)

    def divide(self, state: StepState, coefficients: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the coefficients of the step after `state`, divided according to `divide_by`."""
        if self.divide_by == "nothing" or not len(coefficients):
            return coefficients
        if self.divide_by == "scalar":
            (root,) = self.squares_after(state, coefficients).roots(self.beta2)
            divisor = root + self.adam_eps
        else:
            divisor = self.scale * len(coefficients) * deviation(coefficients)
        doubles = coefficients.astype(np.float64)
        return (doubles / divisor if divisor else np.zeros_like(doubles)).astype(np.float32)

    def terms(self, state: StepState, coefficients: np.ndarray[Any, Any]) -> list[Term]:
        """Return the sum of the step after `state`, along the directions that its number
        determines.
        """
        return [
            Term(
                self.directions(state.seed),
                self.divide(state, coefficients),
                state.steps_done * self.per_step,
            )
        ]

    def descent(
        self,
        state: StepState,
        coefficients: np.ndarray[Any, Any],
        terms: Sequence[Term] | None = None,
    ) -> Change:
        """Return the change w <- w - eta sum_i c_i z_i, or the optimiser's step, rounded according
        to the settings.

        The arguments are those of `count`.
        """
        if not len(coefficients):
            return NOTHING
        if self.from_base:
            coefficients_so_far = self.count(state, coefficients).coefficients
            return Rebuild(
                [Term(self.directions(state.seed), coefficients_so_far)], scale=-self.learning_rate
            )
        terms = terms or self.terms(state, coefficients)
        rounding, rate = (
            self.rounding(state.seed, state.steps_done),
            self.learning_rate * self.factor(state.steps_done + 1),
        )
        if self.optimizer == "sgd":
            return Add(terms, scale=-rate, rounding=rounding)
        kind = "adam" if self.optimizer == "adam-rebuilt" else self.optimizer
        past = state.window if self.optimizer == "adam-rebuilt" else None
        return Optimize(
            terms, Rule(kind, rate, self.beta1, self.beta2, self.adam_eps), rounding, past
        )
