"""Implementations of the operations on directions. All give the same bits; they differ in speed.

`reference` is plain NumPy, `cpu` is compiled by numba, `triton` works on tensors where they are: on a GPU, or anywhere
through Triton's interpreter (TRITON_INTERPRET=1; slow, for tests). Weights on the CPU are for `cpu`, those on a GPU for
`triton`; the environment variable FEDSEED_KERNELS chooses another one.
"""

import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from fedseed.randomness.kernels.reference import Floats, Part, Spec
from fedseed.randomness.kernels.structured import Structured
from fedseed.randomness.stream import Domain

IMPLEMENTATIONS = ("cpu", "reference", "triton")


class Kernels(Protocol):
    """What every implementation offers; see `reference` for the meaning of the arguments."""

    TENSORS: bool  # whether it takes and gives torch tensors in place of arrays

    def direction(self, spec: Spec, k: int, start: int, stop: int, length: int) -> Any:
        """Elements start..stop of direction k."""
        ...

    def element_words(self, seed: int, domain: int, k: int, start: int, stop: int) -> Any:
        """One random word for each element."""
        ...

    def prepare(self, parts: Sequence[Part], length: int) -> Any:
        """What `combine` and `move` need of a sum of directions in a block of `length` elements."""
        ...

    def combine(self, prepared: Any, start: int, stop: int) -> Any:
        """The sum over elements start..stop."""
        ...

    def move(self, out: Any, source: Any, dtype: str, prepared: Any, scale: float, start: int) -> None:
        """out = round(source + scale * sum), where source holds elements start, start + 1, ..."""
        ...

    def move_many(self, moves: Sequence[tuple[Any, Any, int]], dtype: str, prepared: Any, scale: float) -> None:
        """`move` for each (out, source, start): for many small runs."""
        ...

    def prepare_steps(self, steps: Sequence[tuple[Sequence[Part], float]], length: int) -> Any:
        """What `move_steps` needs of (parts, scale) for each step, in a block of `length` elements."""
        ...

    def move_steps(self, out: Any, dtype: str, prepared: Any, start: int) -> None:
        """`move` in place for one step after the other, each rounded."""
        ...

    def move_rows(self, out: Any, source: Any, rows: Any, dtype: str, prepared: Any, scale: float, start: int) -> None:
        """out[i] = what `move` makes of row rows[i] of `source`, a matrix whose first element has index `start`."""
        ...

    def signs(self, spec: Spec, directions: Sequence[int], domain: Domain, start: int, count: int, *device: Any) -> Any:
        """Signs that low-rank directions are made of, shape (directions, rank, count); see `structured`."""
        ...

    draw: Callable[..., None] | None  # out = values rounded by the elements' words; None: who calls rounds himself
    product: Callable[..., None] | None  # a product with moved weights; None: not on this processor, make a copy

    def project(self, spec: Spec, first: int, count: int, x: Any, start: int, length: int) -> Floats:
        """Inner products of x, which begins at element `start`, with directions."""
        ...

    def project_sums(self, spec: Spec, first: int, count: int, x: Any, start: int, length: int) -> Any:
        """What of a projection adds up over runs of elements."""
        ...

    def project_finish(self, spec: Spec, first: int, count: int, sums: Any) -> Floats:
        """The products, from what `project_sums` returned (or the sum of several such)."""
        ...


@cache
def load(name: str) -> Kernels:
    """The implementation called `name`."""
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"FEDSEED_KERNELS = {name!r}: choose one of {', '.join(IMPLEMENTATIONS)}")
    flat, low = (import_module(f"fedseed.randomness.kernels.{part}{name}") for part in ("", "lowrank_"))
    return cast(Kernels, Structured(flat, low))


def current(device: str = "cpu") -> Kernels:
    """The implementation in use for a kind of device ("cpu", "cuda")."""
    return load(os.environ.get("FEDSEED_KERNELS") or ("cpu" if device == "cpu" else "triton"))
