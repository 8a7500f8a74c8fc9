"""The command line. Exit codes: 0 done; 2 the command line or the recipe is wrong; 1 anything else."""

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from fedseed.errors import FedseedError, RecipeError
from fedseed.orbit.commands import app as orbit_app

# Let a waiting thread of torch's (GNU OpenMP) spin for microseconds, then sleep. By default it spins on and on, which
# on a machine that is busy with something else makes short operations ten times slower; sleeping at once makes them
# twice as slow on a free one. Must be set before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

app = typer.Typer(
    help="Federated tuning of all parameters of a model with seeds and scalars on the wire.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(orbit_app, name="orbit")
console = Console()

SetOption = Annotated[list[str] | None, typer.Option("--set", help="Replace a recipe's value: key=value, repeatable.")]


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
) -> None:
    """Run a federation in this process."""
    folder = out or Path("runs") / Path(recipe).stem
    summary = _run(recipe, set_ or [], folder, resume)
    from fedseed.reports.tables import comparison_table

    console.print(comparison_table([(summary["method"], summary)]))
    console.print(f"Files: {folder}")


@app.command()
def compare(
    recipes: Annotated[list[str], typer.Argument(help="Recipes to run one after the other.")],
    out: Annotated[Path, typer.Option(help="Folder; each run gets a folder in it.")],
    set_: SetOption = None,
) -> None:
    """Run several recipes and lay the results side by side."""
    from fedseed.configuration import read_recipe
    from fedseed.federation.ledger import read_metrics
    from fedseed.reports.pictures import draw_runs
    from fedseed.reports.tables import comparison_lines, comparison_table

    names = [Path(recipe).stem for recipe in recipes]
    if len(set(names)) < len(names):
        raise RecipeError("compare: two recipes have the same name, so their folders would be the same")
    for recipe in recipes:  # all are checked before the first one runs
        read_recipe(recipe, set_ or [])
    summaries = [_run(recipe, set_ or [], out / name) for recipe, name in zip(recipes, names, strict=True)]
    methods = [summary["method"] for summary in summaries]
    labels = methods if len(set(methods)) == len(methods) else names
    draw_runs({label: read_metrics(out / name) for label, name in zip(labels, names, strict=True)}, out / "compare.png")
    rows = list(zip(labels, summaries, strict=True))
    console.print(comparison_table(rows))
    for line in comparison_lines(rows):
        console.print(line, highlight=False)
    console.print(f"Picture: {out / 'compare.png'}")


@app.command()
def bench(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a packaged recipe.")],
    set_: SetOption = None,
) -> None:
    """Say what a recipe will cost on this machine: seconds by phase, bytes, the whole run."""
    from fedseed.bench import measure
    from fedseed.configuration import read_recipe
    from fedseed.reports.tables import cost_table

    checked = read_recipe(recipe, set_ or [])
    _quiet()
    with console.status("running one round, shortened"):
        cost = measure(checked)
    for part in cost_table(cost):
        console.print(part)


def _run(recipe: str, overrides: list[str], folder: Path, resume: bool = False) -> dict[str, Any]:
    from fedseed.configuration import build, read_recipe
    from fedseed.reports.progress import Shown

    checked = read_recipe(recipe, overrides)
    _quiet()
    return build(checked, out=folder, progress=Shown(console)).run(resume).summary


@app.command("list")
def list_(what: Annotated[Literal["methods", "tasks", "bases", "recipes"], typer.Argument()]) -> None:
    """List what there is."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, about in _listing(what):
        table.add_row(name, about)
    console.print(table)


def _listing(what: str) -> list[tuple[str, str]]:
    if what == "methods":
        from fedseed.methods import METHODS

        return [(m.model_fields["name"].default, m.about) for m in METHODS]
    if what == "bases":
        from fedseed.randomness import BASES

        return list(BASES.items())
    if what == "tasks":
        from fedseed.tasks import TASKS

        return [(t.model_fields["name"].default, t.about) for t in TASKS]
    from fedseed.configuration import packaged_recipes, read_recipe

    return [(name, read_recipe(name).title) for name in packaged_recipes()]


def _quiet() -> None:
    """Keep transformers' own progress bars and advice off the screen."""
    from fedseed.models import quiet

    quiet()


def main() -> None:
    """Entry point: errors become one line and an exit code."""
    try:
        app()
    except RecipeError as error:
        _fail(error, 2)
    except (FedseedError, OSError) as error:
        _fail(error, 1)
    except Exception as error:  # a bug: still one line, with how to see more
        _fail(RuntimeError(f"{type(error).__name__}: {error} (run again with --debug before the command)"), 1)


def _fail(error: Exception, code: int) -> None:
    if _debug:
        traceback.print_exc()
    else:
        print(f"fedseed: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(code)
