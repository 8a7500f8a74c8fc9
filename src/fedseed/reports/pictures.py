"""What a run's folder shows people at the end: metrics.png, report.html."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedseed.durable import replacing, write_whole
from fedseed.errors import FedseedError
from fedseed.processes import start
from fedseed.registry import one_line


def draw_run(folder: Path, summary: Mapping[str, Any]) -> None:
    """Draw a run's pictures and write its page into its folder.

    `summary` is what summary.json will hold.
    """
    from fedseed.reports.charts import curves
    from fedseed.reports.pages import run_page
    from fedseed.reports.plots import draw
    from fedseed.reports.view import view_folder

    view = view_folder(folder, summary)
    if made := curves({summary["method"]: [view.lines]}):
        with replacing(folder / "metrics.png") as picture:
            draw(made, picture, across=4)
    write_whole(folder / "report.html", run_page(view).encode())


def draw_apart(folder: Path, summary: Mapping[str, Any]) -> None:
    """Does what `draw_run` does in a process of its own: Matplotlib takes more memory than a whole
    coordinator.

    Raises:
        FedseedError: it can't be drawn; the text says why.
    """
    process, connection = start(_tell, folder, dict(summary), new=True)
    problem = "its process died"
    with connection, suppress(EOFError, OSError):
        problem = connection.recv()
    process.join()
    if problem:
        raise FedseedError(problem)


def _tell(heard: object, say: object, *given: Any) -> str:
    """Draws, and returns what went wrong: "" if nothing did."""
    try:
        draw_run(*given)
    except Exception as error:
        return one_line(error)
    return ""
