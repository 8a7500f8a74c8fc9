"""Checks a base's folder, which may come from strangers, before anything is loaded from it.

Weights in safetensors files are harmless data, and so are torch's own files read with
`weights_only`, configurations and tokenizers. Refused are code that a folder contains or names,
files that it names outside the folder, and archives that inflate.
"""

import json
import zipfile
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from fedseed.durable import is_irregular
from fedseed.errors import RecipeError
from fedseed.text import show_text

# files with a model's own code
CODE_FILES = ("modeling_*.py", "configuration_*.py", "tokenization_*.py")
_SETTINGS = ("tokenizer_config.json", "preprocessor_config.json", "processor_config.json")
# "owner/name" is a kernel on the hub, which is code
_IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")


def own_code(place: str, config: Mapping[str, Any]) -> str:
    """Return the names of code in a model's folder or in its config.json.

    "" if there is none.
    """
    folder, sources = Path(place), list[str]()
    if config.get("auto_map"):
        sources.append("auto_map in config.json")
    for path in (folder / name for name in _SETTINGS):
        try:
            settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        except (ValueError, RecursionError):
            continue  # loading it will report what is wrong
        if isinstance(settings, dict) and settings.get("auto_map"):
            sources.append(f"auto_map in {path.name}")
    # check the tables inside the configuration as well
    waiting: list[Any] = [config]
    while waiting:
        table = waiting.pop()
        if isinstance(table, Mapping):
            sources += [f"{key} in config.json" for key in table if _names_code(key, table[key])]
            waiting += table.values()
        elif isinstance(table, list):
            waiting += table
    for pattern in CODE_FILES:
        sources += [path.name for path in folder.glob(pattern)]
    return show_text(", ".join(sorted(set(sources))))


def _names_code(key: str, value: Any) -> bool:
    """Return whether a setting names an implementation on the hub, which would be code."""
    if key.lstrip("_") not in _IMPLEMENTATIONS:
        return False
    texts = list(value.values()) if isinstance(value, Mapping) else [value]
    return any(isinstance(text, str) and "/" in text for text in texts)


def check_regular(base: str, folder: Path) -> None:
    """Check a base's folder before anything in it is read.

    Args:
        base: the base's name in the recipe.
        folder: its folder.

    Raises:
        RecipeError: a file is a pipe or a device, which may never end.
    """
    for path in sorted(folder.iterdir()):
        if is_irregular(path):
            raise RecipeError(
                f'model.base = "{base}": {path.name} is not a regular file (but a pipe or a '
                "device, or a link to one): replace it by the file itself"
            )


def check_files(base: str, place: str) -> None:
    """Check the files with weights in a base's folder.

    For a name on the hub, the hub's own client checks them.

    Raises RecipeError if an index names files that are not in the folder, or an archive is
    compressed.
    """
    folder = Path(place)
    for path in sorted(folder.glob("*.index.json")):
        try:
            names = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
        except (
            OSError,
            ValueError,
            LookupError,
            AttributeError,
            TypeError,
            RecursionError,
        ) as error:
            raise RecipeError(
                f'model.base = "{base}": {path.name} is not an index of weights'
            ) from error
        for name in names:
            if not isinstance(name, str) or Path(name).name != name or name == ".." or "\\" in name:
                raise RecipeError(
                    f'model.base = "{base}": {path.name} names {show_text(name)}, but weights '
                    "must be in the base's own folder"
                )
    archives = [folder.glob(ending) for ending in ("*.bin", "*.pt", "*.pth", "*.npz")]
    for path in sorted(chain.from_iterable(archives)):
        try:
            with zipfile.ZipFile(path) as archive:
                packed = any(
                    entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()
                )
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
            # an older format, or damaged: loading it will raise an error
            continue
        if packed:
            raise RecipeError(
                f'model.base = "{base}": {path.name} is compressed, which torch never does; save '
                "it again with torch"
            )
