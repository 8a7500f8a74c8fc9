"""What is looked at in a base's folder before anything of it is loaded: it may be somebody else's.

Weights in safetensors files and, with `weights_only`, in torch's own are data; so are configurations and tokenizers.
What is not is the code that a folder brings or names, files that it names elsewhere, and archives that inflate.
"""

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedseed.errors import RecipeError
from fedseed.text import shown

CODE_FILES = ("modeling_*.py", "configuration_*.py", "tokenization_*.py")  # what a model's own code is saved as
_SETTINGS = ("tokenizer_config.json", "preprocessor_config.json", "processor_config.json")
_IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")  # "owner/name" is a kernel of the hub: code


def own_code(place: str, config: Mapping[str, Any]) -> str:
    """The code that comes with a model or is named by it, "" if there is none.

    Args:
        place: its folder, or its name on the hub.
        config: its config.json.
    """
    return shown(", ".join(sorted(set(_code_names(Path(place), config)))))


def _code_names(folder: Path, config: Mapping[str, Any]) -> Iterator[str]:
    for name in _SETTINGS:
        path = folder / name
        if path.is_file():
            try:
                settings = json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, RecursionError):
                continue  # who loads it will say what is wrong
            if isinstance(settings, dict) and settings.get("auto_map"):
                yield f"auto_map in {name}"
    if config.get("auto_map"):
        yield "auto_map in config.json"
    for key, value in _entries(config):
        if key.lstrip("_") in _IMPLEMENTATIONS and any("/" in text for text in _texts(value)):
            yield f"{key} in config.json"
    for pattern in CODE_FILES:
        yield from (path.name for path in folder.glob(pattern))


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All entries, of tables in it, too."""
    waiting: list[Any] = [config]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Mapping):
            yield from found.items()
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


def _texts(value: Any) -> list[str]:
    values = list(value.values()) if isinstance(value, Mapping) else [value]
    return [text for text in values if isinstance(text, str)]


def check_files(base: str, place: str) -> None:
    """Look at the files that weights come from.

    Args:
        base: what the recipe calls it.
        place: its folder; a name on the hub is looked at by the hub's own client.

    Raises:
        RecipeError: an index names files that are not in the folder, or an archive is a packed one.
    """
    folder = Path(place)
    for path in sorted(folder.glob("*.index.json")):
        try:
            names = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
            raise RecipeError(f'model.base = "{base}": {path.name} is no index of weights') from error
        for name in names:
            if not isinstance(name, str) or Path(name).name != name or name == ".." or "\\" in name:
                raise RecipeError(
                    f'model.base = "{base}": {path.name} names {shown(name)}: weights lie in the base\'s own folder'
                )
    for path in sorted(file for ending in ("*.bin", "*.pt", "*.pth", "*.npz") for file in folder.glob(ending)):
        try:
            with zipfile.ZipFile(path) as archive:
                packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist())
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
            continue  # an older form, or damaged: who loads it will say so
        if packed:
            raise RecipeError(f'model.base = "{base}": {path.name} is compressed, which torch never does; save it anew')
