"""Describes a parameter space: which tensors it has, in which order, and how they are cut into
blocks.

It needs no torch, so that a coordinator, which holds no model, can work with it, and an orbit can
carry it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from statistics import median
from typing import Any, Literal

from fedseed.randomness.matrices import Matrices

BlockRule = Literal["one", "tensor", "packed"] | int
# the kinds of digests (see `weights.digest`)
DigestKind = Literal["blake2b", "blake2b-tree"]
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}


@dataclass(frozen=True)
class TensorEntry:
    """One trainable tensor: its name in the model, shape and dtype ("float32", "bfloat16",
    "float16").
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Trainable tensors in order, as one vector of length `size`, cut into blocks.

    Args:
        tensors: the entries in the model's order; tied weights once.
        boundaries: L + 1 ascending positions from 0 to the vector's length.
    """

    tensors: tuple[TensorEntry, ...]
    boundaries: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        """Return d, the number of trainable parameters."""
        return sum(t.size for t in self.tensors)

    @cached_property
    def block_sizes(self) -> tuple[int, ...]:
        """Return d_l, the number of parameters, of each block."""
        return tuple(b - a for a, b in pairwise(self.boundaries))

    @cached_property
    def matrices(self) -> Matrices:
        """Return the tensors' places in the vector, which low-rank directions depend on."""
        return Matrices([t.shape for t in self.tensors])

    @property
    def dense_bytes(self) -> int:
        """Return the size in bytes of all trainable tensors, as in a message that carries them."""
        return sum(t.size * ITEM_BYTES[t.dtype] for t in self.tensors)

    def to_json(self) -> dict[str, Any]:
        """Return the layout in a form that JSON can hold."""
        return {
            "tensors": [[t.name, list(t.shape), t.dtype] for t in self.tensors],
            "boundaries": list(self.boundaries),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Layout":
        """Return the layout that `to_json` was called on.

        Raises ValueError if the boundaries do not fit the tensors.
        """
        tensors = tuple(
            TensorEntry(str(name), tuple(map(int, shape)), str(dtype))
            for name, shape, dtype in data["tensors"]
        )
        layout = cls(tensors, tuple(int(b) for b in data["boundaries"]))
        ascending = all(a < b for a, b in pairwise(layout.boundaries))
        if len(layout.boundaries) < 2 or layout.boundaries[0] != 0 or not ascending:
            raise ValueError("block boundaries do not ascend from 0")
        if layout.boundaries[-1] != layout.size:
            raise ValueError(
                f"block boundaries end at {layout.boundaries[-1]}, the tensors at {layout.size}"
            )
        return layout


def cut(sizes: Sequence[int], rule: BlockRule) -> tuple[int, ...]:
    """Cut a vector of tensors into blocks.

    Args:
        sizes: number of elements of each tensor, in order.
        rule: "one" for a single block; one per "tensor"; "packed": neighbouring tensors share a
            block of at most 0.9 times the median tensor's size, larger ones stand alone (Ferret's
            published code; L = 194 for 24-layer LLaMA); or a number L of blocks whose sizes differ
            by at most one.

    Returns:
        L + 1 ascending positions, from 0 to the number of parameters.

    Raises:
        ValueError: the rule is unknown, or there would be more blocks than parameters.
    """
    total = sum(sizes)
    if total == 0:
        raise ValueError("the model has no trainable parameters")
    if isinstance(rule, int) and not isinstance(rule, bool):
        if not 1 <= rule <= total:
            raise ValueError(f"blocks = {rule}: from 1 to the number of parameters, {total}")
        return tuple(total * i // rule for i in range(rule + 1))
    if rule not in ("one", "tensor", "packed"):
        raise ValueError(f'blocks = {rule!r}: choose "one", "tensor", "packed" or a number')
    if rule == "one":
        return (0, total)
    budget = 0.9 * median(s for s in sizes if s) if rule == "packed" else 0.0
    boundaries, position = [0], 0
    for size in sizes:
        if position > boundaries[-1] and position + size - boundaries[-1] > budget:
            boundaries.append(position)
        position += size
    # only empty tensors may have come after the last cut
    if total > boundaries[-1]:
        boundaries.append(total)
    return tuple(boundaries)
