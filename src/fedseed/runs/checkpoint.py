"""Checkpoints of methods whose steps are whole weights: the newest weights in a safetensors file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedseed.durable import replacing
from fedseed.errors import OrbitError, StorageError
from fedseed.orbit import Header
from fedseed.renaming import orbit_dump
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
    named.update({KEPT + name: torch.from_numpy(array) for name, array in at.kept.items()})
    about = {"round": at.round, "changed": at.changed, "run": _run(header), "digest": space.digest()}
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
            differing = [key for key, value in _run(header).items() if about["run"].get(key) != value]
            if differing:
                raise OrbitError(f"{path} holds the weights of another run: its {differing[0]} differs")
            with torch.no_grad():
                for entry, parameter in zip(space.layout.tensors, space.parameters, strict=True):
                    parameter.copy_(file.get_tensor(entry.name))
            names = [name for name in list(file.keys()) if name.startswith(KEPT)]
            kept = {name.removeprefix(KEPT): file.get_tensor(name).numpy() for name in names}
        at = Checkpoint(int(about["round"]), int(about["changed"]), kept)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise OrbitError(f"{path}: not a checkpoint of a run, or damaged: {error}") from error
    if space.digest() != about["digest"]:
        raise OrbitError(f"{path}: the weights' digest differs from the one written with them")
    return at


def _run(header: Header) -> dict[str, object]:
    return {"base_digest": header.base_digest, "method": orbit_dump(header.method), "seed": header.seed}
