"""List the recipes and sweeps in fedseed and in packages that add commands.

Only the files are read, so that recipes are listed without the packages that runs need.
"""

import tomllib
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import chain
from pathlib import Path

from fedseed.registry import COMMANDS


def packaged_recipes() -> dict[str, Path]:
    """Return fedseed's packaged recipes, by name."""
    folder = Path(str(files("fedseed") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def packaged_sweeps() -> dict[str, Path]:
    """Return the sweeps of fedseed, and of packages that add commands (in a folder `sweeps`), by
    name.
    """
    packages = sorted({point.module.partition(".")[0] for point in entry_points(group=COMMANDS)})
    folders = [
        files("fedseed") / "recipes" / "sweeps",
        *(files(package) / "sweeps" for package in packages),
    ]
    paths = chain.from_iterable(sorted(Path(str(folder)).glob("*.toml")) for folder in folders)
    return {path.stem: path for path in paths}


def titles(paths: Mapping[str, Path]) -> list[tuple[str, str]]:
    """Return the names of packaged recipes or sweeps with the title that each file has.

    Args:
        paths: the files, by name.
    """
    return [
        (name, str(tomllib.loads(path.read_text(encoding="utf-8")).get("title", "")))
        for name, path in paths.items()
    ]
