"""The digests of `weights.digest`, of weights that are bytes: for a coordinator, which has no torch."""

import hashlib
import json

from fedseed.weights.layout import ITEM_BYTES, DigestKind, Layout

LEAF_BYTES = 1 << 20


def leaf_hash(leaf: bytes | memoryview) -> bytes:
    """The hash of a leaf of "blake2b-tree"."""
    return hashlib.blake2b(leaf, digest_size=32, person=b"fedseed leaf").digest()


def dense_digest(layout: Layout, data: bytes, kind: DigestKind) -> str:
    """Returns the digest that `ParameterSpace.digest` gives for the same weights.

    Args:
        layout: the tensors.
        data: their bytes, one after the other.
        kind: how they are hashed.
    """
    tree = kind == "blake2b-tree"
    digest = hashlib.blake2b(digest_size=16, person=b"fedseed tree" if tree else b"")
    rest = memoryview(data)
    for entry in layout.tensors:
        size = entry.size * ITEM_BYTES[entry.dtype]
        tensor, rest = rest[:size], rest[size:]
        if tree:
            about = [entry.name, entry.dtype, list(entry.shape)]
            digest.update(json.dumps(about, separators=(",", ":")).encode() + b"\n")
            for start in range(0, size, LEAF_BYTES):
                digest.update(leaf_hash(tensor[start : start + LEAF_BYTES]))
        else:
            digest.update(f"{entry.name}|{entry.dtype}|{list(entry.shape)}|".encode())
            digest.update(tensor)
    return digest.hexdigest()
