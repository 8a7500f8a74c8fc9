"""Make the digests that `weights.digest` describes from weights given as bytes.

A coordinator, which has no torch, needs these.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence

from fedseed.weights.layout import ITEM_BYTES, DigestKind, Layout

LEAF_BYTES = 1 << 20


def leaf_hashes(data: memoryview) -> list[bytes]:
    """Return the hashes (32 bytes each) of the leaves of "blake2b-tree".

    Args:
        data: bytes that begin at the start of a leaf.
    """
    leaves = (data[start : start + LEAF_BYTES] for start in range(0, len(data), LEAF_BYTES))
    return [
        hashlib.blake2b(leaf, digest_size=32, person=b"fedseed leaf").digest() for leaf in leaves
    ]


def digest_of(
    tensors: Iterable[tuple[str, str, Sequence[int], Iterable[bytes | memoryview]]],
    kind: DigestKind,
) -> str:
    """Return the hex digest of tensors.

    Args:
        tensors: name, dtype, shape and bytes of each, the bytes in parts; for "blake2b-tree" the
            hashes of its leaves.
        kind: how they are hashed.
    """
    is_tree = kind == "blake2b-tree"
    digest = hashlib.blake2b(digest_size=16, person=b"fedseed tree" if is_tree else b"")
    for name, dtype, shape, parts in tensors:
        if is_tree:
            header = json.dumps([name, dtype, list(shape)], separators=(",", ":")) + "\n"
        else:
            header = f"{name}|{dtype}|{list(shape)}|"
        digest.update(header.encode())
        for part in parts:
            digest.update(part)
    return digest.hexdigest()


def dense_digest(layout: Layout, data: bytes, kind: DigestKind) -> str:
    """Return the digest that `ParameterSpace.digest` gives for the same weights.

    Args:
        layout: the tensors.
        data: the bytes of all tensors, one after the other.
        kind: how they are hashed.
    """
    tensors, rest = [], memoryview(data)
    for entry in layout.tensors:
        size = entry.size * ITEM_BYTES[entry.dtype]
        tensor, rest = rest[:size], rest[size:]
        parts = leaf_hashes(tensor) if kind == "blake2b-tree" else [tensor]
        tensors.append((entry.name, entry.dtype, entry.shape, parts))
    return digest_of(tensors, kind)
