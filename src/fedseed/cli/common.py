"""Options that several commands share, and functions for them. A data class has options that belong
together: `grouped` makes its fields options of a command.
"""

import inspect
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedseed.cli.waiting import waiting
from fedseed.errors import RecipeError, plural
from fedseed.registry import load_plugin
from fedseed.reports.progress import Screen
from fedseed.text import clean

if TYPE_CHECKING:
    from fedseed.recipe.settings import Recipe

console = Screen()


def complete_recipes(incomplete: str) -> list[str]:
    """Return the packaged recipes and the recipe files that begin with an incomplete word."""
    from fedseed.recipe.packaged import packaged_recipes

    folder = Path(incomplete).parent
    with suppress(OSError):
        files = [str(path) for path in sorted(folder.glob("*.toml"))]
        return [name for name in (*files, *packaged_recipes()) if name.startswith(incomplete)]
    return []


def complete_keys(incomplete: str) -> list[str]:
    """Return the keys of recipes that begin with an incomplete word."""
    from fedseed.recipe.keys import list_keys
    from fedseed.recipe.settings import Recipe

    return [key.key for key in list_keys(Recipe) if key.key.startswith(incomplete)]


def complete_settings(incomplete: str) -> list[str]:
    """Return the keys of recipes that begin with an incomplete word, each with "=" after it."""
    return [f"{key}=" for key in dict.fromkeys(complete_keys(incomplete))]


RecipeArgument = Annotated[
    str,
    typer.Argument(
        help="A TOML file, or the name of a packaged recipe.", autocompletion=complete_recipes
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="The result as JSON on standard output; everything else goes to standard error.",
    ),
]


def _load_plugins(context: typer.Context, sources: list[str] | None) -> list[str] | None:
    """Load plug-ins while the command line is parsed, so that commands need not do it."""
    for source in [] if context.resilient_parsing else sources or []:
        load_plugin(source)
    return sources


SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        autocompletion=complete_settings,
        help="Replace a recipe's value: key=value, repeatable.",
    ),
]
PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        callback=_load_plugins,
        help="Python file (or module) with methods, tasks, ... of your own, whose code is run. "
        "Repeatable.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        help="Threads of each process. Default: torch's own choice, shared out among the workers.",
    ),
]


@dataclass(frozen=True)
class Reading:
    """Options for reading a recipe: values to set in it, and plug-ins to load first."""

    set_: SetOption = None
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            autocompletion=complete_keys,
            help="Remove a key from the recipe, so that it has its default; repeatable.",
        ),
    ] = None
    plugin: PluginOption = None
    trust_plugins: Annotated[
        bool,
        typer.Option(
            "--trust-plugins",
            help="Also load the plug-ins that the recipe names, which runs their code.",
        ),
    ] = False

    @property
    def changes(self) -> list[str]:
        """Return the values that replace those of the recipe ("key=value" each), and the keys to
        take out.
        """
        return [*(f"~{key}" for key in self.unset or []), *(self.set_ or [])]

    @property
    def plugins(self) -> list[str]:
        """Return files and modules to load first."""
        return self.plugin or []

    def read_recipe(self, recipe: str, *extra_changes: str, check_paths: bool = False) -> "Recipe":
        """Return a recipe with all changes. Raises RecipeError.

        Args:
            recipe: a file, or the name of a packaged one.
            extra_changes: changes besides those of the options.
            check_paths: also raise it if the data or the base is missing, before torch is imported.
        """
        with waiting(f"reading {recipe}"):
            from fedseed.recipe.reading import read_recipe

            checked = read_recipe(
                recipe, [*self.changes, *extra_changes], self.plugins, self.trust_plugins
            )
            if check_paths and not checked.of_parties:
                checked.task.client_names()
        base = checked.model.base
        if (
            check_paths
            and base.startswith((".", "/", "~"))
            and not Path(base).expanduser().is_dir()
        ):
            raise RecipeError(
                f'model.base = "{base}": there is no such folder; give one, or a name (fedseed '
                "list models)"
            )
        return checked


@dataclass(frozen=True)
class ReadingForDevice(Reading):
    """Options for reading a recipe, and the model's device."""

    device: Annotated[
        str | None,
        typer.Option(
            help="The model's device: auto (a GPU if there is one), cpu, cuda, cuda:1, map. As "
            "model.device."
        ),
    ] = None

    @property
    def changes(self) -> list[str]:
        """Return the values that replace those of the recipe, `--device` as the last."""
        return [
            *super().changes,
            *([] if self.device is None else [f'model.device="{self.device}"']),
        ]


@dataclass(frozen=True)
class Placing:
    """Options for the base of a model, and its device."""

    base: Annotated[
        str | None,
        typer.Option(help="The base: a name, or its folder. Default: as in the run."),
    ] = None
    device: Annotated[
        str,
        typer.Option(
            help="The model's device: auto (a GPU if there is one), cpu, cuda, cuda:1, map."
        ),
    ] = "auto"


@dataclass(frozen=True)
class Running:
    """Options for running a recipe on several processes."""

    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Divide a round's clients among this number of processes on this machine: one for "
            "each GPU, or with a share of the cores each. The results are those of one "
            "process with the same --threads.",
        ),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            help="Have the --workers, or the --jobs, on a Ray cluster: its head's address, or "
            '"auto".'
        ),
    ] = None
    threads: ThreadsOption = None


@dataclass(frozen=True)
class Telling:
    """Options for a command's output."""

    as_json: JsonOption = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False

    def screen(self) -> Console:
        """Return the console for people's messages: standard error with --json, nothing with
        --quiet.
        """
        if self.quiet:
            return Screen(quiet=True)
        if self.as_json:
            return Screen(stderr=True)
        return console


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer in which each parameter that is a data class stands for options,
    one for each field.

    Args:
        command: parameters that are data classes need no default, as their fields have defaults.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        n: p.annotation for n, p in signature.parameters.items() if is_dataclass(p.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            options = list(inspect.signature(groups[name], eval_str=True).parameters.values())
        else:
            options = [parameter]
        parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in options]

    @wraps(command)
    def called(**values: Any) -> None:
        group_values = {
            name: kind(**{f.name: values.pop(f.name) for f in fields(kind)})
            for name, kind in groups.items()
        }
        command(**values, **group_values)

    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


@contextmanager
def interruptible(resume: str = "") -> Iterator[None]:
    """End a run on Ctrl-C with exit code 130 and one line with the command that goes on.

    Args:
        resume: the option with which the same command continues the run; "": none.
    """
    try:
        yield
    except KeyboardInterrupt:
        arguments = [word for word in sys.argv[1:] if word != "--fresh"]  # it would begin again
        words = ["fedseed", *arguments, *([resume] if resume and resume not in arguments else [])]
        print(f"fedseed: interrupted; continue with: {shlex.join(words)}", file=sys.stderr)
        raise typer.Exit(130) from None


@contextmanager
def stepping(console: Console, count: int | None = None) -> Iterator[Callable[..., None]]:
    """Show a bar for a replay. The yielded function takes the number of each applied step, and the
    number of all steps.
    """
    if count is not None and not console.is_terminal:
        console.print(f"replaying {plural(count, 'step')}", highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("loading" if count is None else "replaying", total=count)
        yield lambda number, total: bar.update(
            task, description="replaying", completed=number, total=total
        )


def say(text: str, screen: Console | None = None) -> None:
    """Print a line as it is, so that it can be pasted.

    On standard output unless another console is given.
    """
    (screen or console).print(text, highlight=False, soft_wrap=True)


# exit code: the run is over and its files are written, but it has diverged
DIVERGED = 3


def end_if_diverged(summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """Print which runs have diverged, and end the command with exit code 3 if one has.

    An attacked run does not count: its divergence shows the attack, not a wrong rate.

    Args:
        summaries: the summaries of finished runs, by name; "": the only run.

    Raises:
        typer.Exit: at least one run has diverged.
    """
    diverged = False
    for name, summary in summaries.items():
        failure = summary.get("failure")
        if failure is None or summary.get("attack") is not None:
            continue
        diverged = True
        run = "the run"
        if name:
            run = f"{name}: the run"
        text = (
            f"fedseed: {run} has diverged since round {failure['round']}: {failure['reason']}; "
            f"{failure['advice']}"
        )
        print(clean(text), file=sys.stderr)
    if diverged:
        raise typer.Exit(DIVERGED)


def answer(result: Any) -> None:
    """Print a result for `--json`: the only thing on standard output."""
    typer.echo(json.dumps(result, indent=2))
