"""Read recipes: TOML files with all settings of a run, checked before anything is loaded."""

import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import (
    ValidationError,
)

from fedseed.errors import RecipeError, closest
from fedseed.models import PACKAGED
from fedseed.recipe.keys import explain
from fedseed.recipe.packaged import packaged_recipes
from fedseed.recipe.settings import Recipe
from fedseed.registry import is_loaded, load_plugin, resolve
from fedseed.tasks.rewards import resolve_function

PLACES = (
    ("model", "base"),
    ("task", "path"),
    ("task", "evaluation_file"),
    ("task", "chat_template"),
    ("federation", "key"),
    ("federation", "ca"),
)
# before a key in an override: the key is removed
UNSET = "~"
# most bytes of a recipe file: longer ones would take hours to read
MOST_BYTES = 1 << 20
# the deepest nesting of tables and lists, and the most parts of a key
MOST_DEEP = 32
LONG_KEY = re.compile(rf"""(?<![\w"'.-])(?:[\w"'-]+[ \t]*\.[ \t]*){{{MOST_DEEP}}}[\w"']""".encode())


def read_toml(path: Path, option: str = "") -> dict[str, Any]:
    """Read a TOML file's tables.

    Args:
        path: the file.
        option: text before the file's name in errors, such as "--local ".

    Raises:
        RecipeError: it can't be read, is not TOML, or is too large for a recipe.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"{option}{path}: can't be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise RecipeError(f"{option}{path}: more than {MOST_BYTES:,} bytes: this is not a recipe")
    # tomllib's memory grows with the square of the number of a key's parts
    long = LONG_KEY.search(data)
    if long:
        line = data.count(10, 0, long.start()) + 1
        raise RecipeError(
            f"{option}{path} line {line}: a key of more than {MOST_DEEP} parts: this is not a "
            "recipe"
        )
    try:
        content = tomllib.loads(data.decode())
    except RecursionError as error:
        raise RecipeError(f"{option}{path}: not valid TOML: nested too deeply") from error
    # the text or its encoding is not valid, or a number has thousands of digits
    except ValueError as error:
        raise RecipeError(f"{option}{path}: not valid TOML: {error}") from error
    level: list[Any] = [content]
    for _ in range(MOST_DEEP):
        values = chain.from_iterable(
            one.values() if isinstance(one, dict) else one for one in level
        )
        level = [value for value in values if isinstance(value, dict | list)]
        if not level:
            return content
    raise RecipeError(
        f"{option}{path}: tables and lists are nested more than {MOST_DEEP} deep: this is not a "
        "recipe"
    )


def _override(data: dict[str, Any], overrides: Sequence[str]) -> None:
    """Put the values of overrides, such as "method.directions=1000", into a recipe's tables.

    "~method.bytes" takes a key out, so that it has its default.
    """
    for pair in overrides:
        if pair.startswith(UNSET):
            _take_out(data, pair.removeprefix(UNSET).strip())
            continue
        key, equals, text = pair.partition("=")
        keys = [k.strip() for k in key.split(".")]
        if not equals or not all(keys):
            raise RecipeError(f'--set {pair}: write key=value, such as "method.directions=1000"')
        table = data
        for k in keys[:-1]:
            table = table.setdefault(k, {})
            if not isinstance(table, dict):
                raise RecipeError(f"--set {pair}: {k} is a value, not a table")
        try:
            table[keys[-1]] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            table[keys[-1]] = text.strip()  # bare text needs no quotes on a command line


def _take_out(data: dict[str, Any], key: str) -> None:
    """Take a key, or a table, out of a recipe's tables."""
    *tables, last = (part.strip() for part in key.split("."))
    table: Any = data
    for part in tables:
        table = table.get(part) if isinstance(table, dict) else None
    if not isinstance(table, dict) or last not in table:
        raise RecipeError(f"--unset {key}: the recipe does not set this key")
    del table[last]


def _load_plugins(
    data: dict[str, Any], path: Path, sources: Sequence[str | Path], trust: bool
) -> None:
    """Load the plug-ins given, and those that the recipe names if it is trusted.

    Notes all of them in `data`.
    """
    names = [load_plugin(source) for source in sources]
    recipe_sources = data.get("plugins", [])
    if not isinstance(recipe_sources, list) or not all(
        isinstance(source, str) for source in recipe_sources
    ):
        return  # reported when the recipe is checked
    for source in recipe_sources:
        name = resolve(source, path.parent)
        if not trust and not is_loaded(name):
            raise RecipeError(
                f'{path}: plugins = ["{source}"]: a plug-in is code, and a recipe must not run '
                "code without your consent: "
                f"read it, then give --trust-plugins (or --plugin {name}; in Python "
                "trust_plugins=True)"
            )
        names.append(load_plugin(name, f"{path}: plugins:"))
    if names:
        data["plugins"] = list(dict.fromkeys(names))


def _find_beside(data: dict[str, Any], folder: Path) -> None:
    """Resolve the recipe's relative paths against its file's folder, if they exist there."""
    for name, key in PLACES:
        table = data.get(name)
        place = None
        if isinstance(table, dict):
            place = table.get(key)
        if not isinstance(place, str) or not place or (name == "model" and place in PACKAGED):
            continue
        with suppress(OSError):  # not a possible path
            target = folder / place
            if target.exists() and target.resolve() != Path(place).expanduser().resolve():
                data[name][key] = str(target)


def make_paths_absolute(data: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's tables, with existing relative paths to data made absolute."""
    for name, key in PLACES:
        place = data.get(name, {}).get(key)
        if name == "task" and place and Path(place).expanduser().exists():
            data[name][key] = str(Path(place).expanduser().resolve())
    return data


def _take_auto(data: dict[str, Any]) -> None:
    """Replace a method's learning_rate = "auto" by `tune_rate`; keep the rate at its default."""
    method = data.get("method")
    for table in (method, method.get("training") if isinstance(method, dict) else None):
        if isinstance(table, dict) and table.get("learning_rate") == "auto":
            del table["learning_rate"]
            data["tune_rate"] = True


def _place_reward(data: dict[str, Any], path: Path, trust: bool, folder: Path | None) -> None:
    """Make the path of the recipe's reward function absolute, if the function may be run."""
    table = data.get("reward")
    function = None
    if isinstance(table, dict):
        function = table.get("function")
    if not isinstance(table, dict) or not isinstance(function, str) or ":" not in function:
        # the check of the recipe reports the error
        return
    place = resolve_function(function, folder)
    if not trust and not is_loaded(place.rpartition(":")[0]):
        raise RecipeError(
            f'{path}: reward.function = "{function}" is code, and a recipe must not run '
            "code without your consent: "
            "read it, then give --trust-plugins (in Python trust_plugins=True)"
        )
    table["function"] = place


def read_recipe(
    source: str | Path,
    overrides: Sequence[str] = (),
    plugins: Sequence[str | Path] = (),
    trust_plugins: bool = False,
) -> Recipe:
    """Return a recipe from a TOML file or the name of a packaged one.

    Args:
        source: path or name.
        overrides: "key=value" pairs; keys are dotted, values TOML (or bare text). "~key" takes a
            key out.
        plugins: files and modules to load first; they are noted in the recipe, as absolute paths.
        trust_plugins: also load the plug-ins that the recipe itself names: that runs code of the
            recipe's author.

    Raises:
        RecipeError: missing, not TOML, or wrong; one line that names the key, the value and what is
            allowed.
    """
    path = Path(source)
    if not path.is_file():
        packaged = packaged_recipes()
        if str(source) not in packaged:
            raise RecipeError(
                f"{source}: no such recipe file, and no packaged recipe of this name; "
                f"{_instead(path)}"
            )
        path = packaged[str(source)]
    data = read_toml(path)
    _find_beside(data, path.parent)
    _override(data, overrides)
    _load_plugins(data, path, plugins, trust_plugins)
    _take_auto(data)
    typed = any(pair.partition("=")[0].replace(" ", "") == "reward.function" for pair in overrides)
    _place_reward(data, path, typed or trust_plugins, None if typed else path.parent)
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(f"{path}: {explain(error, data, Recipe)}") from error
    if recipe.reward is not None:
        # report the fault before anything is loaded
        recipe.reward.load()
    return recipe


def _instead(path: Path) -> str:
    """Return a suggestion in place of a missing recipe: a file beside it, or a packaged recipe."""
    try:
        beside = {file.name: str(path.parent / file.name) for file in path.parent.glob("*.toml")}
    except OSError:
        beside = {}
    near = closest(path.name, beside) or closest(f"{path.name}.toml", beside)
    suggestion = beside[near] if near else closest(str(path), packaged_recipes())
    hint = ""
    if suggestion is not None:
        hint = f"did you mean {suggestion}? "
    return f"{hint}`fedseed list recipes` lists the packaged ones, such as quickstart-ferret"


def parse_stored_recipe(text: str) -> Recipe:
    """Return the recipe of another process of the same run, from its `to_toml`. Its plug-ins are
    loaded first; the other process has agreed to them. Raises RecipeError if a plug-in is missing
    now.
    """
    data = tomllib.loads(text)
    for name in data.get("plugins", []):
        load_plugin(name)
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(
            f"a worker process does not understand the recipe: {explain(error, data, Recipe)}"
        ) from error
