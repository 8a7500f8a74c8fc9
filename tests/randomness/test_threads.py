"""The compiled kernels have the same bits with any number of threads; rows of a product with any others beside them."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from fedseed.randomness import Basis, Domain
from fedseed.randomness.basis import FLAT
from fedseed.randomness.kernels import load
from fedseed.randomness.kernels.reference import Part
from fedseed.randomness.matrices import Matrices

CPU = load("cpu")
COUNTS = (1, 3, 5)  # threads; of a product's inputs up to four make a copy each, more have one together


def sums_and_projections():
    """By basis, over several runs and spans of elements."""
    rng = np.random.default_rng(2)
    n = 2_500_001
    c, x = rng.normal(size=5).astype(np.float32), rng.normal(size=n).astype(np.float32)
    for name in FLAT:
        spec = Basis(name, 99, size=512).spec
        yield CPU.combine(CPU.prepare([Part(spec, 0, c)], n), 11, 11 + n)
        yield CPU.project(spec, 0, 5, x, 11, n)


def outer_products():
    """Of many directions on a matrix, by tables, and of a few."""
    rng = np.random.default_rng(4)
    matrices = Matrices([(11,), (2100, 40), (3,)])
    n = matrices.size
    c, x = rng.normal(size=100).astype(np.float32), rng.normal(size=n).astype(np.float32)
    for rank, count in ((1, 100), (2, 2)):
        spec = Basis("lowrank", 5, rank=rank).spec_on(matrices)
        yield CPU.combine(CPU.prepare([Part(spec, 0, c[:count])], n), 5, n - 1)
        yield CPU.project(spec, 0, count, x[5:-1], 5, n)


def moved(dtype=np.float32):
    """Weights after several steps at once, and random words."""
    weights = np.linspace(-1, 1, 300_007, dtype=dtype)
    parts = [Part(Basis("hadamard", 4).spec, 0, np.ones(3, np.float32))]
    CPU.move(weights, weights, "float32", CPU.prepare(parts, weights.size), 0.5, 11)
    yield weights
    yield CPU.element_words(5, Domain.ROUNDING, 1, 3, 300_010)


def product_of(*rows):
    """Of these rows of inputs with a matrix of several slabs."""
    rng = np.random.default_rng(3)
    x, w = (rng.normal(size=(count, 1552)).astype(np.float32) for count in (131, 517))
    x, prepared = x[slice(*rows)], CPU.prepare([Part(Basis("hadamard", 4).spec, 0, np.ones(1, np.float32))], 1 << 34)
    return CPU.product(x, w, None, prepared, 0.3, 2**33 + 4093, lambda count: np.full(count, np.nan, np.float32))


def compare():
    """All of these with each number of threads; in a process that has so many."""
    found = []
    for threads in COUNTS:
        numba.set_num_threads(threads)
        made = [
            *sums_and_projections(),
            *outer_products(),
            *moved(),
            *([] if CPU.product is None else [product_of(None)]),
        ]
        found.append([array.tobytes() for array in made])
    assert all(other == found[0] for other in found[1:]) and len(found[0]) >= 10
    print(len(found), "alike")


@pytest.mark.slow
def test_the_number_of_threads_does_not_matter():
    """Side by side with others this process has a single one: conftest.py."""
    places = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "NUMBA_NUM_THREADS": str(max(COUNTS)), "PYTHONPATH": places}
    script = "from test_threads import compare; compare()"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout == "3 alike\n", done.stderr


def test_other_rows_of_a_product_do_not_matter():
    if CPU.product is not None:  # there is a fused multiply-add
        expected = product_of(None)
        for rows in ((0, 1), (50, 99), (130, 131)):
            np.testing.assert_array_equal(product_of(*rows), expected[slice(*rows)])
