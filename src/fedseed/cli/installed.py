"""Commands that other installed packages add, by entry points of the group "fedseed.commands"."""

from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperGroup

from fedseed.errors import PAPERS, RecipeError
from fedseed.registry import COMMANDS

IN_PAPERS = ("audit", "reproduce")  # commands of the package fedseed-papers


class InstalledCommands(TyperGroup):
    """fedseed's own commands and those of other packages; an entry point names a `typer.Typer`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(_points())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command; a package is imported only when one of its commands is asked for.

        Raises:
            RecipeError: the command is in the package fedseed-papers, which is not installed.
        """
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = _points().get(cmd_name)
        if point is not None and find_spec(point.module.partition(".")[0]) is not None:
            found = typer.main.get_command(point.load())
            found.name = cmd_name
            return found
        if cmd_name in IN_PAPERS:
            raise RecipeError(f"fedseed {cmd_name} is a command of the package fedseed-papers: {PAPERS}")
        return None


def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=COMMANDS)}
