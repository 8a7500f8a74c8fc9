"""`fedseed bench`, `partition` and `list`: what a recipe will cost, who holds what, what there is."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedseed.cli.common import JsonOption, PluginOption, RecipeArgument, answer, console
from fedseed.cli.groups import Reading, ReadingForDevice, Telling, grouped
from fedseed.cli.listing import ENDINGS, HEADINGS, LISTED, listing
from fedseed.errors import RecipeError


@grouped
def bench(
    recipe: RecipeArgument,
    tokens: Annotated[
        int | None, typer.Option(min=2, help="For the memory: tokens of an example, in place of the longest possible.")
    ] = None,
    memory_only: Annotated[
        bool, typer.Option("--memory", help="Reckon the memory by the base's shapes, and load and time nothing.")
    ] = False,
    as_json: JsonOption = False,
    *,
    reading: ReadingForDevice,
) -> None:
    """Say what a recipe will cost on this machine: seconds by phase, bytes and memory, from one round of it."""
    shown, checked = Telling(as_json).screen(), reading.read(recipe)
    from fedseed.experiments.bench import cost_table, fits, measure, memory_table  # torch from here on
    from fedseed.experiments.reckoning import reckon
    from fedseed.models.loading import has_weights, quiet

    quiet()
    memory = reckon(checked, tokens)
    enough, said = fits(memory, checked.model.device)
    for part in (*memory_table(memory), said):
        shown.print(part, highlight=False)
    untimed, cost = None, None
    if memory_only:
        untimed = "--memory"
    elif not has_weights(checked.model.base):
        untimed = f"{checked.model.base} is a configuration without weights"
        shown.print(f"Nothing was timed: {untimed}.", highlight=False)
    elif not enough:
        untimed = "for want of memory"
        shown.print(f"Nothing was timed, {untimed}.", highlight=False)
    else:
        with shown.status("running one round, shortened"):
            cost = measure(checked)
        for part in cost_table(cost):
            shown.print(part, highlight=False)
    if as_json:
        reckoned = {**asdict(memory), "total": memory.total, "fits": enough}
        timed = None if cost is None else {**asdict(cost), "total_seconds": cost.total}
        answer({"memory": reckoned, "measured": timed, "untimed": untimed})


@grouped
def partition(
    recipe: RecipeArgument,
    out: Annotated[Path | None, typer.Option(help="PNG file: a picture of who holds what.")] = None,
    as_json: JsonOption = False,
    *,
    reading: Reading,
) -> None:
    """Say who holds what: each client's examples by label. Needs the data, no model."""
    from fedseed.reports.partition import draw_partition, partition_statistics, partition_table

    task = reading.read(recipe).task
    if out is not None and out.suffix != ".png":
        raise RecipeError(f"--out {out}: the picture is a .png file")
    data = task.load()
    held = partition_statistics(data)
    shown = Telling(as_json).screen()
    for part in partition_table(held):
        shown.print(part, highlight=False)
    for text in data.notes:
        shown.print(text, highlight=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        draw_partition(held, _partition_title(task), out)
        shown.print(f"Picture: {out}")
    if as_json:
        rows = zip(held.clients, held.counts.tolist(), strict=True)
        clients = {name: dict(zip(held.labels, row, strict=True)) for name, row in rows}
        answer({"clients": clients, "skew": held.skew, "notes": list(data.notes)})


def list_(what: Annotated[LISTED, typer.Argument()], plugin: PluginOption = None, as_json: JsonOption = False) -> None:
    """List what there is, and where it comes from."""
    rows, broken = listing(what, plugin or [])
    if as_json:
        answer([dict(zip(HEADINGS[what], row, strict=False)) for row in rows])
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for line in broken:
        console.print(Text(line, style="yellow"), soft_wrap=True)
    if what in ENDINGS:
        console.print(Text(f"\n{ENDINGS[what]}"), soft_wrap=True)


def _partition_title(task: Any) -> str:
    """Returns what a picture of a task's partition is called: "dolly-15k, dirichlet: alpha = 0.5, minimum = 10"."""
    dealt = getattr(task, "partition", None)
    if dealt is None:
        return str(task.name)
    settings = ", ".join(f"{k} = {v}" for k, v in dealt.model_dump(exclude={"kind"}).items() if v != [])
    return f"{task.name}, {dealt.kind}" + (f": {settings}" if settings else "")
