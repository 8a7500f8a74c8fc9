"""`fedseed export`, `evaluate`, `generate`, `serve-model`, `report`: the commands that use or show
a run's results.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedseed.cli.common import (
    JsonOption,
    Placing,
    PluginOption,
    Reading,
    answer,
    console,
    grouped,
    say,
    stepping,
)
from fedseed.durable import write_whole
from fedseed.errors import FedseedError, RecipeError, to_install
from fedseed.reports.comparison import Compared, comparison_lines, costs_sheet, results_sheet
from fedseed.reports.progress import Screen
from fedseed.reports.results import read_summary
from fedseed.reports.view import view_folder
from fedseed.tasks.files import read_records
from fedseed.text import clean, listed

if TYPE_CHECKING:
    from fedseed.objectives.generation import Writer
    from fedseed.runs.tuned import Tuned

SHOWN_MODELS = 12  # how many names `serve-model` shows
# the keys of a run's summary that a comparison needs
COMPARED = {
    "baseline",
    "clients",
    "final",
    "method",
    "parameters",
    "payload_bytes_down",
    "payload_bytes_up",
    "rounds",
    "seconds",
}

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN|ORBIT|MODEL",
        help="A run's folder, an orbit, a run's model.safetensors, or a model's folder or name.",
    ),
]


@dataclass(frozen=True)
class Opening(Placing):
    """Options for the round of the model to open, its base, and its device."""

    best: Annotated[
        str | None,
        typer.Option(help="Open the model after the best round by this metric, such as loss."),
    ] = None
    upto: Annotated[
        int | None, typer.Option(min=0, help="Open the model after this round, not the last one.")
    ] = None

    def open(self, name: str, quietly: bool = False) -> "Tuned":
        """Load a model, with a bar on standard error if steps are replayed.

        Args:
            name: what the command line calls it.
            quietly: say nothing on standard output.
        """
        from fedseed.runs.tuned import best_round, find_source, open_tuned

        if self.best is not None and self.upto is not None:
            raise RecipeError("--best or --upto, not both")
        source, upto = find_source(name), self.upto
        if self.best is not None:
            upto = best_round(source, self.best)
            if not quietly:
                say(f"round {upto} has the best {self.best}")
        screen = Screen(stderr=True)
        with stepping(screen) as tell:
            tuned = open_tuned(source, self.base, upto, self.device, tell)
        if tuned.facts is not None and not tuned.facts.complete and upto is None:
            say(
                f"{name}: the orbit has no end of the run: the run is not over, or steps after "
                f"round {tuned.facts.steps} were cut off",
                screen,
            )
        return tuned


@grouped
def export(
    source: SourceArgument,
    folder: Annotated[
        Path, typer.Option("--out", help="Folder to write the model to; must not hold one.")
    ],
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="For a LoRA run: write the whole model, with the adapter added to its weights.",
        ),
    ] = False,
    plugin: PluginOption = None,
    *,
    opening: Opening,
) -> None:
    """Write the tuned model as a folder that transformers loads (an adapter: peft), with tokenizer
    and model card.
    """
    from fedseed.orbit.export import check_free, export_model

    check_free(folder)
    tuned = opening.open(source)
    if tuned.header is None or tuned.facts is None:
        raise RecipeError(f"{source} is a model already: there is nothing to export")
    export_model(folder, tuned.model, tuned.processor, tuned.header, tuned.facts, merge)
    say(f"round {tuned.facts.steps} of {tuned.facts.total_steps}; digest {tuned.facts.digest}")
    say(f"{'Adapter' if tuned.header.adapter is not None and not merge else 'Model'}: {folder}")


@grouped
def evaluate(
    source: SourceArgument,
    recipe: Annotated[
        str | None, typer.Option(help="Measure on this recipe's task. Default: that of the run.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="A task in place of the recipe's; --set task.KEY=VALUE for its settings."
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    opening: Opening,
    reading: Reading,
) -> None:
    """Measure a model on held-out examples: those of its run's recipe, or of another recipe or
    task.
    """
    from fedseed.runs.tuned import evaluate, find_source, recipe_for

    # before anything is loaded
    checked = recipe_for(
        find_source(source), recipe, task, reading.changes, reading.plugins, reading.trust_plugins
    )
    tuned = opening.open(source, quietly=as_json)
    metrics, notes = evaluate(tuned, checked)
    if as_json:
        number, digest = (
            (None, None) if tuned.facts is None else (tuned.facts.steps, tuned.facts.digest)
        )
        results = {str(checked.task.name): metrics}
        answer(
            {
                "source": source,
                "round": number,
                "weights_digest": digest,
                "notes": notes,
                "metrics": results,
            }
        )
        return
    for text in notes:
        say(text)
    table = Table("task", "metric", box=None, pad_edge=False)
    table.add_column("value", justify="right")
    for name, value in metrics.items():
        table.add_row(str(checked.task.name), name, f"{value:.4f}")
    console.print(table)


@dataclass(frozen=True)
class Wording:
    """Options for choosing new text."""

    max_tokens: Annotated[int, typer.Option(min=1, help="The most new tokens.")] = 128
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0: always take the likeliest token; above: draw tokens.")
    ] = 0.0
    top_p: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Draw from the likeliest tokens with this total probability."
        ),
    ] = 1.0
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Of what is drawn.")] = 0


@grouped
def generate(
    source: SourceArgument,
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue. Default: standard input.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help='A text file: one prompt. A .jsonl file: a "prompt" in each line.'),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="Use the tokenizer's chat template; on a terminal, hold a conversation."
        ),
    ] = False,
    plugin: PluginOption = None,
    *,
    wording: Wording,
    opening: Opening,
) -> None:
    """Let a model write: after a prompt, for each line of a file, or in a conversation (--chat)."""
    if prompt is not None and file is not None:
        raise RecipeError("generate: give a PROMPT or --file, not both")
    talking = prompt is None and file is None and sys.stdin.isatty()
    prompts = []
    if not talking:
        prompts = list(map(_check_utf8, _prompts(prompt, file)))
    tuned = opening.open(source, quietly=True)
    from fedseed.objectives.generation import Writer

    writer = Writer(tuned.model, tuned.processor, **vars(wording))
    if talking:
        _talk(writer, chat)
        return
    for one in prompts:
        text = (
            writer.answer([{"role": "user", "content": one}])
            if chat
            else writer.continue_prompt(one)
        ).text
        lines = file is not None and file.suffix == ".jsonl"
        print(
            json.dumps({"prompt": one, "response": text}, ensure_ascii=False)
            if lines
            else _printable(text)
        )


def _prompts(prompt: str | None, file: Path | None) -> Iterator[str]:
    if prompt is not None:
        yield prompt
    elif file is None:
        yield _strip_prompt(sys.stdin.read())
    elif file.suffix != ".jsonl":
        try:
            yield _strip_prompt(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(
                f"--file {file}: can't be read: {getattr(error, 'strerror', None) or error}"
            ) from error
    else:
        for row in read_records(file):
            yield row.field("prompt", str)


def _strip_prompt(text: str) -> str:
    """Return a prompt as typed or piped, without a final line break, which a shell adds."""
    text = text.removesuffix("\n")
    if not text:
        raise RecipeError("generate: no prompt: give one, or --file, or pipe it in")
    return text


def _check_utf8(text: str) -> str:
    """Return a prompt. Raises RecipeError if it has bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RecipeError(
            f"generate: the prompt is not UTF-8 (at character {error.start + 1}): convert it first"
        ) from error
    return text


def _whole_summary(folder: Path) -> dict[str, Any]:
    """Return a finished run's summary.

    Raises:
        FedseedError: summary.json is damaged, or is not a run's.
    """
    file = folder / "summary.json"
    try:
        summary = read_summary(folder)
        absent = sorted(COMPARED - set(summary))
    except (ValueError, TypeError) as error:
        raise FedseedError(f"{file}: not a run's summary, or damaged: {error}") from error
    if not isinstance(summary, dict) or absent:
        raise FedseedError(
            f"{file}: not a run's summary, or damaged: it has no {', '.join(absent[:3])}"
        )
    return summary


def _printable(text: str) -> str:
    """Return a model's text without control codes for terminals."""
    if sys.stdout.isatty():
        return clean(text)
    return text


def _talk(writer: "Writer", chat: bool) -> None:
    """Talk turn by turn on a terminal, until its end (Ctrl-D) or an empty line."""
    turns: list[dict[str, str]] = []
    print("Ctrl-D or an empty line ends.", file=sys.stderr)
    while True:
        try:
            line = _check_utf8(input("> "))
        except EOFError:
            print()
            return
        if not line:
            return
        if chat:
            turns.append({"role": "user", "content": line})
            turns.append({"role": "assistant", "content": writer.answer(turns).text})
        print(_printable(turns[-1]["content"] if chat else writer.continue_prompt(line).text))


SHOWN_MODELS = 12  # how many names `serve-model` shows


@contextmanager
def _needing_web_server(command: str) -> Iterator[None]:
    """Import what needs the extra `serve`. Raises FedseedError with a remedy."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise FedseedError(f"{command} needs {error.name}: {to_install('serve')}") from error


@grouped
def serve_model(
    orbits: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|ORBIT|FOLDER...",
            help="Runs' folders or orbits of one base, served under the name of the folder or "
            "file, or as NAME=PATH; or a folder of them, which is watched for changes.",
        ),
    ],
    host: Annotated[
        str, typer.Option(help="The address. Default: this machine only.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")
    ] = 8000,
    keep: Annotated[
        int,
        typer.Option(
            min=0, help="Number of models, the last used ones, whose weights stay in memory."
        ),
    ] = 0,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="The most new tokens of an answer.")
    ] = 1024,
    plugin: PluginOption = None,
    *,
    placing: Placing,
) -> None:
    """Serve the models of many orbits on one base in memory, with OpenAI's interface."""
    with _needing_web_server("serve-model"):
        from fedseed.own.catalogue import is_folder_of_orbits
        from fedseed.own.server import Service, name_sources
    folders = [Path(place) for place in orbits if is_folder_of_orbits(place)]
    sources = name_sources([place for place in orbits if not is_folder_of_orbits(place)])
    service = Service(sources, placing.base, placing.device, keep, max_tokens, folders)

    def ready(address: str) -> None:
        # a request's `model` is one of these names
        word = "model" if len(service.names) == 1 else "models"
        say(f"{address}, {word} {listed(service.names, SHOWN_MODELS)} (Ctrl-C ends)")

    with suppress(KeyboardInterrupt):
        service.serve(host, port, ready)


def watch(
    folder: Annotated[Path, typer.Argument(help="The run's folder; the run may begin later.")],
    host: Annotated[
        str, typer.Option(help="The address. Default: this machine only.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")
    ] = 8080,
) -> None:
    """Serve a page about a current run that is updated by itself."""
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder}: no such folder; give that of a run, such as runs/recipe")
    with _needing_web_server("watch"):
        from fedseed.reports.live import LivePage
    with suppress(KeyboardInterrupt):
        LivePage(folder).serve(host, port, lambda address: say(f"{address} (Ctrl-C ends)"))


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or one folder that holds several.")
    ],
    page_file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="File for the page. Default: report.html in the run's folder, or in the folder of "
            "all runs.",
        ),
    ] = None,
) -> None:
    """Write a page about a run, or about several side by side: one file, to be opened or sent to
    somebody.
    """
    # Jinja and Matplotlib take a while to import
    from fedseed.reports.pages import comparison_page, run_page

    folders = _run_folders(runs)
    if page_file is not None and page_file.suffix not in (".html", ".htm"):
        raise RecipeError(f"--out {page_file}: give an .html file")
    if len(folders) == 1:
        page, text = page_file or folders[0] / "report.html", run_page(view_folder(folders[0]))
    else:
        unfinished = [str(folder) for folder in folders if not (folder / "summary.json").exists()]
        if unfinished:
            raise FedseedError(
                f"{', '.join(unfinished)}: not finished; only finished runs can be compared"
            )
        common = Path(os.path.commonpath([folder.resolve() for folder in folders]))
        folders_by_name = {str(folder.resolve().relative_to(common)): folder for folder in folders}
        compared = [
            Compared(label, [_whole_summary(folder)]) for label, folder in folders_by_name.items()
        ]
        sheets = [results_sheet("Comparison", compared), costs_sheet("Costs of a round", compared)]
        views = {"": {label: [view_folder(folder)] for label, folder in folders_by_name.items()}}
        page = page_file or common / "report.html"
        text = comparison_page("Comparison", views, sheets, comparison_lines(compared))
    page.parent.mkdir(parents=True, exist_ok=True)
    write_whole(page, text.encode())
    typer.echo(f"Page: {page}")


def _run_folders(paths: list[Path]) -> list[Path]:
    """Return the runs' folders; a folder of runs is replaced by its finished runs."""
    run_folders: list[Path] = []
    for folder in paths:
        if (folder / "recipe.toml").exists() or (folder / "metrics.jsonl").exists():
            inside = [folder]
        else:
            inside = sorted(
                path.parent for path in folder.rglob("summary.json") if "choosing" not in path.parts
            )
        if not inside:
            raise FedseedError(f"{folder}: there is no run in this folder or those below it")
        run_folders += [path for path in inside if path not in run_folders]
    return run_folders
