"""FedAvg: clients train all parameters and send them; the coordinator averages.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, Algorithm 1:

    w_i     <- local training from w                          ClientUpdate
    w       <- w + eta_g (sum_i c_i w_i - w)                  eta_g = 1: the weighted average

The same method with an adapter (`fedseed.models.adapters`) instead of the whole model:

FedIT: Zhang et al., "Towards Building the Federated GPT: Federated Instruction Tuning", ICASSP
2024: LoRA with rank 8 and alpha 16, Adam. With `training.optimizer = "sgd"` it is FedKSeed's and
Ferret's FedIT-SGD.
FedPTuning, FedPrompt: Kuang et al., "FederatedScope-LLM", KDD 2024: P-tuning with an MLP, and
prompt tuning, 20 virtual tokens each, SGD. Rates, epochs and batches are those of FedKSeed's
comparison (ICML 2024, Appendix G.4), where every local rate is 3e-4.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat

from fedseed.methods.base import Answers
from fedseed.methods.dense import Dense, DenseState, Weights, read_weights, round_weights
from fedseed.methods.payload import Nothing, Payload
from fedseed.models.adapters import Adapter, LoRA, PromptTuning, PTuning
from fedseed.training.protocol import Client
from fedseed.training.settings import LocalTraining


class Averaged(Dense):
    """The common part of FedAvg and of zeroth-order methods that send weights: clients send weights
    and get their weighted average.

    Besides the arguments of `Dense`:

    Args:
        global_rate: eta_g; 1 with server = "average" is plain averaging.
    """

    update_type: ClassVar[type[Payload]] = Weights

    global_rate: PositiveFloat = 1.0

    def server_rate(self, number: int) -> float:
        return self.global_rate

    def compute_change(self, state: Any, answers: Answers) -> Iterator[NDArray[np.float64]]:
        return map(np.subtract, state.combine(answers, of_moves=True), read_weights(state))

    def aggregate(self, state: Any, answers: Answers) -> Any:
        """Return the mean, rounded once to each tensor's dtype.

        Plain averaging does not need the old weights.
        """
        if not answers or self.server != "average" or self.global_rate != 1.0:
            return super().aggregate(state, answers)
        return round_weights(
            state.layout,
            state.combine(answers, of_moves=True),
            self.rounding_numbers(state, answers),
        )


class FedAvg(Averaged):
    """FedAvg's settings.

    Besides the arguments of `Averaged`:

    Args:
        training: local training.
    """

    name: Literal["fedavg"] = "fedavg"
    code: ClassVar[int] = 2
    about: ClassVar[str] = "all parameters trained, sent and averaged (AISTATS 2017)"

    training: LocalTraining = LocalTraining(optimizer="adamw", learning_rate=3e-4)

    @property
    def keeps_small_steps(self) -> bool:  # type: ignore[override]
        """Return whether rounding keeps small steps. The clients' average often lies between two
        numbers of the dtype, and rounding to nearest would return w itself.
        """
        return self.training.small_steps != "nearest"

    def train(self, state: DenseState, plan: Nothing, client: Client) -> Weights:
        client.first_order(self.training.for_round(client.round))
        return Weights(client.weights())


_SGD = LocalTraining(optimizer="sgd", learning_rate=3e-4, epochs=1, batch=1, accumulation=1)


class FedIT(FedAvg):
    """FedIT's settings: those of `FedAvg`."""

    name: Literal["fedit"] = "fedit"  # type: ignore[assignment]
    code: ClassVar[int] = 10
    about: ClassVar[str] = "LoRA trained with Adam and averaged (ICASSP 2024)"
    adapter: ClassVar[Adapter | None] = LoRA()

    training: LocalTraining = LocalTraining(
        optimizer="adam", learning_rate=3e-4, epochs=1, batch=1, accumulation=1
    )


class FedPTuning(FedAvg):
    """FedPTuning's settings: those of `FedAvg`."""

    name: Literal["fedptuning"] = "fedptuning"  # type: ignore[assignment]
    code: ClassVar[int] = 11
    about: ClassVar[str] = (
        "virtual tokens and the MLP that computes them, trained and averaged (KDD 2024)"
    )
    adapter: ClassVar[Adapter | None] = PTuning()

    training: LocalTraining = _SGD


class FedPrompt(FedAvg):
    """FedPrompt's settings: those of `FedAvg`."""

    name: Literal["fedprompt"] = "fedprompt"  # type: ignore[assignment]
    code: ClassVar[int] = 12
    about: ClassVar[str] = "virtual tokens trained and averaged (KDD 2024)"
    adapter: ClassVar[Adapter | None] = PromptTuning()

    training: LocalTraining = _SGD
