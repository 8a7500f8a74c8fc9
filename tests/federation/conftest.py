"""A small real problem that trains in milliseconds: a linear teacher, learnt by a two-layer network."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import Federation, Ferret
from fedseed.training.objectives import Supervised
from fedseed.training.settings import LocalTraining

TRAINING = LocalTraining(rate=0.3, batch=8, accumulation=2, steps=5)


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

    def model(self):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5)).to(self.dtype)

    def ferret(self, **settings):
        defaults = {"directions": 300, "basis": "hadamard", "blocks": "one", "seeds": "shared", "training": TRAINING}
        return Ferret(**{**defaults, **settings})

    def federation(self, method, **settings):
        objective = Supervised(lambda out, y: cross_entropy(out.float(), y, reduction="none"))
        defaults = {"rounds": 6, "per_round": 3, "seed": 3, "evaluation": {"": self.test}, "evaluate_every": 2}
        return Federation(self.model(), self.clients, method, objective, **{**defaults, **settings})


@pytest.fixture
def problem():
    return Problem()


@pytest.fixture
def make_problem():
    return Problem


# -- networks ------------------------------------------------------------------------------------


def _network():
    """The module beside this one; tests are no package."""
    if "federation_network" not in sys.modules:
        spec = importlib.util.spec_from_file_location("federation_network", Path(__file__).with_name("network.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules["federation_network"] = module
        spec.loader.exec_module(module)
    return sys.modules["federation_network"]


@pytest.fixture(scope="session")
def starter():
    """Starts processes in milliseconds."""
    made = _network().Starter()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory):
    """A nats-server for tests that leave it alone."""
    if os.environ.get("FEDSEED_WITHOUT_NATS"):
        pytest.skip("FEDSEED_WITHOUT_NATS is set")
    server = _network().Server(tmp_path_factory.mktemp("nats"))
    yield server
    server.kill()


@pytest.fixture
def server(tmp_path):
    """A nats-server of the test's own, to be killed."""
    if os.environ.get("FEDSEED_WITHOUT_NATS"):
        pytest.skip("FEDSEED_WITHOUT_NATS is set")
    made = _network().Server(tmp_path / "nats")
    yield made
    made.kill()


@pytest.fixture
def network(starter, tmp_path, request):
    """Makes networks, and ends their processes."""
    made = []

    def make(server, recipe, **common):
        name = "".join(c if c.isalnum() else "_" for c in request.node.name)
        made.append(_network().Network(starter, server, tmp_path, recipe, run=name, **common))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def in_process():
    """Runs a recipe here, with one thread as the network's processes do: first-order training sums by threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield _network().in_process
    torch.set_num_threads(before)
