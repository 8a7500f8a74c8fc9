"""The methods, one file each. A new one is a file, a line here, a recipe and a test."""

from fedseed.methods.adapted import FedIT, FedPrompt, FedPTuning
from fedseed.methods.base import Method
from fedseed.methods.fedavg import FedAvg
from fedseed.methods.fedkseed import FedKSeed
from fedseed.methods.fedmezo import FedMeZO
from fedseed.methods.fedsgd import FedSGD
from fedseed.methods.fedzo import FedZO
from fedseed.methods.feedsign import FeedSign
from fedseed.methods.ferret import Ferret
from fedseed.methods.mezo import MeZO
from fedseed.methods.zofedsgd import ZOFedSGD

METHODS: tuple[type[Method], ...] = (
    Ferret, FedKSeed, FeedSign, ZOFedSGD, MeZO, FedMeZO, FedZO, FedAvg, FedSGD, FedIT, FedPTuning, FedPrompt,
)  # fmt: skip

__all__ = [
    "METHODS",
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
    "ZOFedSGD",
]
