"""ZO-FedSGD: each client sends a projection, and every step aggregates them.

FeedSign's baseline (its Algorithm 1), after Malladi et al., "Fine-Tuning Language Models with Just
Forward Passes" (MeZO), 2023; one-byte scalars after Zelikman et al., "Just One Byte (per
gradient)", 2023.

    rho_k = [l(w + eps z) - l(w - eps z)] / 2 eps        on client k's batch
    w    <- w - (eta / m) sum_k rho_k z_{s_k}            own seeds
    w    <- w - eta mean(rho) z_t                        one shared seed a step

A seed has 32 bits: the index of a direction in the run's basis. With a population of n, a client
sends n values rho for the n directions from that index on, and the step takes their mean. Own
indices are then multiples of n.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt, model_validator

from fedseed.errors import MessageError
from fedseed.methods.base import Answers
from fedseed.methods.payload import Array, DecodeContext, Floats, Nothing, Scalars, projection_size
from fedseed.methods.stepwise import StepState, Stepwise
from fedseed.methods.zeroth import Population
from fedseed.training.protocol import Client
from fedseed.weights.change import Term


class OneByte(Array):
    """Encodes float32 numbers in one byte each: a sign and a magnitude 2^((c - 80) / 5), c =
    1..127.

    C = 0 is zero.

    Magnitudes go from 2^-15.8 to 2^9.4 (675) in steps of 15%. Numbers are rounded to the nearest
    logarithm; too small ones become 0, and too large ones the largest.
    """

    def write_value(self, value: Any) -> bytes:
        magnitude = np.abs(value.astype(np.float64))
        code = np.round(np.log2(np.where(magnitude > 0, magnitude, 1.0)) * _OCTAVE + _OFFSET)
        code = np.where((magnitude > 0) & (code >= 1), np.minimum(code, 127), 0).astype(np.uint8)
        return np.where(value < 0, code | 0x80, code).astype(np.uint8).tobytes()

    def decode_elements(self, values: NDArray[Any]) -> NDArray[Any]:
        return _VALUES[values]


_OCTAVE, _OFFSET = 5, 80
_magnitudes = [0.0] + [2.0 ** ((c - _OFFSET) / _OCTAVE) for c in range(1, 128)]
_VALUES = np.array(_magnitudes + [-m for m in _magnitudes], dtype=np.float32)


@dataclass(frozen=True)
class Projections(Scalars):
    """Scalars on directions, n for each client, in an update or a step.

    In a step, scalars are multiplied by the clients' weights.
    """

    # index of the first direction of each client, if clients have their own directions; None: the
    # directions follow from the step's number
    indices: Annotated[NDArray[np.uint32] | None, Array("u4", "m", condition="own_seeds")] = field(
        default=None, kw_only=True
    )
    scalars: Annotated[Floats, Array("f4", "m", multiplier="population")]

    def check(self, context: DecodeContext) -> None:
        """Check that an update, or a step with a shared seed, has as many scalars as one
        population.

        A step may have none, if nobody answered.
        """
        n = context.lookup("population")
        max_count = n if context.kind == "update" or self.indices is None else None
        if (max_count is not None and len(self.scalars) > max_count) or (
            context.kind == "update" and not len(self.scalars)
        ):
            raise MessageError(
                f"{len(self.scalars)} projections in {context.kind} of {context.method.name}, "
                f"not {n}"
            )
        if self.indices is not None and (self.indices % n).any():
            raise MessageError(
                f"an index of {self.indices[self.indices % n > 0][0]}: not a multiple of {n}"
            )
        super().check(context)

    def size(self, context: DecodeContext) -> float:
        return projection_size(
            self.scalars if context.kind == "update" else np.abs(self.scalars).sum(keepdims=True)
        )


@dataclass(frozen=True)
class ByteProjections(Projections):
    """`Projections` with one byte for each scalar."""

    scalars: Annotated[Floats, OneByte("u1", "m", multiplier="population")]


class ZOFedSGD(Population, Stepwise):
    """ZO-FedSGD's settings; a round is a step.

    Besides the arguments of `Population` and `Stepwise`:

    Args:
        seeds: "own": each client draws its own direction and sends (seed, rho), 8 bytes. "shared":
            one direction for each step; rho takes 4 bytes up, and the mean 4 bytes down. With a
            population of n there are n directions, and rho takes 4 n bytes.
        scalars: "float32", or "byte" for one byte per projection.
    """

    name: Literal["zo-fedsgd"] = "zo-fedsgd"
    code: ClassVar[int] = 4
    about: ClassVar[str] = (
        "one projection from each client in each step, own or shared seeds, 4 bytes or 1"
    )
    step_type = Projections

    seeds: Literal["own", "shared"] = "own"
    scalars: Literal["float32", "byte"] = "float32"
    learning_rate: PositiveFloat = 1e-7
    batch: PositiveInt = 16

    @model_validator(mode="after")
    def _base_needs_shared_seeds(self) -> "ZOFedSGD":
        if self.own_seeds and self.from_base:
            raise ValueError(
                'small_steps = "from-base" needs seeds = "shared": clients\' own '
                "directions are never used again"
            )
        return self

    @property
    def settings_problem(self) -> str | None:
        reach = {"none": 0.0, "z-score": self.population**0.5, "ranks": 0.5}[self.normalize]
        if self.scalars == "byte" and reach / self.scale > _VALUES.max():
            return (
                f'scalars = "byte": with normalize = "{self.normalize}" projections reach '
                f"{reach / self.scale:,.0f}, but a byte only {_VALUES.max():.0f}; set "
                f"method.scale = {1.01 * reach / _VALUES.max():.2g} or more"
            )
        return super().settings_problem

    @property
    def per_step(self) -> int:
        return self.population

    @property
    def has_many_directions(self) -> bool:
        return self.own_seeds or super().has_many_directions

    @property
    def own_seeds(self) -> bool:
        """Return whether each client has its own direction."""
        return self.seeds == "own"

    def train(self, state: StepState, plan: Nothing, client: Client) -> Projections:
        along, n = self.indices(client.round), self.population
        # aligned, so that two clients have either the same directions or none in common
        if self.own_seeds:
            k = state.client_seed(client.round, client.number) % ((1 << 32) // n) * n
            along = range(k, k + n)
        projections = client.estimates(
            self, self.directions(state.seed), along, next(client.batches(self.batch))
        )
        indices = np.array([along.start], dtype=np.uint32) if self.own_seeds else None
        return self.update_type(
            np.array([projection.rho for projection in projections], dtype=np.float32),
            indices=indices,
        )

    def aggregate(self, state: StepState, answers: Answers) -> Projections:
        """Return each client's scalars times its weight, or the mean of the scalars if seeds are
        shared.

        The result is in float32.
        """
        n = self.population
        if self.own_seeds:
            scalars: list[float] = []
            for _, weight, update in answers:
                scalars += [weight * rho / n for rho in update.scalars.tolist()]
            indices = [update.indices[0] for update in answers.updates]
            return Projections(
                np.array(scalars, dtype=np.float32), indices=np.array(indices, dtype=np.uint32)
            )
        return Projections(
            (answers.combine([u.scalars for u in answers.updates]) / n).astype(np.float32)
        )

    def coefficients_and_terms(
        self, state: StepState, step: Projections
    ) -> tuple[Floats, list[Term] | None]:
        if step.indices is None:
            return step.scalars, None
        basis = self.directions(state.seed)
        pairs = zip(
            step.indices,
            self.divide(state, step.scalars).reshape(-1, self.population),
            strict=True,
        )
        return step.scalars, [Term(basis, rho, int(k)) for k, rho in pairs]

    @property
    def update_type(self) -> type[Projections]:  # type: ignore[override]
        if self.scalars == "byte":
            return ByteProjections
        return Projections

    @property
    def shares_losses(self) -> bool:  # type: ignore[override]
        return not self.own_seeds

    @property
    def incomparable(self) -> str | None:  # type: ignore[override]
        if self.own_seeds:
            return 'seeds = "own": each client measures along its own direction'
        return None
