"""Hashes weights, so that two machines can tell whether they hold the same bits.

There are two kinds of digests; an orbit's header says which kind its own are.

    blake2b        one BLAKE2b over everything, tensor after tensor: one thread, about 1 GB a second
    blake2b-tree   a tensor's bytes are cut into leaves of 1 MiB (its last one may be shorter), each
    hashed by itself,
                   and one hash is made of the leaves' hashes: as many threads as torch has, and the
                   same digest with any number of them

    leaf(x) = BLAKE2b(x, 32 bytes, person = "fedseed leaf") digest  = BLAKE2b(for each tensor:
    ["name","dtype",[sides]] as JSON in ASCII without blanks | newline | its leaves,
                      16 bytes, person = "fedseed tree")

Tensors on a GPU are copied to host memory piece by piece, so that no whole tensor is there twice.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Any

import torch

from fedseed.weights.codes import is_wrapper
from fedseed.weights.dense_digest import LEAF_BYTES, digest_of, leaf_hashes
from fedseed.weights.layout import DigestKind

# how much a thread hashes, and how much is copied from a GPU, at a time
PIECE_BYTES = 8 * LEAF_BYTES

Named = Sequence[tuple[str, torch.Tensor]]


def dtype_name(tensor: torch.Tensor) -> str:
    """Returns a tensor's dtype as layouts and headers name it: float32, bfloat16, float16."""
    return str(tensor.dtype).removeprefix("torch.")


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's bytes in order, where it lies.

    A copy only if its elements do not lie in order.
    """
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Returns a tensor's elements in order, as bytes (little-endian) on the CPU."""
    return _raw(tensor.to("cpu")).numpy().data


def hash_tensors(named: Named, kind: DigestKind = "blake2b", threads: int | None = None) -> str:
    """Returns the hex digest (128 bits) of tensors' names, dtypes, shapes and bytes.

    Args:
        named: the tensors with their names.
        kind: how they are hashed.
        threads: how many may hash ("blake2b" takes one); None: as many as torch has. The digest
            does not depend on it.
    """
    each = zip(named, hashed([tensor for _, tensor in named], kind, threads), strict=True)
    return digest_of(
        ((name, dtype_name(tensor), tensor.shape, own) for (name, tensor), own in each), kind
    )


def hashed(
    tensors: Sequence[torch.Tensor], kind: DigestKind, threads: int | None = None
) -> Iterable[Iterable[bytes | memoryview]]:
    """Returns what a digest is made of for each tensor: its bytes, or its leaves' hashes."""
    if kind == "blake2b-tree":
        return _hash_leaves(tensors, threads or torch.get_num_threads())
    return (map(_on_host, torch.split(_raw(tensor), PIECE_BYTES)) for tensor in tensors)


def base_digest(model: torch.nn.Module, kind: DigestKind = "blake2b") -> str:
    """Returns the hex digest of a whole model: of all its parameters and saved buffers, tied ones
    once.
    """
    return hash_tensors(untied(model.state_dict(keep_vars=True).items()), kind)


def untied(named: Iterable[tuple[str, torch.Tensor]]) -> Named:
    """Returns each tensor once, by the first of its names.

    A tensor that is made of others, as quantisers' libraries have them, is taken as these.
    """
    once: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in named:
        once.setdefault(id(tensor), (name, tensor))
    return [part for name, tensor in once.values() for part in _parts(name, tensor)]


def _parts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields a plain tensor as it is; of a wrapper the tensors inside, by the names they have
    there.
    """
    if not is_wrapper(tensor):
        yield name, tensor
        return
    wrapper: Any = tensor
    for inside in wrapper.__tensor_flatten__()[0]:
        yield from _parts(f"{name}.{inside}", getattr(tensor, inside))


def _on_host(piece: torch.Tensor) -> memoryview:
    """Returns a piece's bytes in host memory."""
    # pinned memory is copied to several times faster; torch keeps it for the next piece
    if piece.is_cuda:
        piece = torch.empty(piece.shape, dtype=torch.uint8, device="cpu", pin_memory=True).copy_(
            piece
        )
    return piece.cpu().numpy().data


def _hash_leaves(tensors: Sequence[torch.Tensor], threads: int) -> Iterator[list[bytes]]:
    """Yields the hashes of each tensor's leaves."""
    pieces = [torch.split(_raw(tensor), PIECE_BYTES) for tensor in tensors]
    with ThreadPoolExecutor(threads, "digest") as pool:  # hashing releases the interpreter's lock
        hashes = pool.map(lambda piece: leaf_hashes(_on_host(piece)), chain.from_iterable(pieces))
        for own in pieces:
            yield list(chain.from_iterable(islice(hashes, len(own))))
