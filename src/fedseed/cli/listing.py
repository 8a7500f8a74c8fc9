"""`fedseed list`: what there is to choose from, and where it comes from."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fedseed.registry import Registry, load_plugin

LISTED = Literal[
    "methods", "tasks", "metrics", "rewards", "aggregation", "trackers", "transports", "models", "bases", "recipes",
    "sweeps", "keys",
]  # fmt: skip
HEADINGS: Mapping[LISTED, tuple[str, ...]] = defaultdict(
    lambda: ("name", "about", "origin"),
    {"models": ("name", "about", "where"), "keys": ("key", "type", "default", "of")},
)
ENDINGS: Mapping[LISTED, str] = {
    "bases": "These are bases of random directions (method.basis). Models to tune: fedseed list models",
    "models": "Any folder or hub name with a model of transformers will do, too (model.base).",
    "keys": "fedseed explain KEY says what one means; docs/recipe.md has all.",
}


def listing(what: LISTED, plugins: Sequence[str] = ()) -> tuple[list[tuple[str, ...]], list[str]]:
    """Returns rows of texts (`HEADINGS` says of what), and a line for each entry point that is broken.

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
    if what == "models":
        return models(), []
    if what == "keys":
        from fedseed.runs.recipe import recipe_keys

        keys = recipe_keys()
        return [(key.key, key.kind, key.default, ", ".join(key.of)) for key in keys], []
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


def models() -> list[tuple[str, ...]]:
    """Returns what `model.base` can name without a download: name, meaning and folder of each."""
    folder = Path(str(files("fedseed") / "base"))
    own = sorted(path.parent for path in folder.glob("*/config.json"))
    return [*((path.name, _card(path), "comes with fedseed") for path in own), *_cached()]


def _card(folder: Path) -> str:
    """The first sentence of a model card's text."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
    except OSError:
        return ""
    paragraphs = text.rpartition("---\n")[2].split("\n\n")
    first = next((part for part in paragraphs if part.strip() and not part.lstrip().startswith(("#", "|"))), "")
    return " ".join(first.split()).partition(". ")[0]


def _cached() -> list[tuple[str, ...]]:
    """Models of the hub whose files are in its cache on this machine."""
    if find_spec("huggingface_hub") is None:
        return []
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    from fedseed.reports.tables import human_bytes

    try:
        repos = scan_cache_dir().repos
    except (CacheNotFound, OSError):
        return []
    found = sorted((repo for repo in repos if repo.repo_type == "model"), key=lambda repo: repo.repo_id)
    return [(one.repo_id, f"in the hub's cache, {human_bytes(one.size_on_disk)}", str(one.repo_path)) for one in found]
