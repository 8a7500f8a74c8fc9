"""Centralised MeZO: the one-client case of zeroth-order tuning.

Malladi, Gao, Nichani, Damian, Lee, Chen, Arora: "Fine-Tuning Language Models with Just Forward
Passes", 2023, Algorithm 1 (n = 1) and its n-SPSA variant:

    rho_j = [l(w + eps z_{t,j}; B) - l(w - eps z_{t,j}; B)] / 2 eps    j = 1..n, on one batch B
            [l(w + eps z_{t,j}; B) - l(w; B)] / eps                    "one-point"
    w    <- w - (eta / n) sum_j rho_j z_{t,j}

"one-point" takes n + 1 passes instead of 2 n. With a population of p, each of the n estimates
becomes p estimates, each on a part of B: n p directions in 2 n passes.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from fedseed.methods.base import Answers
from fedseed.methods.payload import Array, Measured, Nothing
from fedseed.methods.stepwise import StepState, Stepwise
from fedseed.methods.zeroth import Population, mixing_shares
from fedseed.training.protocol import Client
from fedseed.weights.change import Floats


@dataclass(frozen=True)
class Estimates(Measured):
    """rho_j / n for each of the n directions of the step. A step without estimates is one that
    nobody answered.
    """

    scalars: Annotated[Floats, Array("f4", "per_step", optional=True)]


class MeZO(Population, Stepwise):
    """MeZO's settings; a round is a step.

    Besides the arguments of `Population` and `Stepwise`:

    Args:
        estimates: n, the number of directions in a step; their estimates are averaged. With a
            population of p, n p directions.
        estimator: "two-point" (as published) or "one-point". With "one-point", divide_by =
            "deviation" and "rademacher" directions this is FZOO.
    """

    name: Literal["mezo"] = "mezo"
    code: ClassVar[int] = 6
    about: ClassVar[str] = "centralised zeroth-order tuning: one client has all data"
    update_type = step_type = Estimates

    estimates: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    estimator: Literal["two-point", "one-point"] = "two-point"
    learning_rate: PositiveFloat = 1e-6
    batch: PositiveInt = 16

    @property
    def per_step(self) -> int:
        return self.estimates * self.population

    def train(self, state: StepState, plan: Nothing, client: Client) -> Estimates:
        """Make n estimates on one batch, and divide each by n."""
        items = next(client.batches(self.batch))
        basis, along = self.directions(state.seed), self.indices(client.round)
        return Estimates(
            mixing_shares(
                client.estimates(self, basis, along, items, self.estimator == "one-point")
            )
        )

    def aggregate(self, state: StepState, answers: Answers) -> Estimates:
        return Estimates(answers.combine([u.scalars for u in answers.updates]).astype(np.float32))
