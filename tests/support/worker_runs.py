"""Small federations by name, which worker processes make for themselves."""

import os
import threading
import time
from errno import ENOSPC
from functools import partial

import torch
from torch.nn.functional import cross_entropy

from fedseed import (
    FedAvg,
    Federation,
    FedKSeed,
    FedMeZO,
    FedSGD,
    FeedSign,
    Ferret,
    Subspace,
    TopK,
    ZOFedSGD,
)
from fedseed.errors import RecipeError
from fedseed.objectives.losses import Supervised
from fedseed.runs.workers import Workers
from support.parts import part_of
from support.problem import TRAINING, Problem

SPOILT = 1e7
FAST = {"basis": "rademacher", "batch": 8, "scale": 1e-3, "learning_rate": 1e-2}
STEPS = {"rounds": 9, "evaluate_every": 4}
FERRET = {"directions": 300, "basis": "hadamard", "blocks": 2, "training": TRAINING}

# name: method, settings of the federation
RUNS = {
    "ferret": (Ferret(**FERRET, seeds="shared", allocation="previous"), {}),
    "ferret-own": (Ferret(**FERRET, seeds="per-client"), {"dtype": torch.bfloat16}),
    "fedkseed": (FedKSeed(**FAST, candidates=64, steps=5, importance=True), {}),
    "feedsign": (FeedSign(**FAST, votes_per_round=3, optimizer="adam"), STEPS),
    "feedsign-apart": (FeedSign(**FAST, votes_per_round=2), {**STEPS, "joint": False}),
    "feedsign-base": (FeedSign(**FAST, small_steps="from-base"), STEPS),
    "zo-fedsgd": (ZOFedSGD(**FAST, seeds="shared"), STEPS),
    "fedavg": (FedAvg(training=TRAINING, global_rate=0.5), {}),
    "fedavg-adam": (FedAvg(training=TRAINING, global_rate=0.05, server="adam"), {}),
    "fedsgd": (FedSGD(learning_rate=0.1), {}),
    "fedmezo": (FedMeZO(**FAST, steps=4, personal="loss-5"), {}),
    "fedmezo-tensors": (FedMeZO(**FAST, steps=4, personal="update", travel="tensors"), {}),
    "topk": (TopK(share=0.1, training=TRAINING), {}),
    "subspace": (Subspace(rank=4, training=TRAINING), {"dtype": torch.bfloat16}),
    "subspace-feedback": (Subspace(rank=4, refresh=0, feedback=True, training=TRAINING), {}),
    "attacked": (
        ZOFedSGD(**FAST),
        {**STEPS, "joint": False, "attack": "random", "attackers": [1, 4], "per_round": 5},
    ),
}


class Spoilt(Supervised):
    """An objective that does something else where a client's examples begin with SPOILT."""

    def __init__(self, act):
        super().__init__(lambda out, y: cross_entropy(out.float(), y, reduction="none"))
        self.act = act

    def losses(self, model, items):
        if any(float(x[0]) == SPOILT for x, _ in items):
            self.act()
        return super().losses(model, items)


class OddError(Exception):
    """One that does not travel: it can't be made again from its text."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def refuse():
    raise RecipeError("this client's examples are no good")


def odd():
    raise OddError("this", "that")


def full():
    raise OSError(ENOSPC, "No space left on device")


def die():
    os._exit(7)


ACTS = {"refuse": refuse, "odd": odd, "full": full, "die": die, "stay": lambda: time.sleep(600)}


def federation(name, act=None, **settings):
    """A federation; with `act` the examples of client 2 bring it about."""
    method, own = RUNS[name]
    own = {**own, **settings}
    problem = Problem(own.pop("dtype", torch.float32))
    if act is None:
        return problem.federation(method, **own)
    problem.clients[2] = [(torch.full_like(x, SPOILT), y) for x, y in problem.clients[2]]
    defaults = {"rounds": 6, "seed": 3, "evaluation": {"": problem.test}, "evaluate_every": 2}
    return Federation(
        problem.model(), problem.clients, method, Spoilt(ACTS[act]), **{**defaults, **own}
    )


def hosted(name, act=None, **settings):
    """What a worker loads for it."""
    return part_of(federation(name, act, **settings), ["*"])


def workers(name, count, act=None, cluster=None, **settings):
    """Workers with one thread each."""
    return Workers(partial(hosted, name, act, **settings), count, 1, cluster)


def endless(out, errors):
    """A run in which client 2 never ends: writes the workers' process ids when they have loaded.

    Args:
        out, errors: files for what this process and its workers say.
    """
    for number, file in enumerate((out, errors), 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    run = federation("ferret", "stay", workers=workers("ferret", 2, "stay"))

    def tell():
        # loaded: one works for client 2
        while not all(seat.start is not None for seat in run.team.seats):
            time.sleep(0.02)
        print(*(seat.process.pid for seat in run.team.seats), flush=True)

    threading.Thread(target=tell, daemon=True).start()
    run.run()
