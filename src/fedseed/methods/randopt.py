"""RandOpt: randomly drawn models are scored once, and the best ones are averaged.

A round gives a model of k seeds. This is evolution strategies' random search with truncation
selection (Rechenberg; Beyer and Schwefel: "Evolution Strategies: A Comprehensive Introduction",
2002, mu best of lambda), in which only scores and numbers are sent:

    rho_ij = [l(w + eps z_j) - l(w)] / eps      j = 1..N, on client i's batch: 4 N bytes up
    rho_j  = the clients' scores, combined by the rule
    J      = the k directions with the least rho_j: 4 k bytes down
    w     <- w + (eta / k) sum_{j in J} z_j     with eta = eps: the average of the k best models

Later rounds draw new directions, starting from the last round's model.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fedseed.errors import MessageError
from fedseed.methods.base import Answers
from fedseed.methods.payload import Array, DecodeContext, Nothing, Payload, Scalars
from fedseed.methods.stepwise import StepState, Stepwise
from fedseed.methods.zeroth import MAX_DIRECTIONS
from fedseed.training.protocol import Client
from fedseed.weights.change import Floats, Term


@dataclass(frozen=True)
class Scores(Scalars):
    """An update: the score of each direction of the round; lower is better."""

    scalars: Annotated[Floats, Array("f4", "candidates")]


@dataclass(frozen=True)
class Selection(Payload):
    """A step: the best directions' numbers in the round, in ascending order.

    It is empty if nobody answered.
    """

    directions: Annotated[NDArray[np.uint32], Array("u4", "best", optional=True)]

    def check(self, context: DecodeContext) -> None:
        """Refuse numbers that are not directions of the round, or that occur twice."""
        if np.any(np.diff(self.directions.astype(np.int64)) <= 0) or np.any(
            self.directions >= context.lookup("candidates")
        ):
            raise MessageError(
                f"directions {self.directions.tolist()[:8]}: not in order, or not of the round"
            )


class RandOpt(Stepwise):
    """RandOpt's settings; a round is a step.

    Besides the arguments of `Stepwise`:

    Args:
        candidates: N, the number of directions to score.
        best: k, the number of directions to keep.
        learning_rate: eta; if it equals `scale`, the result is the average of the k best models.
        batch: number of examples on which a client scores all candidates.
    """

    name: Literal["randopt"] = "randopt"
    code: ClassVar[int] = 16
    about: ClassVar[str] = (
        "N random models scored once, and the k best averaged: a model of k seeds"
    )
    update_type, step_type = Scores, Selection
    shares_losses = True

    candidates: Annotated[int, Field(ge=2, le=MAX_DIRECTIONS)] = 64
    best: PositiveInt = 4
    learning_rate: PositiveFloat = 1e-3
    batch: PositiveInt = 64

    @model_validator(mode="after")
    def _some_are_left_out(self) -> "RandOpt":
        if self.best >= self.candidates:
            raise ValueError(
                f"best = {self.best}: must be less than candidates = {self.candidates}, so that "
                "there is a choice"
            )
        if self.divide_by != "nothing":
            raise ValueError(
                f'divide_by = "{self.divide_by}": a chosen direction has no size to divide by; '
                "remove this key"
            )
        return self

    @property
    def per_step(self) -> int:
        return self.candidates

    def train(self, state: StepState, plan: Nothing, client: Client) -> Scores:
        """Score all directions on one batch, relative to the current model."""
        basis, along = self.directions(state.seed), self.indices(client.round)
        projections = client.estimates(
            self, basis, along, next(client.batches(self.batch)), one_sided=True
        )
        return Scores(np.array([projection.rho for projection in projections], dtype=np.float32))

    def aggregate(self, state: StepState, answers: Answers) -> Selection:
        """Keep the k directions with the lowest scores; among equal scores, the first ones."""
        scores = answers.combine([update.scalars for update in answers.updates])
        return Selection(np.sort(np.argsort(scores, kind="stable")[: self.best]).astype(np.uint32))

    def coefficients_and_terms(
        self, state: StepState, step: Selection
    ) -> tuple[Floats, list[Term]]:
        """Return -1 / k for each chosen direction, and the terms of only these directions."""
        coefficients = np.zeros(self.candidates if len(step.directions) else 0, dtype=np.float32)
        coefficients[step.directions] = np.float32(-1 / self.best)
        basis, first = self.directions(state.seed), state.steps_done * self.candidates
        return coefficients, [
            Term(basis, coefficients[j : j + 1], first + j) for j in step.directions.tolist()
        ]
