"""The methods, one file each. A new one is a file, a line here, a recipe and a test."""

from fedseed.methods.base import Method
from fedseed.methods.fedavg import FedAvg
from fedseed.methods.ferret import Ferret

METHODS: tuple[type[Method], ...] = (Ferret, FedAvg)

__all__ = ["METHODS", "FedAvg", "Ferret", "Method"]
