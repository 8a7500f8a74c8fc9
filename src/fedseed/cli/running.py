"""`fedseed run`, `tune-rate` and `compare`: commands that train on this machine."""

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from fedseed.cli.common import (
    ReadingForDevice,
    RecipeArgument,
    Running,
    Telling,
    answer,
    end_if_diverged,
    grouped,
    interruptible,
    say,
)
from fedseed.cli.network import by_client
from fedseed.cli.waiting import waiting
from fedseed.errors import FedseedError, RecipeError, plural
from fedseed.experiments import sweeps
from fedseed.processes import refuse_torchrun, warm
from fedseed.reports.comparison import Compared, results_sheet
from fedseed.reports.progress import Shown
from fedseed.reports.results import read_summary


@grouped
def run(
    recipe: RecipeArgument,
    run_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the run's files. Default: runs/RECIPE.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder.")
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Delete the run in the folder, and begin again."),
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            min=1,
            help="Number of rounds. With --resume, a finished run continues up to this number.",
        ),
    ] = None,
    *,
    reading: ReadingForDevice,
    running: Running,
    telling: Telling,
) -> None:
    """Run a federation on this machine: in this process, or with --workers in several."""
    screen = telling.screen()
    if overwrite and resume:
        raise RecipeError("--overwrite begins again and --resume continues: leave one of them out")
    folder = run_folder or Path("runs") / Path(recipe).stem
    _check_no_sweep(recipe)
    checked = reading.read_recipe(
        recipe, *([] if rounds is None else [f"rounds={rounds}"]), check_paths=True
    )
    if running.ray is not None and running.workers is None:
        raise RecipeError("--ray: give the number of the cluster's processes with --workers")
    with interruptible("--resume"):
        if running.workers is not None:
            refuse_torchrun("--workers")
            if running.ray is None:
                warm()
        with waiting("loading torch"):
            from fedseed.runs.assembly import build

        process_options = running.workers, running.threads
        federation = build(
            checked, folder, Shown(screen), *process_options, resume=resume, ray=running.ray
        )
        summary = federation.run(resume, resume and rounds is not None, overwrite).summary
    results_sheet("", [Compared(summary["method"], [summary])], brief=True).show(screen)
    for line in by_client(summary):
        say(line, screen)
    screen.print(f"Files: {folder}")
    if summary.get("failure") is None:
        words = shlex.join(["fedseed", "export", str(folder), "--out", "tuned"])
        say(f"Next: {words}    writes the tuned model as a folder for transformers", screen)
    if telling.as_json:
        answer({**summary, "folder": str(folder)})
    end_if_diverged({"": summary})


@grouped
def tune_rate(
    recipe: RecipeArgument,
    *,
    reading: ReadingForDevice,
    telling: Telling,
    share: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=20,
            help="Passes to spend, in units of a run; 1 or more: whole runs are tried, too.",
        ),
    ] = 0.1,
) -> None:
    """Find the learning rate by few short runs, judged on validation examples: a tenth of the run's
    passes.
    """
    checked, screen = reading.read_recipe(recipe, check_paths=True), telling.screen()
    with waiting("loading torch"):
        from fedseed.runs.rates import find_rate

    tuning = find_rate(checked, say=lambda text: say(text, screen), share=share)
    say(f"{tuning.passes:,} passes, {tuning.passes / tuning.whole:.1%} of the run's", screen)
    if tuning.bound is not None:
        say(str(tuning.bound), screen)
    say(f"--set {tuning.key}={tuning.rate:g}", screen)
    if telling.as_json:
        answer(asdict(tuning))


@dataclass(frozen=True)
class Swept:
    """Options of `compare` beside recipes: seeds, grids, ablations, runs at a time."""

    seeds: Annotated[
        str | None, typer.Option(help="Seeds, such as 1,2,3: means and deviations.")
    ] = None
    grid: Annotated[
        list[str] | None,
        typer.Option(help="Values to choose from by validation data: key=value,value, repeatable."),
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
    target: Annotated[
        Path,
        typer.Option(
            "--out", help="Folder for the runs, each in its own. The same command continues there."
        ),
    ],
    *,
    swept: Swept,
    reading: ReadingForDevice,
    running: Running,
    telling: Telling,
) -> None:
    """Run several recipes and lay the results side by side.

    Also over seeds and grids of settings.
    """
    screen = telling.screen()
    file = None
    if len(recipes) == 1:
        file = sweeps.find_sweep(recipes[0])
    for recipe in recipes if file is None else ():
        _check_no_sweep(recipe)
    seeds = None
    if swept.seeds is not None:
        seeds = sweeps.parse_seeds(swept.seeds)
    grid, grid_by_run = dict(map(sweeps.parse_grid, swept.grid or [])), {}
    for text in swept.each or []:
        key, grid_by_run[key] = sweeps.parse_grid(text, "--each")
    settings = sweeps.How(
        swept.jobs,
        reading.plugins,
        reading.trust_plugins,
        running.workers,
        running.threads,
        running.ray,
    )
    with interruptible():
        sweep = sweeps.make_sweep(file, recipes, reading.changes, seeds, grid, grid_by_run)
        lines = sweeps.Sweeping(sweep, target, lambda text: say(text, screen), settings).run()
        messages = sweeps.write_results(sweep, lines, target)
        first, *others = sweeps.sheets(sweep, lines, brief=True)
        first.show(screen)
        for line in messages:
            say(line, screen)
        for sheet in others:
            screen.print()
            sheet.show(screen)
        say(f"Tables, page and picture: {target}/compare.txt, .md, .json, .html, .png", screen)
        failed = sum(len(line.failed) for line in lines)
        if failed:
            raise FedseedError(f"{plural(failed, 'run')} failed; see the log.txt in its folder")
    if telling.as_json:
        answer(json.loads((target / "compare.json").read_text(encoding="utf-8")))
    end_if_diverged(
        {
            " ".join(filter(None, (line.scenario, line.label, f"seed {seed}"))): read_summary(
                folder
            )
            for line in lines
            for seed, folder in line.folders.items()
        }
    )


def _check_no_sweep(recipe: str) -> None:
    """Raise RecipeError if a sweep is given in place of one recipe."""
    if sweeps.find_sweep(recipe) is not None:
        raise RecipeError(
            f"{recipe} is a sweep of several runs: fedseed compare {recipe} --out FOLDER"
        )
