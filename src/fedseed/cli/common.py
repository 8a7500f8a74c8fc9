"""Options that several commands share, and what they do."""

import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedseed.errors import plural
from fedseed.reports.screen import Screen

console = Screen()
LogLevel = Literal["debug", "info", "warning", "error"]
LOGGERS = ("fedseed", "nats")  # those of transformers follow (`fedseed.models.loading.quiet`)


def complete_recipe(incomplete: str) -> Iterator[str]:
    """Returns what a shell offers for a recipe that is being typed: packaged ones, folders and TOML files."""
    packaged = Path(str(files("fedseed") / "recipes"))
    yield from (path.stem for path in sorted(packaged.glob("*.toml")) if path.stem.startswith(incomplete))
    folder, _, begun = incomplete.rpartition("/")
    for path in sorted(Path(folder or ("/" if incomplete.startswith("/") else ".")).glob(f"{begun}*")):
        if path.suffix == ".toml" or path.is_dir():
            yield f"{path}/" if path.is_dir() else str(path)


RecipeArgument = Annotated[
    str, typer.Argument(help="A TOML file, or the name of a packaged recipe.", autocompletion=complete_recipe)
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="The result as JSON on standard output; all else goes to standard error.")
]
OverwriteOption = Annotated[
    bool,
    typer.Option("--overwrite", help="Begin anew in a folder that holds a run: its files are deleted, others stay."),
]

SetOption = Annotated[list[str] | None, typer.Option("--set", help="Replace a recipe's value: key=value, repeatable.")]
PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", help="Python file (or module) with methods, tasks, ... of your own; it is run. Repeatable."
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, help="Threads of each process. Default: torch's own choice, shared out among the workers."
    ),
]


@contextmanager
def interruptible(resume: str = "") -> Iterator[None]:
    """Ctrl-C ends a run with one line that says how it goes on, and exit code 130.

    Args:
        resume: the option that the same command needs to go on; "": none.
    """
    try:
        yield
    except KeyboardInterrupt:
        given = [word for word in sys.argv[1:] if word not in ("--fresh", "--overwrite")]  # which would begin again
        words = ["fedseed", *given, *([resume] if resume and resume not in given else [])]
        print(f"fedseed: interrupted; it goes on with: {shlex.join(words)}", file=sys.stderr)
        raise typer.Exit(130) from None


@contextmanager
def stepping(console: Console, count: int | None = None) -> Iterator[Callable[..., None]]:
    """Shows a bar for a replay: what is handed out is told the number of each step that is applied, and of how many."""
    if count is not None and not console.is_terminal:
        console.print(f"replaying {plural(count, 'step')}", highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading" if count is None else "replaying", total=count)
        yield lambda number, total: bar.update(task, description="replaying", completed=number, total=total)


def say(text: str, screen: Console | None = None) -> None:
    """Print a line as it is, so that it can be pasted; on standard output unless another console is given."""
    (screen or console).print(text, highlight=False, soft_wrap=True)


def answer(result: Any) -> None:
    """Print a result for `--json`: the only thing on standard output."""
    typer.echo(json.dumps(result, indent=2))


def log_at(level: LogLevel) -> None:
    """Send log records of this level and above to standard error, with time, level and logger."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(level.upper())
        logger.handlers = [handler]
