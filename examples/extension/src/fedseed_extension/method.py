"""Mean of signs: each client sends whether the loss rises or falls along a shared direction, and
the mean is the step.

    s_k    = sign(rho_k),  rho_k two-point, on client k's batch, along z_t
    w     <- w - eta sum_k c_k s_k z_t

It is FeedSign's vote without the majority: if clients disagree, the step is small. A step takes 4
bytes up and 4 down.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedseed.methods.base import Answers
from fedseed.methods.payload import Array, Floats, Nothing, Payload
from fedseed.methods.stepwise import StepState, Stepwise
from fedseed.training.protocol import Client
from fedseed.weights.change import Change


@dataclass(frozen=True)
class Opinions(Payload):
    """A client's sign, or a step's mean of them. A step has no value if nobody answered."""

    values: Annotated[Floats, Array("f4", "n")]


class MeanSign(Stepwise):
    """Settings: those of fedseed's step-by-step methods."""

    name: Literal["mean-sign"] = "mean-sign"
    code: ClassVar[int] = 200  # 128 to 255 are for methods of others
    about: ClassVar[str] = "the mean of the clients' signs along a shared direction"
    update_type = step_type = Opinions

    def train(self, state: StepState, plan: Nothing, client: Client) -> Opinions:
        """Return the sign of one two-point estimate."""
        items = next(client.batches(self.batch))
        rho = self.two_point(client, self.directions(state.seed), client.round - 1, items).rho
        return Opinions(np.array([np.sign(rho)], dtype=np.float32))

    def aggregate(self, state: StepState, answers: Answers) -> Opinions:
        """Return the clients' signs, combined by the recipe's rule."""
        if not answers:
            return Opinions(np.zeros(0, dtype=np.float32))
        return Opinions(
            answers.combine([update.values for update in answers.updates]).astype(np.float32)
        )

    def change(self, state: StepState, step: Opinions) -> Change:
        """Return w <- w - eta s z_t."""
        return self.descent(state, step.values)

    def advance(self, state: StepState, step: Opinions) -> StepState:
        """Return the state with the step counted."""
        return self.count(state, step.values)
