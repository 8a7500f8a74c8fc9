"""Digests of weights: whether two machines hold the same bits."""

import hashlib
from collections.abc import Iterable, Sequence

import torch


def dtype_name(tensor: torch.Tensor) -> str:
    """A dtype as layouts and headers name it: float32, bfloat16, float16."""
    return str(tensor.dtype).removeprefix("torch.")


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's elements in order, as bytes (little-endian), on the CPU."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def hash_tensors(named: Sequence[tuple[str, torch.Tensor]]) -> str:
    """Hex digest (BLAKE2b, 128 bit) of tensors: names, dtypes, shapes and bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in named:
        digest.update(f"{name}|{dtype_name(tensor)}|{list(tensor.shape)}|".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def base_digest(model: torch.nn.Module) -> str:
    """Hex digest of a whole model: names, shapes, dtypes and bytes of all parameters and saved buffers."""
    return digest_tensors(model.state_dict(keep_vars=True).items())


def digest_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Hex digest of tensors with their names; of tied ones the first counts."""
    once: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in named:
        once.setdefault(id(tensor), (name, tensor))
    return hash_tensors(list(once.values()))
