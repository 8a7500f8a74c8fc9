"""FedSGD: each client sends one gradient in a round, and the server takes the step.

McMahan et al., AISTATS 2017, Section 2: FedAvg with one step on one batch, for which averaging
weights or gradients is the same. If g_i is the gradient of client i's mean loss over its batch:

    w <- w - eta sum_i c_i g_i

If c_i is proportional to the number of terms in the loss (response tokens, or examples), the sum is
the gradient of the mean loss over the union of the batches, and the step is that of centralised SGD
on that union.
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

    terms: Annotated[int, Scalar("u4")]  # number of terms in the mean loss
    # the gradient, tensor by tensor, in the weights' dtypes
    data: Annotated[bytes, Tensors()]

    @classmethod
    def reference_weights(cls, context: DecodeContext) -> None:
        """Return None: gradients are vectors already."""

    def check(self, context: DecodeContext) -> None:
        if self.terms < 1:
            raise MessageError("a gradient of a loss with no terms")

    def size(self, context: DecodeContext) -> float:
        return max(sqrt(1 / context.state.layout.size), self.root_mean_square(context))


class FedSGD(Dense):
    """FedSGD's settings.

    Besides the arguments of `Dense`:

    Args:
        learning_rate: eta, the server's rate.
        batch: number of examples for a client's gradient; None: all it has.
        micro_batch: number of examples that go through the model at a time.
        small_steps: how 16-bit weights are rounded after the server's step. "nearest": most steps
            are lost, because they are smaller than half a unit in the last place. "stochastic": by
            random numbers from (seed, round), correct on average.
        schedule: schedule of eta over the rounds; None: eta is constant.
        summed: in a simulation, add up c_i g_i in the memory of a single gradient during the
            backward passes. It needs the mean as rule. The sum has the weights' dtype, so its last
            bits differ from those of separate gradients.
        weighting: "terms": the gradient on the union of the batches; or "examples" or "equal", as
            in other methods.
    """

    name: Literal["fedsgd"] = "fedsgd"
    code: ClassVar[int] = 9
    about: ClassVar[str] = (
        "one averaged gradient from each client in a round: centralised SGD on the union of "
        "the batches"
    )
    update_type = Gradient

    learning_rate: PositiveFloat = 1e-2
    batch: PositiveInt | None = None
    micro_batch: PositiveInt = 8
    small_steps: Literal["nearest", "stochastic"] = "nearest"
    schedule: Schedule | None = None
    summed: bool = False
    weighting: Literal["equal", "examples", "terms"] = "terms"  # type: ignore[assignment]

    @property
    def keeps_small_steps(self) -> bool:  # type: ignore[override]
        return self.small_steps == "stochastic"

    @property
    def sums_gradients(self) -> bool:  # type: ignore[override]
        return self.summed

    def server_rate(self, number: int) -> float:
        return self.learning_rate * factor_of(self.schedule, number)

    def train(self, state: DenseState, plan: Nothing, client: Client) -> Gradient:
        data, terms = client.gradient(self.batch, self.micro_batch)
        return Gradient(terms, data)

    def compute_change(self, state: Any, answers: Answers) -> Iterator[NDArray[np.float64]]:
        """Yield -sum_i c_i g_i."""
        return map(np.negative, state.combine(answers))
