"""Options that several commands share, each group as one value: its fields become options of the command."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedseed.cli.common import JsonOption, OverwriteOption, PluginOption, SetOption, ThreadsOption, console
from fedseed.reports.screen import Screen

if TYPE_CHECKING:
    from fedseed.runs.recipe import Recipe


@dataclass(frozen=True)
class Reading:
    """How a recipe is read: what is set in it, and code of others that is loaded first."""

    set_: SetOption = None
    plugin: PluginOption = None
    trust_plugins: Annotated[
        bool, typer.Option("--trust-plugins", help="Also run the plug-ins that the recipe names: code of its author.")
    ] = False

    @property
    def changes(self) -> list[str]:
        """Returns what replaces values of the recipe, "key=value" each."""
        return list(self.set_ or [])

    @property
    def plugins(self) -> list[str]:
        """Returns files and modules to load first."""
        return self.plugin or []

    def read(self, recipe: str, *more: str) -> "Recipe":
        """Returns a recipe with all changes, and some more. Raises RecipeError."""
        from fedseed.runs.recipe import read_recipe

        return read_recipe(recipe, [*self.changes, *more], self.plugins, self.trust_plugins)


@dataclass(frozen=True)
class ReadingForDevice(Reading):
    """The same, and where the model lies."""

    device: Annotated[
        str | None,
        typer.Option(
            help="Where the model lies: auto (a GPU if there is one), cpu, cuda, cuda:1, map. As model.device."
        ),
    ] = None

    @property
    def changes(self) -> list[str]:
        """Returns what replaces values of the recipe, `--device` as the last."""
        return [*super().changes, *([] if self.device is None else [f'model.device="{self.device}"'])]


@dataclass(frozen=True)
class Running:
    """How a run is computed, and whether it begins anew."""

    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Deal a round's clients to so many processes on this machine: one for each GPU, or a share of the "
            "cores each. The results are those of one process with as many --threads.",
        ),
    ] = None
    threads: ThreadsOption = None
    overwrite: OverwriteOption = False


@dataclass(frozen=True)
class Telling:
    """What a command says, and where."""

    as_json: JsonOption = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what went wrong.")] = False

    def screen(self) -> Console:
        """Returns where to say what people read: standard error with --json, nowhere with --quiet."""
        return Screen(quiet=True) if self.quiet else Screen(stderr=True) if self.as_json else console


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command for typer in which each parameter that is a data class stands for options, one for each field.

    Args:
        command: parameters that are data classes need no default: their fields have them.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: p.annotation for name, p in signature.parameters.items() if is_dataclass(p.annotation)
    }
    shown: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        own = inspect.signature(groups[name], eval_str=True).parameters.values() if name in groups else [parameter]
        shown += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

    @wraps(command)
    def called(**given: Any) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**given, **made)

    called.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in shown}
    return called
