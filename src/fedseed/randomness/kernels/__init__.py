"""Implementations of the operations on directions. All give the same bits; they differ in speed.

`reference` is plain NumPy, `cpu` is compiled by numba. The environment variable FEDSEED_KERNELS chooses one.
"""

import os
from functools import cache
from importlib import import_module
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedseed.randomness.kernels.reference import Floats, Spec

IMPLEMENTATIONS = ("cpu", "reference")


class Kernels(Protocol):
    """What every implementation offers; see `reference` for the meaning of the arguments."""

    def direction(self, spec: Spec, k: int, start: int, stop: int, length: int) -> Floats:
        """Elements start..stop of direction k."""
        ...

    def element_words(self, seed: int, domain: int, k: int, start: int, stop: int) -> NDArray[np.uint32]:
        """One random word for each element."""
        ...

    def combine(self, spec: Spec, first: int, coefficients: Floats, start: int, stop: int, length: int) -> Floats:
        """Sum of coefficients times directions, over elements start..stop."""
        ...

    def project(self, spec: Spec, first: int, count: int, x: Floats, start: int, length: int) -> Floats:
        """Inner products of x, which begins at element `start`, with directions."""
        ...


@cache
def load(name: str) -> Kernels:
    """The implementation called `name`."""
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"FEDSEED_KERNELS = {name!r}: choose one of {', '.join(IMPLEMENTATIONS)}")
    return cast(Kernels, import_module(f"fedseed.randomness.kernels.{name}"))


def current() -> Kernels:
    """The implementation in use."""
    return load(os.environ.get("FEDSEED_KERNELS", "cpu"))
