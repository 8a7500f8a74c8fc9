"""`fedseed report` and `fedseed watch`: pages about runs. Neither needs torch."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedseed.cli.network import CaOption, KeyOption, ask
from fedseed.errors import FedseedError, NetworkError, RecipeError

if TYPE_CHECKING:
    from fedseed.reports.view import RunView

ASK_SECONDS = 2.0  # between two questions to a coordinator


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or one folder that holds several.")],
    out: Annotated[
        Path | None, typer.Option(help="The page. Default: report.html in the run's folder, or in that of all runs.")
    ] = None,
) -> None:
    """Write a page about a run, or about several side by side: one file, to be opened or sent to somebody."""
    from fedseed.durable import write_whole
    from fedseed.reports.comparison import compare_runs
    from fedseed.reports.pages import comparison_page, run_page
    from fedseed.reports.view import view_folder

    folders = _run_folders(runs)
    if out is not None and out.suffix not in (".html", ".htm"):
        raise RecipeError(f"--out {out}: the page is an .html file")
    if len(folders) == 1:
        page, text = out or folders[0] / "report.html", run_page(view_folder(folders[0]))
    else:
        unfinished = [str(folder) for folder in folders if not (folder / "summary.json").exists()]
        if unfinished:
            raise FedseedError(f"{', '.join(unfinished)}: not finished; a comparison is of finished runs")
        common = Path(os.path.commonpath([folder.resolve() for folder in folders]))
        named = {str(folder.resolve().relative_to(common)): folder for folder in folders}
        sheets, lines, _ = compare_runs(named)
        views = {"": {label: [view_folder(folder)] for label, folder in named.items()}}
        page, text = out or common / "report.html", comparison_page("Comparison", views, sheets, lines)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_whole(page, text.encode())
    typer.echo(f"Page: {page}")


def watch(
    run: Annotated[str, typer.Argument(help="A run's folder; with --nats the run's name on the server.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="On this machine; 0: one that is free.")] = 8765,
    nats: Annotated[str | None, typer.Option("--nats", help="Ask the coordinator there, in place of a folder.")] = None,
    key: KeyOption = None,
    ca: CaOption = None,
) -> None:
    """Show a run going on as a page in a browser on this machine, until Ctrl-C; the page outlives the run."""
    from fedseed.reports.live import LiveServer

    if nats is None:
        server = LiveServer(_folder(Path(run)), port)
    else:
        server = LiveServer(_coordinator(run, nats, key, ca), port, ASK_SECONDS)
    typer.echo(f"{run}: {server.address} (Ctrl-C ends it)")
    try:
        server.serve()
    except KeyboardInterrupt:
        typer.echo("")
    finally:
        server.close()


# -- what is shown -----------------------------------------------------------------------------------------------------


def _run_folders(given: list[Path]) -> list[Path]:
    """Returns the runs' folders: those given, or in place of one that is no run the finished runs in it."""
    found: list[Path] = []
    for folder in given:
        if (folder / "recipe.toml").exists() or (folder / "metrics.jsonl").exists():
            inside = [folder]
        else:
            inside = sorted(path.parent for path in folder.rglob("summary.json") if "choosing" not in path.parts)
        if not inside:
            raise FedseedError(f"{folder}: no run is here, nor in the folders below")
        found += [path for path in inside if path not in found]
    return found


def _folder(folder: Path) -> Callable[[], tuple[object, Callable[[], "RunView"]]]:
    from fedseed.reports.view import RunView, stamp, view_folder

    def view() -> RunView:
        try:
            return view_folder(folder)
        except FedseedError:
            return RunView(folder.resolve().name, [], state="waiting")

    if view().state == "waiting":
        inside = sorted(path.parent.name for path in folder.glob("*/recipe.toml"))
        if inside:
            raise FedseedError(f"{folder} holds several runs: watch one of them, such as {folder / inside[0]}")
        typer.echo(f"{folder}: no run is here yet: the page waits for one", err=True)
    return lambda: (stamp(folder), view)


def _coordinator(
    run: str, nats: str, key: Path | None, ca: Path | None
) -> Callable[[], tuple[object, Callable[[], "RunView"]]]:
    """Returns what a coordinator says of itself; curves begin when the watching does."""
    from fedseed.reports.view import Watched
    from fedseed.transport.base import Access, check_run

    name, reach, watched = check_run(run), Access(nats, key, ca), Watched(run)

    def look() -> tuple[object, Callable[[], "RunView"]]:
        if watched.asked + ASK_SECONDS <= time.monotonic():
            try:
                watched.tell(asyncio.run(ask(reach, name)))
            except NetworkError:
                if watched.status is None:
                    raise
                watched.tell(None)  # the page outlives the run
            watched.asked = time.monotonic()
        return watched.count, watched.view

    look()
    return look
