"""The command line.

Exit codes: 0 done; 2 the command line or the recipe is wrong; 1 anything else.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedseed.cli import looking, network, results
from fedseed.cli.common import (
    ReadingForDevice,
    RecipeArgument,
    Running,
    Telling,
    answer,
    grouped,
    interruptible,
    say,
)
from fedseed.cli.orbit import app as orbit_app
from fedseed.errors import PAPERS, FedseedError, RecipeError, plural, to_install
from fedseed.experiments import sweeps
from fedseed.processes import COMMAND, alone, warm
from fedseed.registry import COMMANDS
from fedseed.reports.comparison import Compared, results_sheet
from fedseed.reports.progress import Shown
from fedseed.text import clean

# Let a waiting thread of torch's (GNU OpenMP) spin for microseconds, then sleep. By default it
# spins on and on, which on a machine that is busy with something else makes short operations ten
# times slower; sleeping at once makes them twice as slow on a free one. Must be set before torch is
# imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

TRAINING_PACKAGES = ("torch", "transformers", "tokenizers", "numba", "llvmlite", "rouge_score")

IN_PAPERS = ("audit", "reproduce")  # commands of the package fedseed-papers


class InstalledCommands(TyperGroup):
    """fedseed's own commands and those of other packages; an entry point names a `typer.Typer`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(entry_points(group=COMMANDS).names)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command; a package is imported only when one of its commands is asked for."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for point in entry_points(group=COMMANDS, name=cmd_name):
            if find_spec(point.module.partition(".")[0]) is not None:
                found: Any = typer.main.get_command(point.load())
                found.name, found.rich_help_panel = cmd_name, "Papers"
                return found
        if cmd_name in IN_PAPERS:
            raise RecipeError(
                f"fedseed {cmd_name} is a command of the package fedseed-papers: {PAPERS}"
            )
        return None


app = typer.Typer(
    cls=InstalledCommands,
    help="Federated tuning of all parameters of a model with seeds and scalars on the wire.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import fedseed

        print(f"fedseed {fedseed.__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Say which version this is.", callback=_show_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback if something fails.")
    ] = False,
) -> None:
    """Takes the options that stand before the command."""
    if context.invoked_subcommand not in ("run", "join"):
        alone(f"fedseed {context.invoked_subcommand}")
    global _debug
    _debug = debug


_debug = False


@grouped
def run(
    recipe: RecipeArgument,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run's files. Default: runs/RECIPE.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the run in the folder stopped.")
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            min=1,
            help="How many rounds. With --resume, a finished run goes on to so many.",
        ),
    ] = None,
    *,
    reading: ReadingForDevice,
    running: Running,
    telling: Telling,
) -> None:
    """Run a federation on this machine: in this process, or with --workers in several."""
    shown = telling.screen()
    folder = out or Path("runs") / Path(recipe).stem
    _check_no_sweep(recipe)
    checked = reading.read(recipe, *([] if rounds is None else [f"rounds={rounds}"]), here=True)
    if running.ray is not None and running.workers is None:
        raise RecipeError("--ray: say by --workers how many processes the cluster is to have")
    with interruptible("--resume"):
        if running.workers is not None:
            alone("--workers")
            if running.ray is None:
                warm()
        from fedseed.runs.assembly import build  # torch from here on

        how = running.workers, running.threads
        federation = build(checked, folder, Shown(shown), *how, resume=resume, ray=running.ray)
        summary = federation.run(resume, extend=resume and rounds is not None).summary
    results_sheet("", [Compared(summary["method"], [summary])], brief=True).show(shown)
    for line in network.by_client(summary):
        say(line, shown)
    shown.print(f"Files: {folder}")
    if telling.as_json:
        answer({**summary, "folder": str(folder)})


@grouped
def tune_rate(
    recipe: RecipeArgument,
    *,
    reading: ReadingForDevice,
    telling: Telling,
    share: Annotated[
        float, typer.Option(min=0.1, max=20, help="Passes, in runs; from 1 on: whole runs, too.")
    ] = 0.1,
) -> None:
    """Find the learning rate by few short runs, judged on validation examples: a tenth of the run's
    passes.
    """
    checked, shown = reading.read(recipe, here=True), telling.screen()
    from fedseed.runs.rates import find_rate

    found = find_rate(checked, say=lambda text: say(text, shown), share=share)
    say(f"{found.passes:,} passes, {found.passes / found.whole:.1%} of the run's", shown)
    say(f"--set {found.key}={found.rate:g}", shown)
    if telling.as_json:
        answer(asdict(found))


@dataclass(frozen=True)
class Swept:
    """What `compare` takes beside recipes: seeds, grids, ablations, runs at a time."""

    seeds: Annotated[
        str | None, typer.Option(help="Seeds, such as 1,2,3: means and deviations.")
    ] = None
    grid: Annotated[
        list[str] | None,
        typer.Option(help="Values to choose from on validation data: key=value,value, repeatable."),
    ] = None
    each: Annotated[
        list[str] | None,
        typer.Option(help="Values to show side by side, a line each: key=value,value, repeatable."),
    ] = None
    jobs: Annotated[
        int, typer.Option(min=1, help="Runs of a sweep at a time; the cores are shared out.")
    ] = 1


@grouped
def compare(
    recipes: Annotated[
        list[str], typer.Argument(help="Recipes, each a line of the tables, or one sweep.")
    ],
    out: Annotated[
        Path,
        typer.Option(help="Folder; each run gets a folder in it. Run again, it goes on there."),
    ],
    *,
    swept: Swept,
    reading: ReadingForDevice,
    running: Running,
    telling: Telling,
) -> None:
    """Run several recipes and lay the results side by side.

    Over seeds and grids of settings, too.
    """
    shown = telling.screen()
    file = sweeps.find_sweep(recipes[0]) if len(recipes) == 1 else None
    for recipe in recipes if file is None else ():
        _check_no_sweep(recipe)
    seeds = None if swept.seeds is None else sweeps.parse_seeds(swept.seeds)
    grid, each = dict(map(sweeps.parse_grid, swept.grid or [])), {}
    for text in swept.each or []:
        key, each[key] = sweeps.parse_grid(text, "--each")
    how = sweeps.How(
        swept.jobs,
        reading.plugins,
        reading.trust_plugins,
        running.workers,
        running.threads,
        running.ray,
    )
    with interruptible():
        sweep = sweeps.made_sweep(file, recipes, reading.changes, seeds, grid, each)
        done = sweeps.Sweeping(sweep, out, lambda text: say(text, shown), how).run()
        said = sweeps.write_results(sweep, done, out)
        first, *others = sweeps.sheets(sweep, done, brief=True)
        first.show(shown)
        for line in said:
            say(line, shown)
        for sheet in others:
            shown.print()
            sheet.show(shown)
        say(f"Tables, page and picture: {out}/compare.txt, .md, .json, .html, .png", shown)
        if failed := sum(len(line.failed) for line in done):
            raise FedseedError(
                f"{plural(failed, 'run')} failed; the log.txt in a run's folder says why"
            )
    if telling.as_json:
        answer(json.loads((out / "compare.json").read_text(encoding="utf-8")))


def _check_no_sweep(recipe: str) -> None:
    """Raises RecipeError for a sweep where one recipe is wanted."""
    if sweeps.find_sweep(recipe) is not None:
        raise RecipeError(
            f"{recipe} is a sweep of several runs: fedseed compare {recipe} --out FOLDER"
        )


GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Begin": (
        looking.new,
        tune_rate,
        run,
        results.evaluate,
        results.generate,
        results.export,
        results.serve_model,
    ),
    "Federate": (network.keys, network.serve, network.join, network.status, network.verify),
    "Plan": (looking.list_, looking.explain, looking.preview, looking.partition, looking.bench),
    "Look": (results.report, compare),
}
for group, commands in GROUPS.items():
    for command in commands:
        name = command.__name__.rstrip("_").replace("_", "-")
        app.command(name, rich_help_panel=group)(command)
app.add_typer(orbit_app, name="orbit", rich_help_panel="Orbits")


def main() -> None:
    """Runs the command line; errors become one line and an exit code."""
    os.environ[COMMAND] = "1"
    try:
        app(prog_name="fedseed")  # however it was started: completion goes by the name
    except (FedseedError, OSError) as error:
        _fail(error, 2 if isinstance(error, RecipeError) else 1)
    except ModuleNotFoundError as error:
        if error.name not in TRAINING_PACKAGES:
            raise
        _fail(
            FedseedError(
                f"this needs {error.name}, a part of the training side: {to_install('train')}"
            ),
            1,
        )
    except Exception as error:  # a bug: still one line, with how to see more
        _fail(
            RuntimeError(
                f"{type(error).__name__}: {error} (run again with --debug before the command)"
            ),
            1,
        )
    finally:  # whoever calls this from a program of their own has a screen of their own afterwards
        os.environ.pop(COMMAND, None)


def _fail(error: Exception, code: int) -> None:
    if _debug:
        traceback.print_exc()
    else:
        print(f"fedseed: {clean(' '.join(str(error).split()))}", file=sys.stderr)
    sys.exit(code)
