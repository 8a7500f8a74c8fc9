"""`fedseed new` and `fedseed explain`: to begin with, and to look up a recipe's keys."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedseed.cli.common import JsonOption, PluginOption, answer, console, say
from fedseed.errors import FedseedError, RecipeError, StorageError


def new(
    folder: Annotated[Path, typer.Argument(help="Where to; made if it is not there.", metavar="[DIR]")] = Path(),
) -> None:
    """Write a commented recipe and a folder with example data, to begin with. The recipe runs as it is."""
    template = files("fedseed") / "cli" / "template"
    parts = list(_parts(template, Path()))
    if taken := [str(folder / part) for part, _ in parts if (folder / part).exists()]:
        raise FedseedError(f"{', '.join(taken)}: there already; choose another folder: fedseed new DIR")
    try:
        for part, source in parts:
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            (folder / part).write_bytes(source.read_bytes())
    except OSError as error:
        raise StorageError(f"{error.filename}: can't be written: {error.strerror}") from error
    for part, _ in parts:
        say(f"  {folder / part}")
    where = "" if folder == Path() else f"cd {folder} && "
    say(f"Next: {where}fedseed run recipe.toml")


def explain(
    key: Annotated[str, typer.Argument(help="A key, such as method.training.learning_rate, its end, or a table.")],
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a recipe's key means: type, default, and which methods or tasks have it."""
    from fedseed.runs.keys import find_keys, near_key
    from fedseed.runs.recipe import recipe_keys

    keys = recipe_keys()
    found = find_keys(keys, key)
    if not found:
        hint = near_key(keys, key)
        raise RecipeError(f"{key}: no recipe has such a key; {hint + ' ' if hint else ''}`fedseed list keys` has all")
    if as_json:
        answer([{"key": k.key, "type": k.kind, "default": k.default, "about": k.about, "of": k.of} for k in found])
        return
    for number, one in enumerate(found):
        console.print(Text(f"{one.key}" if number == 0 else f"\n{one.key}", style="bold"), soft_wrap=True)
        say(f"  {one.about}")
        default = one.default if " " in one.default else f"default {one.default}"
        say(f"  {one.kind}; {default}")
        if one.of:
            say(f"  of {', '.join(one.of)}")


def _parts(folder: Traversable, inside: Path) -> list[tuple[Path, Traversable]]:
    """The files of a folder and of those in it, by where they are in it."""
    found = []
    for part in sorted(folder.iterdir(), key=lambda part: part.name):
        if part.is_dir():
            found += _parts(part, inside / part.name)
        elif not part.name.startswith((".", "_")):
            found.append((inside / part.name, part))
    return found
