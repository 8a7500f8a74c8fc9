"""Meshes of the small problem: nodes with models of their own, and the plain reference."""

from fedseed.decentralised.assembly import MeshSpec, make_node
from fedseed.decentralised.pace import PaceSettings
from fedseed.decentralised.simulation import MeshSimulation
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.messages import Message, MessageKind
from fedseed.methods import REGISTRY
from support.parts import part_of
from support.problem import Problem

PACE = PaceSettings(deadline_seconds=60.0, silence_seconds=4.0, farewell_seconds=120.0)
METHODS = {
    "own": {"name": "zo-fedsgd", "seeds": "own", "learning_rate": 1e-2, "batch": 8},
    "byte": {
        "name": "zo-fedsgd",
        "seeds": "own",
        "scalars": "byte",
        "learning_rate": 1e-2,
        "batch": 8,
    },
    "shared": {"name": "zo-fedsgd", "seeds": "shared", "learning_rate": 1e-2, "batch": 8},
    "votes": {"name": "feedsign", "learning_rate": 1e-2, "batch": 8, "votes_per_round": 3},
    "adam": {
        "name": "zo-fedsgd",
        "seeds": "own",
        "learning_rate": 1e-3,
        "batch": 8,
        "optimizer": "adam",
    },
    "rebuilt": {
        "name": "zo-fedsgd",
        "seeds": "shared",
        "learning_rate": 1e-2,
        "batch": 8,
        "small_steps": "from-base",
        "basis": "hadamard",
    },
    "pool": {
        "name": "fedkseed",
        "basis": "hadamard",
        "basis_size": 64,
        "candidates": 64,
        "steps": 3,
        "learning_rate": 1e-2,
        "scale": 1e-3,
        "batch": 8,
        "weighting": "equal",
    },
}


def method_of(settings):
    return REGISTRY.find(settings["name"])(**settings)


def problem_of(count):
    """The small problem, dealt to `count` nodes."""
    problem = Problem()
    examples = [item for part in problem.clients for item in part]
    problem.clients = [examples[number::count] for number in range(count)]
    return problem


class Nodes:
    """Makes nodes of the small problem.

    Args:
        count: how many there are, called client-0, client-1, ...
        settings: the method's, as a recipe has them.
        rounds: how many.
        folder: where each node keeps its logs; None: nowhere.
        spec: other values of `MeshSpec`.
    """

    def __init__(self, count, settings, rounds, folder=None, signatures=None, **spec):
        self.problem = problem_of(count)
        self.method = method_of(settings)
        self.names = [f"client-{number}" for number in range(count)]
        self.spec = MeshSpec("mesh", self.names, rounds, **{"pace": PACE, "interval": 4, **spec})
        self.folder = folder
        self.signatures = signatures or {}

    def hosted(self, name):
        federation = self.problem.federation(
            self.method, rounds=self.spec.rounds, per_round=len(self.names), joint=False
        )
        return part_of(federation, [name])

    def make(self, name, neighbours, current_time=0.0):
        folder = None if self.folder is None else self.folder / name
        return make_node(
            self.spec,
            self.hosted(name),
            name,
            neighbours,
            current_time,
            folder,
            self.signatures.get(name),
        )

    def simulate(self, links, settings, seed):
        return MeshSimulation(self.make, links, settings, seed)

    def federated_digest(self):
        """The digest of `fedseed run` with the same clients."""
        federation = self.problem.federation(
            self.method, rounds=self.spec.rounds, per_round=len(self.names), joint=False
        )
        return federation.run().summary["weights_digest"]

    def reference_digest(self, history):
        """The digest of a plain reference: all steps sorted by (step, node), and applied from the
        base on, one round after the other."""
        hosted = self.hosted(self.names[0])
        worker, header = hosted.worker, hosted.header
        coordinator = Coordinator(
            self.method, header.layout, header.seed, [1] * len(self.names), len(self.names)
        )
        steps = sorted(
            (entry.round, entry.node, entry.payload)
            for log in history.logs
            for entry in log.entries
            if entry.payload
        )
        for number in range(1, history.last_round + 1):
            coordinator.open(number)
            for round_number, node, payload in steps:
                if round_number == number:
                    update = Message(
                        MessageKind.UPDATE, self.method.code, number, node, payload
                    ).encode()
                    coordinator.receive(update, node)
            worker.apply(coordinator.close().encode())
        return worker.space.digest()
