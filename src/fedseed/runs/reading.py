"""What is read of a recipe before it is checked: TOML, what a command line replaces, and code that the recipe names.

Code (plug-ins, a reward function) is run with the word of whoever runs the recipe only.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedseed.errors import RecipeError
from fedseed.registry import is_loaded, load_plugin, resolve
from fedseed.tasks.rewards import placed

MOST_BYTES = 1 << 20  # of a file: what takes hours to read is longer
MOST_DEEP = 32  # tables and lists in each other


def read_toml(path: Path, what: str = "") -> dict[str, Any]:
    """A file's tables.

    Args:
        path: the file.
        what: stands before its name in errors, such as "--local ".

    Raises:
        RecipeError: it can't be read, is no TOML, or larger than anybody writes one.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"{what}{path}: can't be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise RecipeError(f"{what}{path}: more than {MOST_BYTES:,} bytes: this is no recipe")
    try:
        found = tomllib.loads(data.decode())
    except RecursionError as error:
        raise RecipeError(f"{what}{path}: not valid TOML: nested too deeply") from error
    except ValueError as error:  # of the text, its encoding, or a number of thousands of digits
        raise RecipeError(f"{what}{path}: not valid TOML: {error}") from error
    level: list[Any] = [found]
    for _ in range(MOST_DEEP):
        tables = [one.values() if isinstance(one, dict) else one for one in level]
        level = [inner for values in tables for inner in values if isinstance(inner, dict | list)]
        if not level:
            return found
    raise RecipeError(f"{what}{path}: tables and lists are nested more than {MOST_DEEP} deep: this is no recipe")


class Setting(NamedTuple):
    """A value that replaces one of a recipe's: what was given, the parts of its key, and the value."""

    pair: str
    keys: list[str]
    value: Any


def setting(pair: str) -> Setting:
    """An override such as "method.directions=1000". Raises RecipeError."""
    key, equals, text = pair.partition("=")
    keys = [k.strip() for k in key.split(".")]
    if not equals or not all(keys):
        raise RecipeError(f'--set {pair}: write key=value, such as "method.directions=1000"')
    try:
        return Setting(pair, keys, tomllib.loads(f"value = {text}")["value"])
    except tomllib.TOMLDecodeError:
        return Setting(pair, keys, text.strip())  # bare text needs no quotes on a command line


def overridden(data: dict[str, Any], settings: Sequence[Setting]) -> None:
    """Put the values of overrides into a recipe's tables. Raises RecipeError."""
    for pair, keys, value in settings:
        table = data
        for k in keys[:-1]:
            table = table.setdefault(k, {})
            if not isinstance(table, dict):
                raise RecipeError(f"--set {pair}: {k} is a value, not a table")
        table[keys[-1]] = value


def load_plugins(data: dict[str, Any], path: Path, given: Sequence[str | Path], trust: bool) -> None:
    """Load the plug-ins given, and the recipe's if that is allowed; note all of them in `data`.

    Args:
        data: the recipe, as it was read.
        path: its file.
        given: plug-ins that were asked for apart from it.
        trust: load what the recipe names, too.

    Raises:
        RecipeError: a plug-in can't be loaded, or may not be.
    """
    names = [load_plugin(source) for source in given]
    own = data.get("plugins", [])
    if not isinstance(own, list) or not all(isinstance(source, str) for source in own):
        return  # said when the recipe is checked
    for source in own:
        name = resolve(source, path.parent)
        if not trust and not is_loaded(name):
            raise RecipeError(
                f'{path}: plugins = ["{source}"]: a plug-in is code, and a recipe must not run somebody\'s code '
                f"unasked: read it, then give --trust-plugins (or --plugin {name}; in Python trust_plugins=True)"
            )
        names.append(load_plugin(name, f"{path}: plugins:"))
    if names:
        data["plugins"] = list(dict.fromkeys(names))


def place_reward(data: dict[str, Any], path: Path, trust: bool, folder: Path | None) -> None:
    """Give the recipe's reward function the place of its file, if it may be run.

    Args:
        data: the recipe, as it was read.
        path: its file.
        trust: whether it may be run.
        folder: where a relative path begins; None: where we work.

    Raises:
        RecipeError: it may not be run.
    """
    table = data.get("reward")
    function = table.get("function") if isinstance(table, dict) else None
    if not isinstance(table, dict) or not isinstance(function, str) or ":" not in function:
        return  # what is wrong is said when the recipe is checked
    place = placed(function, folder)
    if not trust and not is_loaded(place.rpartition(":")[0]):
        raise RecipeError(
            f'{path}: reward.function = "{function}" is code, and a recipe must not run somebody\'s code unasked: '
            "read it, then give --trust-plugins (in Python trust_plugins=True)"
        )
    table["function"] = place
