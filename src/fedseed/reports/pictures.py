"""Write a run's pictures and page at its end: metrics.png, report.html."""

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

    `summary` is the future content of summary.json.
    """
    from fedseed.reports.charts import curves
    from fedseed.reports.pages import run_page
    from fedseed.reports.plots import draw
    from fedseed.reports.view import view_folder

    view = view_folder(folder, summary)
    panels = curves({summary["method"]: [view.lines]})
    if panels:
        with replacing(folder / "metrics.png") as picture:
            draw(panels, picture, across=4)
    write_whole(folder / "report.html", run_page(view).encode())


def draw_apart(folder: Path, summary: Mapping[str, Any]) -> None:
    """Call `draw_run` in a process of its own, as Matplotlib takes more memory than a whole
    coordinator.

    Raises:
        FedseedError: it can't be drawn; the text has the reason.
    """
    process, connection = start(_tell, folder, dict(summary), new=True)
    problem = "its process died"
    with connection, suppress(EOFError, OSError):
        problem = connection.recv()
    process.join()
    if problem:
        raise FedseedError(problem)


def _tell(order: object, say: object, *arguments: Any) -> str:
    """Draw, and return an error's text; "" if there was none."""
    try:
        draw_run(*arguments)
    except Exception as error:
        return one_line(error)
    return ""
