"""The methods, one file each. A new method needs a file, a line here, a recipe and a test.

Other people's methods are in their own packages (entry point `fedseed.methods`) or in a plug-in
file.
"""

from typing import Any

from fedseed.methods.base import Method
from fedseed.methods.fedavg import FedAvg, FedIT, FedPrompt, FedPTuning
from fedseed.methods.fedkseed import FedKSeed
from fedseed.methods.fedmezo import FedMeZO
from fedseed.methods.fedsgd import FedSGD
from fedseed.methods.fedzo import FedZO
from fedseed.methods.feedsign import FeedSign
from fedseed.methods.ferret import Ferret
from fedseed.methods.mezo import MeZO
from fedseed.methods.randopt import RandOpt
from fedseed.methods.sign import Sign
from fedseed.methods.subspace import Subspace
from fedseed.methods.topk import TopK
from fedseed.methods.zofedsgd import ZOFedSGD
from fedseed.registry import Registry, check_class, name_of

METHODS: tuple[type[Method], ...] = (
    Ferret,
    FedKSeed,
    FeedSign,
    ZOFedSGD,
    MeZO,
    RandOpt,
    FedMeZO,
    FedZO,
    FedAvg,
    FedSGD,
    FedIT,
    FedPTuning,
    FedPrompt,
    TopK,
    Sign,
    Subspace,
)


def _check(thing: Any) -> None:
    check_class(thing, Method)
    code = getattr(thing, "code", None)
    if not isinstance(code, int) or not 1 <= code <= 255:
        raise ValueError(
            f"{thing.__qualname__}.code = {code!r}: must be a number from 128 to 255 that no "
            "other method has"
        )


REGISTRY: Registry[type[Method]] = Registry(
    "method",
    "fedseed.methods",
    ((str(name_of(method)), method) for method in METHODS),
    _check,
    lambda method: {"code": method.code},
    "1 to 127 are reserved for fedseed, and 128 to 255 are free",
)


def without_gradients(method: Method) -> str | None:
    """Return the reason why a method can't use a reward in place of the loss; None if it can."""
    if not method.needs_gradients:
        return None
    others = ", ".join(
        entry.name for entry in REGISTRY.entries() if not entry.thing.needs_gradients
    )
    return (
        f"reward: {method.name} needs gradients, but a reward has none: choose method.name among "
        f"{others}"
    )


__all__ = [
    "METHODS",
    "REGISTRY",
    "FedAvg",
    "FedIT",
    "FedKSeed",
    "FedMeZO",
    "FedPTuning",
    "FedPrompt",
    "FedSGD",
    "FedZO",
    "FeedSign",
    "Ferret",
    "MeZO",
    "Method",
    "RandOpt",
    "Sign",
    "Subspace",
    "TopK",
    "ZOFedSGD",
    "without_gradients",
]
