"""Coordinates a recipe's run in a ServerApp, from its beginning or from where it was interrupted.

Free of torch.
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
    """Coordinates a recipe's run over Flower's Grid; return what the run's folder holds.

    Args:
        grid: Flower's.
        context: Flower's; its run config may add to the recipe.
        recipe: the app's.
        progress: shows the run going on; None: on Flower's log of the ServerApp.

    Raises FedseedError: the run has failed; the same line goes to the log.
    """
    console = Screen(force_terminal=False, soft_wrap=True)
    shown = progress or Shown(console)
    try:
        checked = recipe_of(recipe, context.run_config)
        if checked.secure_sums is not None:
            raise RecipeError(
                "secure_sums: not over Flower, whose nodes keep no secrets from one message to the "
                "next; `fedseed run` and `fedseed serve` have them"
            )
        if checked.method.remembers:
            raise RecipeError(
                f"method {checked.method.name}: a client remembers what it has not sent yet, and "
                "nodes of Flower keep nothing from round to round: set method.feedback = 0"
            )
        out = Path(str(context.run_config.get("out") or OUT)).expanduser().absolute()
        shown.note(f"files: {out}")
        if (out / "summary.json").exists():  # no node is needed to see that
            compare_recipes(out, checked.to_toml())
            shown.note(f"the run in {out} is finished: nothing is changed")
            return RunResult(read_summary(out), read_metrics(out), out)
        transport = FlowerTransport(grid, "flower", checked.federation.deadline)
        result = network.coordinate(checked, "flower", transport, out, progress=shown)
    except FedseedError as error:
        console.print(f"fedseed: {' '.join(str(error).split())}", highlight=False)
        raise
    console.print(f"weights digest: {result.summary['weights_digest']}", highlight=False)
    console.print(f"Files: {out}", highlight=False)
    return result
