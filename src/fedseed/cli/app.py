"""The command line. Exit codes: 0 done; 2 the command line or the recipe is wrong; 1 anything else."""

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedseed.cli import network, pages
from fedseed.cli.common import (
    DeviceOption,
    PluginOption,
    SetOption,
    ThreadsOption,
    TrustOption,
    WorkersOption,
    note,
    settings,
)  # fmt: skip
from fedseed.cli.listing import LISTED, listing
from fedseed.cli.orbit import app as orbit_app
from fedseed.errors import FedseedError, RecipeError

# Let a waiting thread of torch's (GNU OpenMP) spin for microseconds, then sleep. By default it spins on and on, which
# on a machine that is busy with something else makes short operations ten times slower; sleeping at once makes them
# twice as slow on a free one. Must be set before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

TRAINING_PACKAGES = ("torch", "transformers", "tokenizers", "numba", "llvmlite", "rouge_score")

app = typer.Typer(
    help="Federated tuning of all parameters of a model with seeds and scalars on the wire.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(orbit_app, name="orbit")
network.register(app)
pages.register(app)
console = Console()


@app.callback()
def options(debug: Annotated[bool, typer.Option(help="Show a traceback if something fails.")] = False) -> None:
    """Options that stand before the command."""
    global _debug
    _debug = debug


_debug = False


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a packaged recipe.")],
    set_: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run's files. Default: runs/RECIPE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run in the folder stopped.")] = False,
    device: DeviceOption = None,
    workers: WorkersOption = None,
    threads: ThreadsOption = None,
    plugin: PluginOption = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Run a federation on this machine: in this process, or with --workers in several."""
    folder = out or Path("runs") / Path(recipe).stem
    summary = _run(recipe, settings(set_, device), folder, resume, plugin or [], trust_plugins, workers, threads)
    from fedseed.reports.tables import comparison_table

    console.print(comparison_table([(summary["method"], summary)]))
    console.print(f"Files: {folder}")


@app.command()
def compare(
    recipes: Annotated[list[str], typer.Argument(help="Recipes to run one after the other, or one sweep.")],
    out: Annotated[Path, typer.Option(help="Folder; each run gets a folder in it. Run again, it goes on there.")],
    set_: SetOption = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, such as 1,2,3: means and deviations.")] = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="Values to choose from on validation data: key=value,value, repeatable.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs of a sweep at a time; the cores are shared out.")] = 1,
    device: DeviceOption = None,
    workers: WorkersOption = None,
    threads: ThreadsOption = None,
    plugin: PluginOption = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Run several recipes and lay the results side by side; over seeds and grids of settings, too."""
    from fedseed.experiments.sweeps import find_sweep

    plugins, changes = plugin or [], settings(set_, device)
    sweep = find_sweep(recipes[0]) if len(recipes) == 1 else None
    if sweep is not None or seeds is not None or grid:
        _sweep(sweep, recipes, out, changes, seeds, grid or [], jobs, workers, threads, plugins, trust_plugins)
        return
    if jobs > 1:
        raise RecipeError("--jobs goes with a sweep (or --seeds, or --grid): recipes alone run one after the other")
    from fedseed.reports.comparison import write_runs
    from fedseed.reports.plots import draw_runs
    from fedseed.reports.results import read_metrics
    from fedseed.reports.tables import comparison_lines, comparison_table, cost_table
    from fedseed.runs.recipe import read_recipe

    names = [Path(recipe).stem for recipe in recipes]
    if len(set(names)) < len(names):
        raise RecipeError("compare: two recipes have the same name, so their folders would be the same")
    for recipe in recipes:  # all are checked before the first one runs
        read_recipe(recipe, changes, plugins, trust_plugins, lambda line: None)  # said when it runs
    summaries = [
        _run(recipe, changes, out / name, True, plugins, trust_plugins, workers, threads)
        for recipe, name in zip(recipes, names, strict=True)
    ]
    methods = [summary["method"] for summary in summaries]
    labels = methods if len(set(methods)) == len(methods) else names
    folders = {label: out / name for label, name in zip(labels, names, strict=True)}
    write_runs(out, folders)
    draw_runs({label: read_metrics(folder) for label, folder in folders.items()}, out / "compare.png")
    rows = list(zip(labels, summaries, strict=True))
    console.print(comparison_table(rows))
    for line in comparison_lines(rows):
        console.print(line, highlight=False)
    console.print()
    console.print(cost_table(rows))
    console.print(f"Tables, page and picture: {out}/compare.txt, .md, .tex, .json, .html, .png", highlight=False)


def _sweep(
    file: Path | None,
    recipes: list[str],
    out: Path,
    overrides: list[str],
    seeds: str | None,
    grid: list[str],
    jobs: int,
    workers: int | None,
    threads: int | None,
    plugins: list[str],
    trust_plugins: bool,
) -> None:
    from fedseed.experiments.sweeps import Sweep, Sweeping, SweepRun, parse_grid, read_sweep, write_results

    values = dict(map(parse_grid, grid))
    if file is None:
        sweep = Sweep(runs=[SweepRun(label=Path(r).stem, recipe=r, grid=values) for r in recipes], set=overrides)
    else:
        sweep = read_sweep(file)
        runs = [run.model_copy(update={"grid": {**run.grid, **values}}) for run in sweep.runs]
        sweep = sweep.model_copy(update={"runs": runs, "set": [*sweep.set, *overrides]})
    if seeds is not None:
        try:
            sweep = sweep.model_copy(update={"seeds": [int(s) for s in seeds.split(",")]})
        except ValueError as error:
            raise RecipeError(f"--seeds {seeds}: write whole numbers, such as 1,2,3") from error

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    lines = Sweeping(sweep, out, say, jobs, plugins, trust_plugins, workers, threads).run()
    for sheet in write_results(sweep, lines, out):
        console.print("\n" + sheet.text(), highlight=False, soft_wrap=True, markup=False)
    console.print(f"Tables, page and picture: {out}/compare.txt, .md, .tex, .json, .html, .png", highlight=False)
    failed = sum(len(line.failed) for line in lines)
    if failed:
        raise FedseedError(f"{failed} runs failed; the log.txt in a run's folder says why")


@app.command()
def bench(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a packaged recipe.")],
    set_: SetOption = None,
    device: DeviceOption = None,
    tokens: Annotated[
        int | None, typer.Option(min=2, help="For the memory: tokens of an example, in place of the data's longest.")
    ] = None,
    memory_only: Annotated[
        bool, typer.Option("--memory", help="Reckon the memory, and load and time nothing.")
    ] = False,
    plugin: PluginOption = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Say what a recipe will cost on this machine: memory, before the base is loaded; seconds by phase, bytes."""
    from fedseed.experiments.estimate import cost_table, measure
    from fedseed.experiments.memory import fits, memory_table, predict
    from fedseed.models.outline import has_weights
    from fedseed.runs.recipe import read_recipe

    checked = read_recipe(recipe, settings(set_, device), plugin or [], trust_plugins, note)
    _quiet()
    with console.status("reckoning the memory"):
        memory = predict(checked, tokens)
    for part in memory_table(memory):
        console.print(part, highlight=False)
    if memory_only:
        return
    if not has_weights(checked.model.base):
        console.print(f"Nothing was timed: {checked.model.base} is a configuration without weights.", highlight=False)
        return
    if not fits(memory)[0]:
        console.print("Nothing was timed, for want of memory.", highlight=False)
        return
    with console.status("running one round, shortened"):
        cost = measure(checked)
    for part in cost_table(cost):
        console.print(part)


@app.command()
def partition(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a packaged recipe.")],
    set_: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="PNG file: a picture of who holds what.")] = None,
    plugin: PluginOption = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Say who holds what: each client's examples by label. Needs the data, no model."""
    from fedseed.reports.partition import draw_partition, partition_statistics, partition_table
    from fedseed.runs.recipe import read_recipe

    task = read_recipe(recipe, set_ or [], plugin or [], trust_plugins, note).task
    if out is not None and out.suffix != ".png":
        raise RecipeError(f"--out {out}: the picture is a .png file")
    data = task.load()
    held = partition_statistics(data)
    for part in partition_table(held):
        console.print(part, highlight=False)
    for text in data.notes:
        console.print(text, highlight=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        draw_partition(held, _partition_title(task), out)
        console.print(f"Picture: {out}")


def _partition_title(task: Any) -> str:
    """What a picture of a task's partition is called: "dolly-15k, dirichlet: alpha = 0.5, minimum = 10"."""
    dealt = getattr(task, "partition", None)
    if dealt is None:
        return str(task.name)
    settings = ", ".join(f"{k} = {v}" for k, v in dealt.model_dump(exclude={"kind"}).items() if v != [])
    return f"{task.name}, {dealt.kind}" + (f": {settings}" if settings else "")


def _run(
    recipe: str,
    overrides: list[str],
    folder: Path,
    resume: bool,
    plugins: list[str],
    trust_plugins: bool,
    workers: int | None,
    threads: int | None,
) -> dict[str, Any]:
    from fedseed.reports.progress import Shown
    from fedseed.runs.assembly import build
    from fedseed.runs.recipe import read_recipe

    checked = read_recipe(recipe, overrides, plugins, trust_plugins, note)
    _quiet()
    federation = build(checked, folder, Shown(console), workers, threads)
    return federation.run(resume).summary


@app.command("list")
def list_(what: Annotated[LISTED, typer.Argument()], plugin: PluginOption = None) -> None:
    """List what there is, and where it comes from."""
    table = Table(box=None, show_header=False, pad_edge=False)
    rows, broken = listing(what, plugin or [])
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for line in broken:
        console.print(Text(line, style="yellow"), soft_wrap=True)


def _quiet() -> None:
    """Keep transformers' own progress bars and advice off the screen."""
    from fedseed.models.loading import quiet

    quiet()


def main() -> None:
    """Entry point: errors become one line and an exit code."""
    try:
        app()
    except RecipeError as error:
        _fail(error, 2)
    except (FedseedError, OSError) as error:
        _fail(error, 1)
    except ModuleNotFoundError as error:
        if error.name not in TRAINING_PACKAGES:
            raise
        _fail(FedseedError(f"this needs {error.name}, a part of the training side: pip install 'fedseed[train]'"), 1)
    except Exception as error:  # a bug: still one line, with how to see more
        _fail(RuntimeError(f"{type(error).__name__}: {error} (run again with --debug before the command)"), 1)


def _fail(error: Exception, code: int) -> None:
    if _debug:
        traceback.print_exc()
    else:
        print(f"fedseed: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(code)
