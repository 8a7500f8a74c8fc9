"""Files of a coordinator without torch whose method's steps are whole weights: what it remembers, and the weights."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from fedseed.durable import replacing
from fedseed.errors import FedseedError
from fedseed.federation.coordinator import Coordinator
from fedseed.orbit import Header
from fedseed.orbit.file import begin
from fedseed.weights.layout import ITEM_BYTES

_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64"}  # as safetensors calls them


def keep_state(folder: Path, number: int, coordinator: Coordinator) -> None:
    """Write what the coordinator remembers besides the weights, before the round counts."""
    kept = coordinator.state_dict()
    if not kept:
        return
    with replacing(folder / f"kept-{number}.npz") as temporary, open(temporary, "wb") as file:
        np.savez(file, **kept)  # type: ignore[arg-type]
    (folder / f"kept-{number - 2}.npz").unlink(missing_ok=True)


def restore_state(folder: Path, number: int, coordinator: Coordinator) -> None:
    """Take up what was kept after a round. Raises FedseedError."""
    if not list(folder.glob("kept-*.npz")):
        return
    path = folder / f"kept-{number}.npz"
    try:
        with ZipFile(path) as archive:
            if any(entry.compress_type != ZIP_STORED for entry in archive.infolist()):
                raise ValueError("it is compressed, which it never is")
        with np.load(path, allow_pickle=False) as arrays:
            coordinator.load_state_dict({name: arrays[name] for name in arrays.files})
    except (OSError, LookupError, ValueError, BadZipFile, EOFError, MemoryError) as error:
        raise FedseedError(f"{path}: what the coordinator has kept of round {number} can't be read: {error}") from error


def restore_outcome(folder: Path, number: int, coordinator: Coordinator, warn: Callable[[str], None]) -> None:
    """Take up what an aggregation rule remembers of a run that has an orbit, where it remembers anything.

    Args:
        folder: the run's.
        number: the orbit's last step.
        coordinator: has taken up the steps.
        warn: told if it is not there; the rule begins anew then.

    Raises:
        FedseedError: it is there, and can't be read.
    """
    if not coordinator.keeps_outcomes:
        return
    if not number:
        remove_state(folder)  # an earlier run's
    elif (folder / f"kept-{number}.npz").exists():
        restore_state(folder, number, coordinator)
    else:
        name = coordinator.aggregation.name
        warn(f"{folder}: kept-{number}.npz is not there: {name} remembers nothing of the rounds before, and goes on so")


def keep_outcome(folder: Path, number: int, coordinator: Coordinator) -> None:
    """Write what the rule remembers, if it does, before the step is in the orbit."""
    if coordinator.keeps_outcomes:
        keep_state(folder, number, coordinator)


def remove_state(folder: Path) -> None:
    """The run is over: nothing is taken up any more."""
    for path in folder.glob("kept-*.npz"):
        path.unlink()


def about_run(header: Header) -> dict[str, str]:
    """What a file of weights says of its run, so that a model can be made of it: how an orbit of it would begin."""
    return {"header": base64.b64encode(begin(header)).decode()}


def write_weights(path: Path, header: Header, weights: bytes, digest: str, number: int) -> None:
    """Weights as a safetensors file.

    Args:
        path: the file.
        header: what the run is.
        weights: the trained tensors' bytes, one after the other.
        digest: hex digest of the weights.
        number: the round after which they are these.
    """
    layout = header.layout
    about: dict[str, Any] = {}
    position = 0
    for entry in layout.tensors:
        size = entry.size * ITEM_BYTES[entry.dtype]
        offsets = [position, position + size]
        about[entry.name] = {"dtype": _DTYPES[entry.dtype], "shape": list(entry.shape), "data_offsets": offsets}
        position += size
    about["__metadata__"] = {
        "format": "pt", "digest": digest,
        "fedseed": json.dumps({"round": number, "digest": digest, **about_run(header)}),
    }  # fmt: skip
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(weights)
