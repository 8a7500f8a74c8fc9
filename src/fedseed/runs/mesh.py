"""Does what `fedseed mesh` does: runs a recipe without a coordinator, as one node over NATS or with
all nodes simulated in this process.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedseed.decentralised.assembly import MeshSpec, make_node
from fedseed.decentralised.model import MeshModel
from fedseed.decentralised.node import Node
from fedseed.decentralised.pace import PaceSettings
from fedseed.decentralised.process import MeshProcess, MeshResult, describe_nodes
from fedseed.decentralised.simulation import (
    Link,
    MeshSimulation,
    NetworkSettings,
    random_graph,
)
from fedseed.durable import locked, make_folder, write_whole
from fedseed.errors import FedseedError, NetworkError, RecipeError
from fedseed.federation.client.state import Hosted
from fedseed.orbit.file import begin, write_orbit
from fedseed.orbit.record import ending, pack_records
from fedseed.recipe.settings import Recipe
from fedseed.reports.progress import Progress
from fedseed.runs.assembly import host
from fedseed.runs.folder import compare_recipes
from fedseed.runs.joining import ORBIT, Loading
from fedseed.runs.model_setup import Evaluation, make_evaluation
from fedseed.runs.parties import join_parties, load_data, load_parties
from fedseed.tasks.data import OwnData
from fedseed.text import listed
from fedseed.transport.base import Access
from fedseed.transport.nats_mesh import NatsMesh
from fedseed.transport.signatures import Signatures

RECIPE, RESULT = "recipe.toml", "mesh.json"
BEATS = 6  # summaries in the time after which a silent node counts as away
# beyond which a simulation gives up: a day of the nodes' clocks
MOST_SECONDS = 86_400.0
SHOWN = 12  # names in a message


def make_spec(recipe: Recipe, names: Sequence[str], run: str) -> MeshSpec:
    """Return what a recipe's run without a coordinator is.

    Args:
        recipe: the recipe.
        names: of all nodes, in the order of their numbers.
        run: the run's name.

    Raises:
        RecipeError: the recipe has something that needs a coordinator; the text names the key.
    """
    obstacle = next(filter(None, _list_obstacles(recipe, names)), None)
    if obstacle:
        raise RecipeError(f"a mesh can't run this recipe: {obstacle}")
    federation = recipe.federation
    pace = PaceSettings(
        federation.deadline,
        federation.dead_after,
        federation.dead_after / BEATS,
        farewell_seconds=max(60.0, 2 * federation.dead_after),
    )
    return MeshSpec(run, names, recipe.rounds, recipe.aggregation, recipe.bounds, pace)


def _list_obstacles(recipe: Recipe, names: Sequence[str]) -> Iterator[str | None]:
    federation = recipe.federation
    if len(names) < 2:
        yield f"it has {len(names)} node: name the others in federation.clients"
    if recipe.secure_sums is not None:
        yield (
            "[secure_sums]: nobody collects the sum of a round; every node needs every update. "
            "Leave it out"
        )
    if recipe.attack is not None:
        yield "[attack]: attacks are made in `fedseed run`; leave it out"
    if recipe.stopping is not None:
        yield "[stopping]: nobody decides for all when to stop; leave it out"
    if federation.enrolment == "open":
        yield (
            'federation.enrolment = "open": nobody keeps the list of nodes; name all that may ever '
            "take part in federation.clients"
        )
    if federation.count(len(names)) < len(names):
        yield (
            "federation.per_round, federation.fraction: nobody draws the nodes of a round, and all "
            "take part; leave it out"
        )
    if recipe.tracking:
        yield "[[tracking]]: a node sends no metrics to a tracker; leave it out"


@dataclass(frozen=True)
class MeshSite:
    """What is one node's own.

    Args:
        name: the node's name.
        neighbours: names of its neighbours, or "NAME=URL" for one that is heard on a server of its
            own; none: all other nodes.
        folder: for its logs and the result.
        own_data: where its examples lie; None: the recipe's paths.
    """

    name: str
    neighbours: Sequence[str]
    folder: Path
    own_data: OwnData | None = None


def parse_neighbours(texts: Sequence[str]) -> dict[str, str | None]:
    """Return the server of each neighbour by name; None: this node's own server.

    Args:
        texts: "NAME" or "NAME=URL".
    """
    servers: dict[str, str | None] = {}
    for text in texts:
        name, equals, url = text.partition("=")
        servers[name] = url if equals else None
    return servers


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Keep a node's folder for this process alone.

    Raises:
        FedseedError: another process works in it, or it can't be made.
    """
    make_folder(folder)
    try:
        with locked(folder / "lock", 0.0):
            yield
    except TimeoutError as error:
        raise FedseedError(
            f"{folder}: another process runs this node; end it, or choose another folder with --out"
        ) from error


def run_node(
    recipe: Recipe,
    run: str,
    site: MeshSite,
    access: Access,
    progress: Progress,
    leave: bool = False,
) -> MeshResult:
    """Run one node over NATS until the run is over, and keep its orbit.

    Args:
        recipe: the recipe, the same at all nodes.
        run: the run's name.
        site: what is this node's own.
        access: the node's server, its key and certificates.
        progress: shows the run going on.
        leave: end this node's log, so that nobody waits for it, and go.

    Raises:
        RecipeError: the recipe, or a name, does not fit.
        NetworkError: the node's own server can't be reached.
        StorageError: a file can't be written, is damaged, or is of another run.
    """
    with hold_folder(site.folder):
        keep_recipe(site.folder, recipe)
        load = Loading(recipe, [site.name], progress, site.own_data)
        if load.hosted != [site.name]:
            raise RecipeError(f"--node {site.name}: one name is expected, without a pattern")
        spec = make_spec(recipe, load.names, run)
        servers = parse_neighbours(site.neighbours)
        neighbours = list(servers) or [name for name in load.names if name != site.name]
        own_servers = {name: url for name, url in servers.items() if url is not None}
        transport = NatsMesh(access, run, own_servers)
        signatures = Signatures.from_key_file(access.key)
        hosted = load()
        for note in hosted.notes:
            progress.note(note)
        current_time = time.monotonic()
        node = make_node(spec, hosted, site.name, neighbours, current_time, site.folder, signatures)
        for note in node.history.notes:
            progress.warn(note)
        own_log = node.history.logs[node.number]
        if own_log.entries:
            progress.note(
                f"{site.name} goes on after step {own_log.last_round}; "
                f"{sum(node.history.counts):,} steps of all nodes are here"
            )
        process = MeshProcess(node, transport, progress, recipe.evaluation.every, leave)
        result = process.run()
        keep_result(site.folder, node.model, result)
        return result


def keep_recipe(folder: Path, recipe: Recipe) -> None:
    """Write the complete recipe into a node's folder, or compare it with the one that is there.

    Raises:
        RecipeError: the folder is of a run with another recipe.
    """
    file = folder / RECIPE
    if file.exists():
        compare_recipes(folder, recipe.to_toml(), extensible=False)
    else:
        write_whole(file, recipe.to_toml().encode())


def keep_result(folder: Path, model: MeshModel, result: MeshResult) -> None:
    """Write a node's orbit and what is known of the run, in place of what an earlier end has left.

    Raises StorageError: it can't be written.
    """
    records = pack_records(model.header.method, model.records())
    write_orbit(folder / ORBIT, begin(model.header), ending(records))
    text = json.dumps(asdict(result), indent=2)
    write_whole(folder / RESULT, f"{text}\n".encode())


def list_names(recipe: Recipe) -> list[str]:
    """Return the names of all nodes that a simulation of a recipe has, in the order of their
    numbers.

    Raises RecipeError: the data can't be had.
    """
    return [client.name for client in load_data(recipe).clients]


@dataclass(frozen=True)
class SimulatedMesh:
    """A simulated mesh, and how its network behaves.

    Args:
        network: delays, losses, links that are down, partitions.
        degree: the mean number of neighbours in a random graph; None: everybody is everybody's
            neighbour.
        seed: draws the graph and what happens on it; None: the recipe's.
    """

    network: NetworkSettings = field(default_factory=NetworkSettings)
    degree: float | None = None
    seed: int | None = None


@dataclass(frozen=True)
class SimulatedResult:
    """What all nodes of a simulated mesh have at its end."""

    digests: dict[str, str]  # of the weights, by node
    figures: dict[str, Any]  # the recipe's metrics at the first node's weights
    seconds: float  # of the nodes' clocks
    nodes: list[dict[str, Any]]  # steps, bytes and undone rounds of each node
    links: Sequence[Link]


def simulate(
    recipe: Recipe,
    settings: SimulatedMesh | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
    events: Callable[[MeshSimulation], None] | None = None,
) -> SimulatedResult:
    """Run all nodes of a recipe in this process, on a clock that is only a number.

    Each node has a model of its own.

    Args:
        recipe: the recipe.
        settings: the network; by default a fast one without faults.
        folder: for each node's logs and the first node's orbit; None: nothing is written.
        progress: shows notes.
        events: is given the simulation before it begins, to start and stop nodes at other times.

    Raises:
        RecipeError: the recipe has something that needs a coordinator.
        NetworkError: the nodes did not end within a day of their clocks, as in a network that never
            heals.
    """
    settings, progress = settings or SimulatedMesh(), progress or Progress()
    parts = load_parties(recipe) if recipe.of_parties else None
    data = recipe.task.load() if parts is None else join_parties(recipe, parts)
    names = [client.name for client in data.clients]
    spec = make_spec(recipe, names, "simulated")
    seed = recipe.seed if settings.seed is None else settings.seed
    degree = len(names) if settings.degree is None else settings.degree
    links = random_graph(names, degree, seed)

    def load(name: str, evaluates: bool) -> Hosted:
        def evaluate_with(equipment: Any) -> tuple[Evaluation, list[str]]:
            if evaluates and recipe.evaluates:
                return make_evaluation(recipe, equipment, data, parts)
            return (lambda model: {}), []

        part = replace(data, clients=[one for one in data.clients if one.name == name])
        return host(recipe, part, names, evaluate_with)[1]

    def make(name: str, neighbours: Sequence[str], current_time: float) -> Node:
        place = None if folder is None else folder / name
        hosted = load(name, name == names[0])
        return make_node(spec, hosted, name, neighbours, current_time, place)

    simulation = MeshSimulation(make, links, settings.network, seed)
    if events is None:
        for name in names:
            simulation.start(name)
    else:
        events(simulation)
    if not simulation.run(MOST_SECONDS):
        raise NetworkError(
            f"after {MOST_SECONDS:,.0f} s of their clocks the nodes are not at the end: "
            f"{listed(sorted(set(simulation.nodes) - set(simulation.over)), SHOWN)}"
        )
    digests = simulation.digests()
    first = simulation.nodes[names[0]]
    figures = first.model.evaluate()
    if folder is not None:
        last = first.history.last_round
        result = MeshResult(digests[names[0]], last, figures, describe_nodes(first))
        keep_recipe(folder, recipe)
        keep_result(folder, first.model, result)
    lines = [describe_node(simulation.nodes[name]) for name in names if name in simulation.nodes]
    return SimulatedResult(digests, figures, simulation.now, lines, links)


def describe_node(node: Node) -> dict[str, Any]:
    """Return what a node has done: steps, bytes sent by purpose, rounds taken back."""
    return {
        "node": node.name,
        "neighbours": len(node.neighbours),
        "steps": node.history.counts[node.number],
        "undone_rounds": node.model.undone,
        **{f"bytes_{purpose}": count for purpose, count in sorted(node.sent.items())},
    }
