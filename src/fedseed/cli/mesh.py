"""`fedseed mesh`: tuning without a coordinator."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedseed.cli.common import (
    ReadingForDevice,
    RecipeArgument,
    Telling,
    answer,
    grouped,
    interruptible,
    say,
)
from fedseed.cli.network import Reaching, run_name
from fedseed.cli.waiting import waiting
from fedseed.errors import RecipeError, plural
from fedseed.metrics import metric_text, metric_title, shown_metrics
from fedseed.recipe.settings import Recipe
from fedseed.reports.progress import Shown
from fedseed.reports.tables import plain_table
from fedseed.tasks.data import OwnData

# lines of progress that a node without a terminal prints
PROGRESS_LINES = 20


@dataclass(frozen=True)
class Place:
    """Options of one node."""

    node: Annotated[
        str | None,
        typer.Option(help="The node that this process runs. Default: simulate all nodes here."),
    ] = None
    neighbour: Annotated[
        list[str] | None,
        typer.Option(
            help="A neighbour of this node; repeatable. NAME=URL: one with a server of its own. "
            "Default: all other nodes."
        ),
    ] = None
    data: Annotated[Path | None, typer.Option(help="The node's own data, a file or a folder.")] = (
        None
    )
    leave: Annotated[
        bool,
        typer.Option("--leave", help="End this node for good: the others no longer wait for it."),
    ] = False


@dataclass(frozen=True)
class Simulated:
    """Options of a simulated network."""

    degree: Annotated[
        float | None,
        typer.Option(
            min=1, help="Simulated: neighbours of a node on average. Default: all others."
        ),
    ] = None
    down: Annotated[
        float, typer.Option(min=0, max=0.9, help="Simulated: the share of links that are down.")
    ] = 0.0
    loss: Annotated[
        float, typer.Option(min=0, max=0.9, help="Simulated: the share of messages that are lost.")
    ] = 0.0
    partition: Annotated[
        str | None,
        typer.Option(
            help="Simulated: BEGIN:END in seconds, while the first half of the nodes is cut off."
        ),
    ] = None


@grouped
def mesh(
    recipe: RecipeArgument,
    run_folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for logs and orbit. Default: runs/RUN-NODE or runs/RUN-mesh."
        ),
    ] = None,
    *,
    place: Place,
    reaching: Reaching,
    simulated: Simulated,
    reading: ReadingForDevice,
    telling: Telling,
) -> None:
    """Tune without a coordinator: as one node among neighbours, or with all nodes simulated here.

    After an interruption, the same command continues.
    """
    checked = reading.read_recipe(recipe)
    name = run_name(checked, recipe, reaching.run)
    screen = telling.screen()
    if place.node is None:
        _check_alone(place, reaching)
        result = _simulate(checked, run_folder or Path("runs") / f"{name}-mesh", simulated, screen)
    else:
        if simulated != Simulated():
            raise RecipeError(
                "--degree, --down, --loss, --partition: for a simulated mesh; leave out --node"
            )
        folder = run_folder or Path("runs") / f"{name}-{place.node}"
        result = _run_node(checked, name, place, reaching, folder, screen)
    if telling.as_json:
        answer(result)


def _check_alone(place: Place, reaching: Reaching) -> None:
    """Raise RecipeError for an option of a node where all are simulated."""
    given = [
        option
        for option, value in (
            ("--neighbour", place.neighbour),
            ("--data", place.data),
            ("--leave", place.leave),
            ("--nats", reaching.nats),
            ("--key", reaching.key),
            ("--ca", reaching.ca),
        )
        if value
    ]
    if given:
        raise RecipeError(f"{given[0]}: give this node's name with --node NAME")


def _run_node(
    recipe: Recipe,
    name: str,
    place: Place,
    reaching: Reaching,
    folder: Path,
    screen: Console,
) -> dict[str, Any]:
    node = place.node or ""
    access = reaching.reach(recipe, node)
    with waiting("loading torch"):
        from fedseed.runs.mesh import MeshSite, run_node

    own_data = None if place.data is None else OwnData(place.data)
    site = MeshSite(node, place.neighbour or [], folder, own_data)
    with interruptible():
        result = run_node(recipe, name, site, access, Shown(screen, PROGRESS_LINES), place.leave)
    rows = [
        (one["node"], str(one["entries"]), str(one["last_step"]), one["state"])
        for one in result.by_node
    ]
    screen.print(plain_table(("node", "steps", "last", "state"), rows))
    _tell_end(result.digest, result.figures, folder, screen)
    return asdict(result)


def _simulate(recipe: Recipe, folder: Path, options: Simulated, screen: Console) -> dict[str, Any]:
    with waiting("loading torch"):
        from fedseed.decentralised.simulation import NetworkSettings, Partition
        from fedseed.runs.mesh import SimulatedMesh, list_names, simulate

    names = list_names(recipe)
    partitions = []
    if options.partition is not None:
        begin, end = parse_partition(options.partition)
        partitions = [Partition(begin, end, frozenset(names[: len(names) // 2]))]
    network = NetworkSettings(loss=options.loss, down=options.down, partitions=partitions)
    with interruptible():
        result = simulate(recipe, SimulatedMesh(network, options.degree), folder, Shown(screen))
    say(
        f"{plural(len(names), 'node')}, {plural(len(result.links), 'link')}, "
        f"{result.seconds:,.1f} s of simulated time",
        screen,
    )
    screen.print(plain_table(_COLUMNS, [_row(node) for node in result.nodes]))
    digests = set(result.digests.values())
    if len(digests) > 1:
        say(f"the nodes have {len(digests)} digests: {', '.join(sorted(digests))}", screen)
    _tell_end(result.digests[names[0]], result.figures, folder, screen)
    return asdict(result)


_COLUMNS = ("node", "neighbours", "steps", "undone", "B of steps", "B of repairs", "B of upkeep")


def _row(node: Mapping[str, Any]) -> Sequence[str]:
    counts = [node.get(f"bytes_{purpose}", 0) for purpose in ("steps", "repairs", "upkeep")]
    return (
        node["node"],
        str(node["neighbours"]),
        str(node["steps"]),
        str(node["undone_rounds"]),
        *(f"{count:,}" for count in counts),
    )


def _tell_end(digest: str, figures: Mapping[str, Any], folder: Path, screen: Console) -> None:
    for name in shown_metrics(figures):
        say(f"{metric_title(name)} {metric_text(name, figures[name])}", screen)
    say(f"weights digest: {digest}", screen)
    say(f"Files: {folder}", screen)
    say(f"Next: fedseed orbit replay {folder}/model.orbit --out tuned", screen)


def parse_partition(text: str) -> tuple[float, float]:
    """Return begin and end of `--partition`, in seconds.

    Raises RecipeError: it is not BEGIN:END.
    """
    begin, _, end = text.partition(":")
    try:
        times = float(begin), float(end)
    except ValueError:
        times = (0.0, 0.0)
    if not 0 <= times[0] < times[1]:
        raise RecipeError(f"--partition {text}: write BEGIN:END in seconds, such as 20:50")
    return times
