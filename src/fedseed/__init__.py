"""fedseed: federated tuning of all parameters of a model with seeds and scalars on the wire."""

from importlib import import_module
from typing import Any

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
    ZOFedSGD,
)
from fedseed.randomness import Basis

__version__ = "0.1.0"

# names that need torch are imported when they are first used, so that a coordinator can do without it
_LAZY = {
    "ParameterSpace": "fedseed.weights.space",
    "Federation": "fedseed.runs.assembly",
    "Orbit": "fedseed.orbit",
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
    "ZOFedSGD",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'fedseed' has no attribute {name!r}")
