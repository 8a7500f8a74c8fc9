"""FedIT, FedPTuning, FedPrompt: FedAvg of an adapter (`fedseed.models.adapters`) in place of the whole model.

FedIT: Zhang et al., "Towards Building the Federated GPT: Federated Instruction Tuning", ICASSP 2024: LoRA with rank 8
and alpha 16, Adam. With `training.optimizer = "sgd"` it is FedKSeed's and Ferret's FedIT-SGD.
FedPTuning, FedPrompt: Kuang et al., "FederatedScope-LLM", KDD 2024: P-tuning with an MLP, and prompt tuning, 20 virtual
tokens each, SGD. Rates, epochs and batches are those of FedKSeed's comparison (ICML 2024, Appendix G.4), where every
local rate is 3e-4.
"""

from typing import ClassVar, Literal

from fedseed.methods.fedavg import FedAvg
from fedseed.models.adapters import Adapter, LoRA, PromptTuning, PTuning
from fedseed.training.settings import LocalTraining

_SGD = LocalTraining(optimizer="sgd", learning_rate=3e-4, epochs=1, batch=1, accumulation=1)


class FedIT(FedAvg):
    """FedIT's settings: those of `FedAvg`."""

    name: Literal["fedit"] = "fedit"  # type: ignore[assignment]
    code: ClassVar[int] = 10
    about: ClassVar[str] = "LoRA trained with Adam and averaged (ICASSP 2024)"
    adapter: ClassVar[Adapter | None] = LoRA()

    training: LocalTraining = LocalTraining(optimizer="adam", learning_rate=3e-4, epochs=1, batch=1, accumulation=1)


class FedPTuning(FedAvg):
    """FedPTuning's settings: those of `FedAvg`."""

    name: Literal["fedptuning"] = "fedptuning"  # type: ignore[assignment]
    code: ClassVar[int] = 11
    about: ClassVar[str] = "virtual tokens made by an MLP, both trained and averaged (KDD 2024)"
    adapter: ClassVar[Adapter | None] = PTuning()

    training: LocalTraining = _SGD


class FedPrompt(FedAvg):
    """FedPrompt's settings: those of `FedAvg`."""

    name: Literal["fedprompt"] = "fedprompt"  # type: ignore[assignment]
    code: ClassVar[int] = 12
    about: ClassVar[str] = "virtual tokens trained and averaged (KDD 2024)"
    adapter: ClassVar[Adapter | None] = PromptTuning()

    training: LocalTraining = _SGD
