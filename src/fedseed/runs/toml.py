"""TOML files of people, which may be somebody else's."""

import tomllib
from pathlib import Path
from typing import Any

from fedseed.errors import RecipeError

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
