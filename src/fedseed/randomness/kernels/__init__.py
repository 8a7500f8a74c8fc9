"""Chooses an implementation of the operations on directions.

All give the same bits; they differ in speed.

`reference` is plain NumPy, `cpu` is compiled by numba, `triton` works on tensors where they are: on
a GPU, or anywhere through Triton's interpreter (TRITON_INTERPRET=1; slow, for tests). Weights on a
CPU are handled by `cpu`, those on a GPU by `triton`, unless the environment variable
FEDSEED_KERNELS names another one.
"""

import os
from functools import cache
from importlib import import_module

from fedseed.randomness.kernels.structured import Kernels

__all__ = ["IMPLEMENTATIONS", "Kernels", "current", "load"]

IMPLEMENTATIONS = ("cpu", "reference", "triton")


@cache
def load(name: str) -> Kernels:
    """Return the implementation called `name`. Raises ValueError if there is none."""
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"FEDSEED_KERNELS = {name!r}: choose one of {', '.join(IMPLEMENTATIONS)}")
    flat, low, factors = (
        import_module(f"fedseed.randomness.kernels.{part}{name}")
        for part in ("", "lowrank_", "factors_")
    )
    return Kernels(flat, low, factors)


def current(device: str = "cpu") -> Kernels:
    """Return the implementation for a kind of device ("cpu", "cuda")."""
    return load(os.environ.get("FEDSEED_KERNELS") or ("cpu" if device == "cpu" else "triton"))
