"""Make nodes from a model, a node's examples and the run's settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedseed.aggregation import AggregationRule, Mean
from fedseed.decentralised.entry import Identity, fingerprint_of
from fedseed.decentralised.fitting import find_obstacle
from fedseed.decentralised.history import History
from fedseed.decentralised.model import INTERVAL, KEPT, MeshModel
from fedseed.decentralised.node import Node
from fedseed.decentralised.pace import PaceSettings
from fedseed.errors import RecipeError
from fedseed.federation.client.state import Hosted
from fedseed.federation.coordinator.bounds import Bounds
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.transport.signatures import Signatures
from fedseed.transport.subjects import name_problem

LOGS = "logs"  # name of a file in a node's folder


@dataclass(frozen=True)
class MeshSpec:
    """The common settings of a run's nodes besides the model, and their patience."""

    run: str  # the run's name
    names: Sequence[str]  # the names of all possible nodes, in the order of their numbers
    rounds: int
    aggregation: AggregationRule = field(default_factory=Mean)
    bounds: Bounds = field(default_factory=Bounds)
    pace: PaceSettings = field(default_factory=PaceSettings)
    interval: int = INTERVAL  # rounds between checkpoints
    kept: int = KEPT  # most checkpoints that are kept, each a copy of the trainable tensors


def make_node(
    spec: MeshSpec,
    hosted: Hosted,
    name: str,
    neighbours: Sequence[str],
    current_time: float,
    folder: Path | None = None,
    signatures: Signatures | None = None,
) -> Node:
    """Return a node at its base, with the logs that an earlier process has left in its folder.

    Args:
        spec: the run's settings.
        hosted: the model, not tuned yet, and the node's examples, under its name.
        name: the node's name.
        neighbours: the names of the nodes that it sends to and hears.
        current_time: seconds of the node's clock.
        folder: keeps the logs; None: keep them only in memory, so that they are lost with the
            process.
        signatures: its key, and the public keys of all nodes; None: nothing is signed.

    Raises:
        RecipeError: the method can't work without a coordinator, or a name is not valid.
        StorageError: a log can't be written, is damaged, or is of another run.
    """
    worker, header = hosted.worker, hosted.header
    obstacle = find_obstacle(worker.method, spec.aggregation)
    if obstacle:
        raise RecipeError(f"a mesh can't run this: {obstacle}")
    for one in spec.names:
        problem = name_problem(one)
        if problem:
            raise RecipeError(f"node {one!r}: {problem}")
    for one in (name, *neighbours):
        if one not in spec.names:
            raise RecipeError(f"{one} is none of the nodes: {', '.join(spec.names)}")
    count = len(spec.names)
    coordinator = Coordinator(
        worker.method,
        header.layout,
        header.seed,
        [1] * count,  # clear what the weights could depend on: all nodes must have the same
        count,
        spec.aggregation,
        spec.bounds,
    )
    number = list(spec.names).index(name)
    model = MeshModel(hosted, coordinator, number, spec.interval, spec.kept)
    identity = Identity(spec.run, spec.names, signatures or Signatures())
    history = History(
        fingerprint_of(header, spec.run, spec.names, spec.rounds),
        identity,
        spec.rounds,
        model.check_update,
        None if folder is None else folder / LOGS,
    )
    return Node(name, neighbours, history, model, spec.pace, current_time)
