"""Runs of every kind of change: they learn, and replay, resume and clients of their own have their
bits.
"""

from functools import partial

import pytest
import torch

from fedseed import FedKSeed, FedMeZO, FeedSign, MeZO, Orbit, RandOpt, ZOFedSGD
from fedseed.federation.client.worker import Worker
from fedseed.optimizers.rules import Squares
from support.problem import Problem
from support.tiers import mark
from support.zeroth_order import OBJECTIVE, QUICK, federation, model

MANY = QUICK | {"population": 8, "basis": "lowrank"}
RANDOPT = {"candidates": 16, "best": 3, "scale": 0.05, "learning_rate": 0.05, "batch": 40}
HALF, SHORT = torch.bfloat16, torch.float16
ZEROTH = {  # a method, its clients and its weights
    "fzoo": (
        MeZO(**MANY | {"learning_rate": 1e-4}, estimator="one-point", divide_by="deviation"),
        1,
        torch.float32,
    ),
    "zo-byte": (ZOFedSGD(**MANY, scalars="byte"), 3, HALF),
    "zo-decay": (
        ZOFedSGD(**MANY, seeds="shared", small_steps="from-base", decay=0.001),
        3,
        torch.float32,
    ),
    "votes": (FeedSign(**QUICK, votes_per_round=5, basis="hadamard", basis_size=16), 3, HALF),
    "votes-decay": (
        FeedSign(**QUICK, votes_per_round=2, small_steps="from-base", decay=0.01),
        3,
        SHORT,
    ),
    "pool-decay": (FedKSeed(**QUICK, candidates=64, steps=3, decay=0.1), 3, SHORT),
    "fedkseed-pro": (
        FedKSeed(**MANY | {"basis": "hadamard"}, candidates=64, steps=5, importance=True),
        3,
        HALF,
    ),
    "fedmezo": (FedMeZO(**MANY, steps=5, combine="exact"), 3, torch.float32),
    "momentum": (
        ZOFedSGD(**QUICK | {"learning_rate": 5e-3}, optimizer="momentum"),
        3,
        torch.float32,
    ),
    "meazo": (ZOFedSGD(**QUICK, seeds="shared", divide_by="scalar"), 3, HALF),
    "rebuilt": (
        MeZO(
            **QUICK, basis="normal", optimizer="adam-rebuilt", horizon=3, small_steps="stochastic"
        ),
        1,
        HALF,
    ),
    "randopt": (RandOpt(**RANDOPT), 3, torch.float32),
    "randopt-base": (RandOpt(**RANDOPT, small_steps="from-base"), 3, HALF),
    "rmsprop": (MeZO(**QUICK, basis="normal", optimizer="rmsprop", beta2=0.9), 1, HALF),
    "votes-hiso": (
        FeedSign(**QUICK, votes_per_round=3, basis="normal", optimizer="hiso", beta2=0.9),
        3,
        HALF,
    ),
    "hiso": (ZOFedSGD(**QUICK, basis="normal", optimizer="hiso", beta2=0.9), 3, HALF),
}
GRADIENTS = {
    "ferret-adam": ({"server": "adam", "global_rate": 0.01, "seeds": "per-client"}, HALF),
    "ferret-rms": (
        {"block_rate": "rms", "blocks": 3, "global_rate": 0.01, "server": "momentum"},
        HALF,
    ),
    "ferret-bit": (
        {"scalars": "bit", "directions": 512, "blocks": "tensor", "allocation": "size"},
        torch.float32,
    ),
    "ferret-exact": (
        {"exact": True, "directions": 50, "basis": "normal", "allocation": "uniform"},
        torch.float32,
    ),
    "ferret-fixed": ({"seeds": "fixed", "training": {"small_steps": "stochastic"}}, SHORT),
}


def made(name):
    """What makes a federation of this name, what makes its base, and its objective."""
    if name in ZEROTH:
        method, clients, dtype = ZEROTH[name]
        return partial(federation, method, clients, dtype), partial(model, dtype), OBJECTIVE
    settings, dtype = GRADIENTS[name]
    problem = Problem(dtype)
    training = problem.training.model_copy(update=settings.get("training", {}))
    method = problem.ferret(**{**settings, "training": training})
    return partial(problem.federation, method), problem.model, None


LONG = ("fedkseed-pro", "fedmezo", "momentum", "ferret-adam", "ferret-rms", "ferret-fixed")


@pytest.mark.parametrize("name", mark([*ZEROTH, *GRADIENTS], lambda name: name in LONG, "long"))
def test_replay_resume_and_clients_of_their_own_have_the_bits_of_the_run(name, tmp_path, quickly):
    make, base, objective = made(name)
    settings = {"evaluate_every": 3, "rounds": 8}
    whole = make(out=tmp_path / "whole", **settings).run()
    # eight steps of few directions each say little
    if name not in ("meazo", "rebuilt", "rmsprop", "votes-hiso", "hiso", "zo-byte"):
        assert whole.summary["final"]["loss"] < whole.summary["baseline"]["loss"]
    orbit = Orbit.open(tmp_path / "whole" / "model.orbit")
    for line in whole.metrics:
        assert orbit.replay(base(), line["round"]) == line["weights_digest"]
    make(out=tmp_path / "run", **settings | {"rounds": 4}).run()
    more = make(out=tmp_path / "run", **settings).run(resume=True, extend=True)
    assert more.summary["weights_digest"] == whole.summary["weights_digest"]
    assert (tmp_path / "run" / "model.orbit").read_bytes() == (
        tmp_path / "whole" / "model.orbit"
    ).read_bytes()
    late = Worker(base(), orbit.header.method, objective, 3)
    for record in orbit.steps(8):
        step = late.method.decode_step(late.state, record.payload)
        late.space.apply(late.method.change(late.state, step))
        late.state = late.method.advance(late.state, step)
    assert late.space.digest() == whole.summary["weights_digest"]
    if name == "meazo":
        assert late.state.squares != Squares() and late.state.squares.steps == 8
