"""FedSGD: one gradient per client and round; the server takes the step.

McMahan et al., AISTATS 2017, Section 2: FedAvg with one step on one batch, where it does not matter
whether weights or gradients are averaged. With g_i the gradient of client i's mean loss over its
batch:

    w <- w - eta sum_i c_i g_i

With c_i in proportion to the terms of the loss (response tokens, or examples) the sum is the
gradient of the mean loss over the union of the batches: the step is the one of centralised SGD on
that union.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt

from fedseed.errors import MessageError
from fedseed.methods.base import Answers
from fedseed.methods.dense import Dense, DenseState, WholeTensors
from fedseed.methods.payload import DecodeContext, Nothing, Scalar, Tensors
from fedseed.optimizers.schedule import Schedule, factor_of
from fedseed.training.protocol import Client


@dataclass(frozen=True)
class Gradient(WholeTensors):
    """An update."""

    weight_terms: ClassVar[str | None] = "terms"

    terms: Annotated[int, Scalar("u4")]  # how many terms the loss is a mean of
    # the gradient, tensor by tensor, in the weights' dtypes
    data: Annotated[bytes, Tensors()]

    @classmethod
    def reference_weights(cls, context: DecodeContext) -> None:
        """Return None: gradients are vectors as they are."""

    def check(self, context: DecodeContext) -> None:
        if self.terms < 1:
            raise MessageError("a gradient of a loss with no terms")

    def size(self, context: DecodeContext) -> float:
        return max(sqrt(1 / context.state.layout.size), self.root_mean_square(context))


class FedSGD(Dense):
    """FedSGD's settings.

    Besides the arguments of `Dense`:

    Args:
        learning_rate: eta, the server's.
        batch: examples of a client's gradient; None: all it has.
        micro_batch: examples that go through the model at a time.
        small_steps: how 16-bit weights are rounded after the server's step: to "nearest", where
            most steps are less than half a unit in the last place, or "stochastic", by numbers of
            (seed, round), right on average.
        schedule: of eta, by round; None: it stays the same.
        weighting: "terms": the gradient on the union of the batches; or "examples", "equal" as with
            other methods.
    """

    name: Literal["fedsgd"] = "fedsgd"
    code: ClassVar[int] = 9
    about: ClassVar[str] = (
        "one gradient a round and client, averaged: centralised SGD on the union of the batches"
    )
    update_type = Gradient

    learning_rate: PositiveFloat = 1e-2
    batch: PositiveInt | None = None
    micro_batch: PositiveInt = 8
    small_steps: Literal["nearest", "stochastic"] = "nearest"
    schedule: Schedule | None = None
    weighting: Literal["equal", "examples", "terms"] = "terms"  # type: ignore[assignment]

    @property
    def keeps_small_steps(self) -> bool:  # type: ignore[override]
        return self.small_steps == "stochastic"

    def server_rate(self, number: int) -> float:
        return self.learning_rate * factor_of(self.schedule, number)

    def train(self, state: DenseState, plan: Nothing, client: Client) -> Gradient:
        data, terms = client.gradient(self.batch, self.micro_batch)
        return Gradient(terms, data)

    def compute_change(self, state: Any, answers: Answers) -> Iterator[NDArray[np.float64]]:
        """Yield -sum_i c_i g_i."""
        return map(np.negative, state.combine(answers))
