"""What the zeroth-order methods share: settings of the estimate, and the estimate itself.

two-point   rho = [l(w + eps z; x) - l(w - eps z; x)] / (2 eps)      SPSA; MeZO, FedKSeed Eq. 3, FeedSign Eq. 2
one-point   rho = [l(w + eps z; x) - l(w; x)] / eps                  forward difference; FedZO
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fedseed.errors import MessageError, NonFiniteError
from fedseed.methods.base import Attack, Client, Floats, Method, Nothing, State
from fedseed.randomness import Basis
from fedseed.randomness.basis import MAX_SIZE
from fedseed.weights.layout import Layout

if TYPE_CHECKING:
    from fedseed.weights.space import ParameterSpace, Term

# A projection beyond this is no measurement of a loss: it is refused, so that one client can't destroy the model.
LARGEST_SCALAR = 1e6
RANDOM_PROJECTION = 100.0


class ZerothOrder(Method):
    """Settings of every zeroth-order method.

    Args:
        basis: where directions come from. "normal" is published; "rademacher" tunes as well at less cost.
        basis_size: for "hadamard", the number of directions of one basis (B is the next power of two).
        rate: eta.
        scale: eps, how far the weights are perturbed (FeedSign calls it mu).
        batch: examples an estimate is made on.
        clip: loss guard: a step whose two losses differ by more is skipped.
        small_steps: what becomes of changes far below a 16-bit weight's last place. "nearest": they vanish when
            rounded (harmless in float32); "stochastic": rounded up or down by the shared stream, right on average;
            "from-base": coefficients are summed up in float32 and the weights rebuilt from the base each step (one
            pass with "hadamard"; with other bases the cost grows with every step).
    """

    trains_in_place: ClassVar[bool] = False

    basis: Literal["normal", "truncated_normal", "rademacher", "hadamard"] = "rademacher"
    basis_size: Annotated[int, Field(ge=1, le=MAX_SIZE)] = 4096
    rate: PositiveFloat
    scale: PositiveFloat = 1e-3
    batch: PositiveInt = 1
    clip: PositiveFloat | None = None
    small_steps: Literal["nearest", "stochastic", "from-base"] = "nearest"

    @property
    def from_base(self) -> bool:
        """Whether the weights are rebuilt from the base."""
        return self.small_steps == "from-base"

    def directions(self, seed: int) -> Basis:
        """The basis of a seed."""
        return Basis(self.basis, seed, self.basis_size)

    def two_point(self, client: Client, basis: Basis, k: int, items: Sequence[Any]) -> float:
        """rho for direction k on `items`, rounded to single precision as it will be sent.

        Raises:
            NonFiniteError: a loss is NaN or infinite, or the loss guard says no.
        """
        plus = client.perturbed_loss(basis, k, self.scale, items)
        minus = client.perturbed_loss(basis, k, -self.scale, items)
        return self._quotient(plus, minus, 2 * self.scale)

    def one_point(self, client: Client, basis: Basis, k: int, items: Sequence[Any]) -> float:
        """The forward difference; raises as `two_point` does."""
        plus = client.perturbed_loss(basis, k, self.scale, items)
        return self._quotient(plus, client.loss(items), self.scale)

    def _quotient(self, plus: float, minus: float, width: float) -> float:
        difference = plus - minus
        if not np.isfinite(difference):
            raise NonFiniteError(f"loss is {plus} and {minus} on the two sides of a perturbation")
        if self.clip is not None and abs(difference) > self.clip:
            raise NonFiniteError(f"losses differ by {abs(difference):.3g}, the loss guard allows {self.clip}")
        return float(np.float32(difference / width))


@dataclass(frozen=True)
class StepState(State):
    """How many steps are done, which names the next directions, and for "from-base" all coefficients so far."""

    done: int = 0
    coefficients: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float32))


class Stepwise(ZerothOrder):
    """A zeroth-order method whose round is one step along directions that the step's number names.

    Args (besides those of `ZerothOrder`):
        optimizer: what the update, as a gradient, is given to: "sgd" (the methods as published), "momentum" or "adam"
            (`fedseed.optimizers.moments`; 4 or 8 bytes of memory per parameter; a replay restores its averages).
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

    def start(self, layout: Layout, seed: int) -> StepState:
        """The state before the first step."""
        return StepState(layout, seed)

    def plan(self, state: StepState, number: int) -> Nothing:
        """Nothing but the step's number."""
        return Nothing()

    def decode_plan(self, state: StepState, data: bytes) -> Nothing:
        """A plan has no content."""
        if data:
            raise MessageError(f"a plan of this method has no payload, {len(data)} bytes came")
        return Nothing()

    def indices(self, number: int) -> range:
        """Direction indices of step `number`: with "hadamard", B steps in a row share a basis number."""
        first = (number - 1) * self.per_step
        return range(first, first + self.per_step)

    def count(self, state: StepState, coefficients: np.ndarray[Any, Any]) -> StepState:
        """The state after a step with these coefficients (none: nobody answered)."""
        kept = state.coefficients
        if self.from_base:
            new = np.zeros(self.per_step, dtype=np.float32)
            new[: len(coefficients)] = coefficients
            kept = np.concatenate([kept, new])
        return replace(state, done=state.done + 1, coefficients=kept)

    def move(self, state: StepState, coefficients: np.ndarray[Any, Any], space: "ParameterSpace") -> None:
        """w <- w - eta sum_i c_i z_i along the directions of the step after `state`."""
        from fedseed.weights.space import Term

        if not len(coefficients):
            return
        basis = self.directions(state.seed)
        if self.from_base:
            space.rebuild([Term(basis, self.count(state, coefficients).coefficients)], scale=-self.rate)
        else:
            self.add(state, [Term(basis, coefficients, state.done * self.per_step)], space)

    def add(self, state: StepState, terms: "list[Term]", space: "ParameterSpace") -> None:
        """w <- w - eta (sum of the terms), rounded as the settings say."""
        rounding = (state.seed, state.done) if self.small_steps == "stochastic" else None
        if self.optimizer == "sgd":
            space.add_terms(terms, scale=-self.rate, rounding=rounding)
            return
        from fedseed.optimizers.moments import Rule

        space.descend(terms, Rule(self.optimizer, self.rate, self.beta1, self.beta2, self.adam_eps), rounding)


def corrupt_scalars(scalars: Floats, kind: Attack, drawn: np.ndarray[Any, np.dtype[np.uint32]]) -> Floats:
    """Projections as a Byzantine client sends them.

    "random" and "noise" draw from N(0, RANDOM_PROJECTION^2): far above honest projections on language models, which is
    what an attacker whose amplitude nobody checks would do.
    """
    if kind == "sign":
        return -scalars
    uniform = (drawn[: 2 * len(scalars)].astype(np.float64) + 0.5) / 2.0**32
    radius, angle = np.sqrt(-2 * np.log(uniform[: len(scalars)])), 2 * np.pi * uniform[len(scalars) :]
    normal = (RANDOM_PROJECTION * radius * np.cos(angle)).astype(np.float32)
    return normal if kind == "random" else scalars + normal


def check_scalars(values: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    """Refuse projections that no loss can have given.

    Raises:
        MessageError: a value is beyond LARGEST_SCALAR.
    """
    if len(values) and float(np.abs(values).max()) > LARGEST_SCALAR:
        at = int(np.abs(values).argmax())
        raise MessageError(f"scalar {at} is {values[at]:.3g}: at most {LARGEST_SCALAR:.0e} is accepted")
