"""`fedseed list`: what there is to choose from, and where it comes from."""

from collections.abc import Sequence
from typing import Any, Literal

from fedseed.registry import Registry, load_plugin

LISTED = Literal["methods", "tasks", "metrics", "aggregation", "trackers", "transports", "bases", "recipes", "sweeps"]


def listing(what: LISTED, plugins: Sequence[str] = ()) -> tuple[list[tuple[str, ...]], list[str]]:
    """Rows of name, meaning and (of what others can add to) origin; and a line for each entry point that is broken.

    Args:
        what: the kind of thing.
        plugins: files and modules to load first.

    Raises:
        RecipeError: a plug-in can't be loaded.
    """
    for plugin in plugins:
        load_plugin(plugin)
    if what == "bases":
        from fedseed.randomness import BASES

        return list(BASES.items()), []
    if what == "sweeps":
        from fedseed.experiments.sweeps import packaged_sweeps, read_sweep

        return [(name, read_sweep(path).title) for name, path in packaged_sweeps().items()], []
    if what == "recipes":
        from fedseed.runs.recipe import packaged_recipes, read_recipe

        return [(name, read_recipe(name).title) for name in packaged_recipes()], []
    from fedseed.extension import REGISTRIES

    registry: Registry[Any] = REGISTRIES[what]
    rows: list[tuple[str, ...]] = [(entry.name, _about(entry.thing), entry.origin) for entry in registry.entries()]
    return rows, [str(broken) for broken in registry.broken()]


def _about(thing: Any) -> str:
    """A line about a class or a function: what it says of itself, or the first line of its docstring."""
    about = getattr(thing, "about", None) or (thing.__doc__ or "").strip().partition("\n")[0]
    return str(about)
