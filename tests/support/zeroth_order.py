"""The zeroth-order methods on a small real problem: three classes by a linear teacher, five
clients.
"""

import torch
from torch.nn.functional import cross_entropy

from fedseed import FedKSeed, FedZO, FeedSign, MeZO, ZOFedSGD
from fedseed.objectives.losses import Supervised
from fedseed.runs.assembly import Federation
from fedseed.weights.layout import Layout, TensorEntry

OBJECTIVE = Supervised(lambda out, y: cross_entropy(out.float(), y, reduction="none"))
LAYOUT = Layout((TensorEntry("w", (50,), "float32"),), (0, 50))
QUICK = {"learning_rate": 0.02, "scale": 1e-3, "batch": 8}


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).to(
        dtype
    )


def data(clients=5, dtype=torch.float32):
    g = torch.Generator().manual_seed(1)
    teacher = torch.randn(10, 3, generator=g)
    made = []
    for _ in range(clients + 1):
        x = torch.randn(40, 10, generator=g)
        made.append([(row.to(dtype), (row @ teacher).argmax()) for row in x])
    return made[:-1], made[-1]


def federation(method, clients=5, dtype=torch.float32, **settings):
    train, test = data(clients, dtype)
    defaults = {"rounds": 40, "seed": 3, "evaluation": {"": test}, "evaluate_every": 20}
    return Federation(model(dtype), train, method, OBJECTIVE, **{**defaults, **settings})


METHODS = {
    "mezo-adam": (MeZO(**QUICK, estimates=2, optimizer="adam"), 1),
    "zo-own": (ZOFedSGD(**QUICK), 5),
    "zo-shared": (ZOFedSGD(**QUICK, seeds="shared"), 5),
    "feedsign": (FeedSign(**QUICK), 5),
    "fedkseed": (FedKSeed(**QUICK, candidates=64, steps=10), 5),
    "fedzo": (FedZO(**QUICK, steps=10, estimates=2), 5),
}
