"""Finds the safetensors files of a loaded model."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedseed.models import PACKAGED

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def stored_weights(model: Any) -> list[Path]:
    """Return the safetensors files that a model was loaded from.

    Args:
        model: any module. A transformers model has the folder or hub name that it was loaded from.

    Returns:
        The files, in the order of their names. None if the model was not loaded from files, or from
        files of another format. The files or the model may have changed since then, so callers
        compare the weights (`fedseed.weights.stored.open_base`).
    """
    return stored_files(str(getattr(model, "name_or_path", "") or ""))


def stored_files(place: str) -> list[Path]:
    """Return the safetensors files of a folder, a hub name or a packaged base; empty if there are
    none on this machine.
    """
    if not place:
        return []
    if place in PACKAGED:
        place = str(files("fedseed") / "base" / place)
    folder = Path(place)
    if not folder.is_dir():
        cached = _cached_folder(place)
        if cached is None:
            return []
        folder = cached
    index = folder / INDEX
    try:
        if index.is_file():
            by_tensor = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            names = sorted(set(map(str, by_tensor.values())))
        else:
            names = [WEIGHTS]
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return []
    return [folder / name for name in names if (folder / name).is_file()]


def _cached_folder(name: str) -> Path | None:
    """Return the folder of a hub model in the hub's cache; None if it is not there."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        for file in (INDEX, WEIGHTS):
            path = try_to_load_from_cache(name, file)
            if isinstance(path, str):
                return Path(path).parent
    except HFValidationError:
        return None
    return None
