"""Compiles the CPU's kernels for this tree, where that has not been done: about half a minute on
two cores, once.

    python scripts/compile_kernels.py

numba keeps what it has compiled beside the sources, for as long as they are what they were. Tests
that run side by side would each compile the same, so `make` does it before: in two processes, half
of it each.
"""

import multiprocessing
from collections.abc import Callable

import numpy as np

from fedseed.randomness import Basis, entries
from fedseed.randomness.kernels import load
from fedseed.randomness.kernels.factors_reference import FactorJob
from fedseed.randomness.kernels.reference import Part
from fedseed.randomness.matrices import Matrices

FEW, MANY = 8, 1 << 18  # elements: without threads, and with them
CPU = load("cpu")


def parts(name: str = "rademacher") -> list[Part]:
    """A sum of directions."""
    return [Part(Basis(name, 1).spec, 0, np.ones(2, np.float32))]


def moves(dtype: str, stored: str) -> None:
    """All that writes weights of a dtype."""
    for count in (FEW, MANY):
        prepared, weights = CPU.prepare(parts(), count), np.zeros(count, stored)
        CPU.move(weights, weights, dtype, prepared, 0.5, 0)
        matrices = Matrices([(count // 8, 8)])
        for many in (2, 64):
            outer = [Part(Basis("lowrank", 1).spec_on(matrices), 0, np.ones(many, np.float32))]
            CPU.move(weights, weights, dtype, CPU.prepare(outer, count), 0.5, 0)
        if CPU.draw is not None and dtype != "float32":
            CPU.draw(weights, np.zeros(count, np.float32), dtype, (1, 0), 0)


def factors() -> None:
    """Products of two factors."""
    for rows in (FEW, MANY // FEW):
        weights = np.zeros(rows * FEW, np.float32)
        left, right = np.ones((rows, 2), np.float32), np.ones((2, FEW), np.float32)
        CPU.add_factors([FactorJob(weights, weights, "float32", left, right, 0)], 0.5)


def sums() -> None:
    """Sums of directions."""
    for count in (FEW, MANY):
        CPU.combine(CPU.prepare(parts(), count), 0, count)
    if CPU.product is not None:
        x, w = np.zeros((8, 32), np.float32), np.zeros((32, 32), np.float32)
        CPU.product(
            x,
            w,
            None,
            CPU.prepare(parts(), 1 << 10),
            0.5,
            0,
            lambda count: np.zeros(count, np.float32),
        )


def projections() -> None:
    """Projections on directions."""
    for count in (FEW, MANY):
        x, matrices = np.zeros(count, np.float32), Matrices([(count // 8, 8)])
        for name in ("rademacher", "hadamard"):
            for start in (0, entries.SPAN - 4):  # within a span, and in two
                CPU.project(Basis(name, 1).spec, 0, 2, x, start, start + count)
        wide = Basis("hadamard", 1, size=1 << 17).spec  # more columns than a cache has room for
        CPU.project(wide, 0, 1 << 17, x, 0, count)
        for many in (2, 64):
            spec = Basis("lowrank", 1).spec_on(matrices)
            CPU.project(spec, 0, many, x, 0, count)
            CPU.combine(CPU.prepare([Part(spec, 0, np.ones(many, np.float32))], count), 0, count)


HALVES: list[list[Callable[[], None]]] = [
    [lambda: moves("float32", "float32"), projections],
    [lambda: moves("bfloat16", "uint16"), sums, factors],
]


def compile_half(number: int) -> None:
    """Call what takes one of the halves."""
    for call in HALVES[number]:
        call()


if __name__ == "__main__":
    # no thread of numba's is there yet
    with multiprocessing.get_context("fork").Pool(len(HALVES)) as pool:
        pool.map(compile_half, range(len(HALVES)))
