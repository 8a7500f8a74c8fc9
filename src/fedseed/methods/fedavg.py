"""FedAvg: clients train all parameters and send them; the coordinator averages.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1:

    w_i     <- local training from w                          ClientUpdate
    w       <- w + eta_g (sum_i c_i w_i - w)                  eta_g = 1: the weighted average
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat

from fedseed.methods.base import Answers
from fedseed.methods.client import Client
from fedseed.methods.dense import Dense, DenseState, Weights, known, rounded
from fedseed.methods.payload import Nothing, Payload
from fedseed.training.settings import LocalTraining
from fedseed.weights.layout import Layout


class Averaged(Dense):
    """Weights up, their weighted average down: what FedAvg and dense zeroth-order methods share.

    Args (besides those of `Dense`):
        global_rate: eta_g; 1 with server = "average" is plain averaging.
    """

    update_type: ClassVar[type[Payload]] = Weights

    global_rate: PositiveFloat = 1.0

    def server_rate(self, number: int) -> float:
        """eta_g, the same in every round."""
        return self.global_rate

    def average(self, state: DenseState, answers: Answers) -> Iterator[NDArray[np.float64]]:
        """sum_i c_i w_i, tensor by tensor, in double precision."""
        return state.combine(answers, lambda update: update.data, of_moves=True)

    def wanted(self, state: Any, answers: Answers) -> Iterator[NDArray[np.float64]]:
        """sum_i c_i w_i - w."""
        for mean, before in zip(self.average(state, answers), known(state), strict=True):
            yield mean - before

    def aggregate(self, state: Any, answers: Answers) -> Any:
        """Plain averaging needs no old weights: the mean, rounded once to each tensor's dtype."""
        if not answers or self.server != "average" or self.global_rate != 1.0:
            return super().aggregate(state, answers)
        return rounded(state.layout, self.average(state, answers), self.rounding_of(state, answers))


class FedAvg(Averaged):
    """FedAvg's settings.

    Args (besides those of `Averaged`):
        training: local training.
    """

    name: Literal["fedavg"] = "fedavg"
    code: ClassVar[int] = 2
    about: ClassVar[str] = "all parameters trained and sent, averaged (AISTATS 2017)"

    training: LocalTraining = LocalTraining(optimizer="adamw", learning_rate=3e-4)

    def check(self, layout: Layout) -> None:
        """Whether the settings of local training fit. Raises ValueError."""
        self.training.check(layout)

    @property
    def keeps_small_steps(self) -> bool:
        """An average of weights that were rounded stochastically lies between two: rounded to nearest it would be w."""
        return self.training.small_steps != "nearest"

    def train(self, state: DenseState, plan: Nothing, client: Client) -> Weights:
        """Train locally, send the weights."""
        client.first_order(self.training.at(client.round))
        return Weights(client.weights())
