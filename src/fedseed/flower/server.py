"""Coordinate a recipe's run in a ServerApp, from the start or after an interruption.

This module does not import torch.
"""

from pathlib import Path
from typing import Any

from fedseed.errors import FedseedError, RecipeError
from fedseed.flower.config import recipe_of
from fedseed.reports.progress import Progress, Screen, Shown
from fedseed.reports.results import read_metrics, read_summary
from fedseed.runs import network
from fedseed.runs.costs import RunResult
from fedseed.runs.folder import compare_recipes
from fedseed.transport.flower import FlowerTransport

OUT = "runs/flower"


def coordinate(
    grid: Any, context: Any, recipe: Path | str, progress: Progress | None = None
) -> RunResult:
    """Coordinate a recipe's run over Flower's Grid; return the contents of its folder.

    Args:
        grid: Flower's.
        context: Flower's; its run config may add to the recipe.
        recipe: the app's.
        progress: shows the run's progress; None: write it to Flower's log of the ServerApp.

    Raises FedseedError: the run has failed; the text is in the log, too.
    """
    console = Screen(force_terminal=False, soft_wrap=True)
    run_progress = progress or Shown(console)
    try:
        checked = recipe_of(recipe, context.run_config)
        if checked.secure_sums is not None:
            raise RecipeError(
                "secure_sums: not possible over Flower, whose nodes keep no secrets between "
                "messages: use `fedseed run` or `fedseed serve`"
            )
        if checked.method.remembers:
            raise RecipeError(
                f"method {checked.method.name}: a client keeps the rest that it has not sent yet, "
                "but Flower's nodes keep nothing between rounds: set method.feedback = 0"
            )
        folder = Path(str(context.run_config.get("out") or OUT)).expanduser().absolute()
        run_progress.note(f"files: {folder}")
        if (folder / "summary.json").exists():  # a finished run needs no node
            compare_recipes(folder, checked.to_toml())
            run_progress.note(f"the run in {folder} is finished: nothing is changed")
            return RunResult(read_summary(folder), read_metrics(folder), folder)
        transport = FlowerTransport(grid, "flower", checked.federation.deadline)
        result = network.coordinate(checked, "flower", transport, folder, progress=run_progress)
    except FedseedError as error:
        console.print(f"fedseed: {' '.join(str(error).split())}", highlight=False)
        raise
    console.print(f"weights digest: {result.summary['weights_digest']}", highlight=False)
    console.print(f"Files: {folder}", highlight=False)
    return result
