"""Hash weights, so that two machines can compare their bits.

There are two kinds of digests; an orbit's header names its kind.

    blake2b        one BLAKE2b over everything, tensor after tensor: one thread, about 1 GB a second
    blake2b-tree   a tensor's bytes are cut into leaves of 1 MiB (the last one may be shorter), each
                   leaf is hashed by itself, and one hash is made of the leaves' hashes: it uses as
                   many threads as torch, and any number gives the same digest

    leaf(x) = BLAKE2b(x, 32 bytes, person = "fedseed leaf")
    digest  = BLAKE2b(for each tensor: ["name","dtype",[sides]] as JSON in ASCII without blanks
                      | newline | its leaves, 16 bytes, person = "fedseed tree")

Tensors on a GPU are copied to host memory piece by piece, so that no whole tensor exists twice.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Any

import torch

from fedseed.weights.codes import is_wrapper
from fedseed.weights.dense_digest import LEAF_BYTES, digest_of, leaf_hashes
from fedseed.weights.layout import DigestKind

# bytes that a thread hashes, or that are copied from a GPU, at a time
PIECE_BYTES = 8 * LEAF_BYTES

NamedTensors = Sequence[tuple[str, torch.Tensor]]


def dtype_name(tensor: torch.Tensor) -> str:
    """Return a tensor's dtype as layouts and headers name it: float32, bfloat16, float16."""
    return str(tensor.dtype).removeprefix("torch.")


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes in order, on its device.

    They are a copy only if the tensor is not contiguous.
    """
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Return a tensor's elements in order, as little-endian bytes on the CPU."""
    return _raw(tensor.to("cpu")).numpy().data


def hash_tensors(
    named_tensors: NamedTensors, kind: DigestKind = "blake2b", threads: int | None = None
) -> str:
    """Return the hex digest (128 bits) of tensors' names, dtypes, shapes and bytes.

    Args:
        named_tensors: the tensors with their names.
        kind: how they are hashed.
        threads: number of threads that hash ("blake2b" takes one); None: as many as torch has. The
            digest does not depend on it.
    """
    inputs = digest_inputs([tensor for _, tensor in named_tensors], kind, threads)
    return digest_of(
        (
            (name, dtype_name(tensor), tensor.shape, parts)
            for (name, tensor), parts in zip(named_tensors, inputs, strict=True)
        ),
        kind,
    )


def digest_inputs(
    tensors: Sequence[torch.Tensor], kind: DigestKind, threads: int | None = None
) -> Iterable[Iterable[bytes | memoryview]]:
    """Return the input of a digest for each tensor: its bytes, or the hashes of its leaves."""
    if kind == "blake2b-tree":
        return _hash_leaves(tensors, threads or torch.get_num_threads())
    return (map(_copy_to_host, torch.split(_raw(tensor), PIECE_BYTES)) for tensor in tensors)


def base_digest(model: torch.nn.Module, kind: DigestKind = "blake2b") -> str:
    """Return the hex digest of all parameters and saved buffers of a model, tied ones once."""
    return hash_tensors(untied(model.state_dict(keep_vars=True).items()), kind)


def untied(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> NamedTensors:
    """Return each tensor once, with the first of its names.

    A tensor that wraps others, as in quantisation libraries, is replaced by these.
    """
    first_names: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in named_tensors:
        first_names.setdefault(id(tensor), (name, tensor))
    return [part for name, tensor in first_names.values() for part in _parts(name, tensor)]


def _parts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a plain tensor itself, or the tensors inside a wrapper, with their names."""
    if not is_wrapper(tensor):
        yield name, tensor
        return
    wrapper: Any = tensor
    for attribute in wrapper.__tensor_flatten__()[0]:
        yield from _parts(f"{name}.{attribute}", getattr(tensor, attribute))


def _copy_to_host(piece: torch.Tensor) -> memoryview:
    """Return a piece's bytes in host memory."""
    if piece.is_cuda:
        # copies to pinned memory are several times faster; torch keeps it for the next piece
        pinned = torch.empty(piece.shape, dtype=torch.uint8, device="cpu", pin_memory=True)
        piece = pinned.copy_(piece)
    return piece.cpu().numpy().data


def _hash_leaves(tensors: Sequence[torch.Tensor], threads: int) -> Iterator[list[bytes]]:
    """Yield the hashes of each tensor's leaves."""
    pieces = [torch.split(_raw(tensor), PIECE_BYTES) for tensor in tensors]
    # hashing releases the interpreter's lock
    with ThreadPoolExecutor(threads, "digest") as pool:
        hashes = pool.map(
            lambda piece: leaf_hashes(_copy_to_host(piece)), chain.from_iterable(pieces)
        )
        for tensor_pieces in pieces:
            yield list(chain.from_iterable(islice(hashes, len(tensor_pieces))))
