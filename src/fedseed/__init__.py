"""fedseed: federated tuning of all parameters of a model with seeds and scalars on the wire."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedseed.methods import (
        FedAvg,
        FedIT,
        FedKSeed,
        FedMeZO,
        FedPrompt,
        FedPTuning,
        FedSGD,
        FedZO,
        FeedSign,
        Ferret,
        MeZO,
        RandOpt,
        Sign,
        Subspace,
        TopK,
        ZOFedSGD,
    )
    from fedseed.randomness import Basis

__version__ = "0.1.0"

# names are imported when they are first used: a coordinator can do without torch, and `fedseed
# --help` without NumPy
_LAZY = {
    "Basis": "fedseed.randomness",
    "FedAvg": "fedseed.methods",
    "FedIT": "fedseed.methods",
    "FedKSeed": "fedseed.methods",
    "FedMeZO": "fedseed.methods",
    "FedPrompt": "fedseed.methods",
    "FedPTuning": "fedseed.methods",
    "FedSGD": "fedseed.methods",
    "FedZO": "fedseed.methods",
    "FeedSign": "fedseed.methods",
    "Ferret": "fedseed.methods",
    "MeZO": "fedseed.methods",
    "RandOpt": "fedseed.methods",
    "Sign": "fedseed.methods",
    "Subspace": "fedseed.methods",
    "TopK": "fedseed.methods",
    "ZOFedSGD": "fedseed.methods",
    "ParameterSpace": "fedseed.weights.space",
    "Federation": "fedseed.runs.assembly",
    "Orbit": "fedseed.orbit",
    "Swapper": "fedseed.own.swapper",
    "from_orbit": "fedseed.own.swapper",
    "ZOOptimizer": "fedseed.own.optimizer",
    "patch": "fedseed.own.trainer",
    "register_aggregation": "fedseed.extension",
    "register_method": "fedseed.extension",
    "register_metric": "fedseed.extension",
    "register_task": "fedseed.extension",
    "register_tracker": "fedseed.extension",
    "register_transport": "fedseed.extension",
}

__all__ = [
    "Basis",
    "FedAvg",
    "FedIT",
    "FedKSeed",
    "FedMeZO",
    "FedPTuning",
    "FedPrompt",
    "FedSGD",
    "FedZO",
    "Federation",
    "FeedSign",
    "Ferret",
    "MeZO",
    "Orbit",
    "ParameterSpace",
    "RandOpt",
    "Sign",
    "Subspace",
    "Swapper",
    "TopK",
    "ZOFedSGD",
    "ZOOptimizer",
    "from_orbit",
    "patch",
    "register_aggregation",
    "register_method",
    "register_metric",
    "register_task",
    "register_tracker",
    "register_transport",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        thing = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return thing
    raise AttributeError(f"module 'fedseed' has no attribute {name!r}")
