"""A small real problem that trains in milliseconds: a linear teacher, learnt by a two-layer
network.
"""

import torch
from torch.nn.functional import cross_entropy

from fedseed import Federation, Ferret
from fedseed.objectives.losses import Supervised
from fedseed.training.settings import LocalTraining

STEPS = {"learning_rate": 0.3, "batch": 8, "accumulation": 2, "steps": 5}
TRAINING = LocalTraining(**STEPS)
METHODS = {  # as recipes have them
    "ferret": {
        "name": "ferret",
        "directions": 300,
        "basis": "hadamard",
        "blocks": "one",
        "seeds": "shared",
        "allocation": "previous",
        "training": STEPS,
    },
    "subspace": {
        "name": "subspace",
        "rank": 4,
        "training": {**STEPS, "optimizer": "adamw", "learning_rate": 0.02},
    },
    "feedsign": {"name": "feedsign", "basis": "rademacher", "learning_rate": 1e-2, "batch": 8},
    "fedkseed-pro": {
        "name": "fedkseed",
        "basis": "hadamard",
        "basis_size": 64,
        "candidates": 64,
        "steps": 6,
        "learning_rate": 1e-2,
        "scale": 1e-3,
        "batch": 8,
        "importance": True,
    },
    "zo-fedsgd": {"name": "zo-fedsgd", "basis": "rademacher", "learning_rate": 1e-2, "batch": 8},
    "fedavg": {"name": "fedavg", "global_rate": 1.5, "training": STEPS},
    "fedadam": {"name": "fedavg", "server": "adam", "global_rate": 0.01, "training": STEPS},
    "fedsgd": {"name": "fedsgd", "learning_rate": 0.1, "batch": 8},
    "fedmezo": {
        "name": "fedmezo",
        "travel": "tensors",
        "personal": "update",
        "steps": 4,
        "learning_rate": 1e-2,
        "batch": 8,
    },
}


class Problem:
    training = TRAINING

    def __init__(self, dtype=torch.float32):
        self.dtype = dtype
        g = torch.Generator().manual_seed(1)
        teacher = torch.randn(20, 5, generator=g)

        def data(count):
            x = torch.randn(count, 20, generator=g)
            return [(row.to(dtype), (row @ teacher).argmax()) for row in x]

        self.clients = [data(60 + 10 * i) for i in range(5)]
        self.test = data(300)

    def spoil(self):
        """Give two clients other data: fewer examples, and such whose losses are no numbers."""
        self.clients[1] = [(x * 3, y) for x, y in self.clients[1][:9]]
        self.clients[2] = [(x * float("nan"), y) for x, y in self.clients[2]]

    def model(self):
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5)
        ).to(self.dtype)

    def ferret(self, **settings):
        defaults = {
            "directions": 300,
            "basis": "hadamard",
            "blocks": "one",
            "seeds": "shared",
            "training": TRAINING,
        }
        return Ferret(**{**defaults, **settings})

    def federation(self, method, **settings):
        objective = Supervised(lambda out, y: cross_entropy(out.float(), y, reduction="none"))
        defaults = {
            "rounds": 6,
            "per_round": 3,
            "seed": 3,
            "evaluation": {"": self.test},
            "evaluate_every": 2,
        }
        return Federation(self.model(), self.clients, method, objective, **{**defaults, **settings})
