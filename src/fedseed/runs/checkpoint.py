"""Checkpoints of methods whose steps are whole weights: the newest weights in a safetensors file."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedseed.durable import replacing
from fedseed.errors import OrbitError, StorageError
from fedseed.federation.coordinator import SIZES
from fedseed.orbit import Header
from fedseed.orbit.file import scan
from fedseed.runs import dense_files
from fedseed.weights.space import ParameterSpace

KEPT = "coordinator."  # what the coordinator keeps has names that begin so


@dataclass(frozen=True)
class Checkpoint:
    """Where a dense run is.

    Args:
        round: the last round that counts.
        changed: the last round whose step was not empty.
        kept: what the coordinator keeps besides the weights (`Method.keep`).
    """

    round: int
    changed: int
    kept: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def save(path: Path, space: ParameterSpace, header: Header, at: Checkpoint) -> None:
    """Write the weights, replacing older ones in one go; on disk before this returns.

    Raises:
        StorageError: they can't be written; the older ones are still there.
    """
    named = {e.name: p.detach() for e, p in zip(space.layout.tensors, space.parameters, strict=True)}
    # a method that keeps no tensors leaves a file that any model can load: sizes stand beside it
    sizes = [float(size) for size in at.kept.get(SIZES, ())]
    named.update({KEPT + name: torch.from_numpy(array) for name, array in at.kept.items() if name != SIZES})
    about = {
        "round": at.round, "changed": at.changed, "digest": space.digest(), "sizes": sizes,
        **dense_files.about_run(header),
    }  # fmt: skip
    with replacing(path) as temporary:
        try:
            save_file(named, temporary, {"format": "pt", "fedseed": json.dumps(about)})
        except SafetensorError as error:
            raise StorageError(f"{path}: can't be written: {error}") from error


def load(path: Path, space: ParameterSpace, header: Header) -> Checkpoint:
    """Put the weights of a checkpoint into the space.

    Raises:
        OrbitError: not a checkpoint of this run, or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["fedseed"])
            differences = _header(about, path).differences(header)
            if differences:
                raise OrbitError(f"{path} holds the weights of another run: {differences[0]} here")
            with torch.no_grad():
                for entry, parameter in zip(space.layout.tensors, space.parameters, strict=True):
                    parameter.copy_(file.get_tensor(entry.name))
            names = [name for name in list(file.keys()) if name.startswith(KEPT)]
            kept = {name.removeprefix(KEPT): file.get_tensor(name).numpy() for name in names}
            kept[SIZES] = np.array(about.get("sizes", ()), dtype=np.float64)
        at = Checkpoint(int(about["round"]), int(about["changed"]), kept)
    except (SafetensorError, OSError, KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise OrbitError(f"{path}: not a checkpoint of a run, or damaged: {error}") from error
    if space.digest() != about["digest"]:
        raise OrbitError(f"{path}: the weights' digest differs from the one written with them")
    return at


def open_weights(path: Path) -> tuple[Header, int, str, Mapping[str, torch.Tensor]]:
    """What a run's file of weights holds, for one who has the file alone.

    Args:
        path: `model.safetensors` of a run's folder.

    Returns:
        What the run is, the round, the weights' digest, and the trained tensors by name.

    Raises:
        OrbitError: it can't be read, is no such file, or an older fedseed has written it, which did not say what it is.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["fedseed"])
            tensors = {name: file.get_tensor(name) for name in file.keys() if not name.startswith(KEPT)}  # noqa: SIM118
        return _header(about, path), int(about["round"]), str(about["digest"]), tensors
    except KeyError as error:
        raise OrbitError(
            f"{path}: it does not say which run it is of (an older fedseed has written it): run the recipe again"
        ) from error
    except (SafetensorError, OSError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise OrbitError(f"{path}: not a checkpoint of a run, or damaged: {error}") from error


def _header(about: dict[str, Any], path: Path) -> Header:
    """What a file says of its run."""
    return scan(base64.b64decode(about["header"]), str(path))[0].header
