"""Code that a recipe names: plug-ins, and a reward function. It is run with the word of whoever runs the recipe."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedseed.errors import RecipeError
from fedseed.registry import is_loaded, load_plugin, resolve
from fedseed.tasks.rewards import placed


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
