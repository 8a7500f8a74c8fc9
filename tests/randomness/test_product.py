"""Products with moved weights that are never stored.

And that neither tiles nor threads change a bit of anything.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from fedseed.randomness import Basis
from fedseed.randomness.kernels import load
from fedseed.randomness.kernels.reference import Part
from fedseed.randomness.matrices import Matrices
from support.bits import FLAT, REFERENCE
from support.tiers import tiered

CPU = load("cpu")
fused = pytest.mark.skipif(CPU.product is None, reason="no fused multiply-add on this processor")
# (inputs, rows, columns): fewer than a tile, none of them a multiple of one, several panels, slabs
# and depths
SHAPES = [
    (1, 1, 16),
    (7, 5, 16),
    (8, 8, 32),
    (33, 100, 800),
    (125, 301, 784),
    (97, 600, 1552),
    (300, 20, 64),
]
START = 2**33 + 4093  # of the matrix in the vector: no multiple of anything
# threads; of a product's inputs up to four make a copy each, more have one together
COUNTS = (1, 3, 5)


def random(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def product(x, w, bias, parts, scale, start=START):
    prepared = CPU.prepare(parts, 1 << 34)
    return CPU.product(
        x, w, bias, prepared, scale, start, lambda count: np.full(count, np.nan, np.float32)
    )


def said_by(script, **environment):
    """What a new process says to which this file is a module."""
    places = os.pathsep.join(
        [str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path]
    )
    environment = {**os.environ, "PYTHONPATH": places, **environment}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@fused
@tiered({"name": FLAT, "shape": SHAPES})
def test_agrees_with_the_reference(name, shape):
    rng = np.random.default_rng(0)
    inputs, rows, columns = shape
    x, w, bias = random(rng, inputs, columns), random(rng, rows, columns), random(rng, rows)
    parts = [Part(Basis(name, 7, size=64).spec, 3, np.ones(1, np.float32))]
    scale = 40.0 if name == "truncated_normal" else 0.5  # its entries are at most 1 / sqrt(d)
    moved = np.empty_like(w)
    REFERENCE.move(
        moved.reshape(-1), w.reshape(-1), "float32", REFERENCE.prepare(parts, 1 << 34), scale, START
    )
    for b in (0, bias):
        expected = x @ moved.T + b
        found = product(x, w, b if b is bias else None, parts, scale)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * columns)
    if name != "truncated_normal":
        assert np.abs(expected - (x @ w.T + bias)).max() > 0.1  # the move bites


@fused
def test_slabs_of_another_size_give_the_same_bits(monkeypatch):
    monkeypatch.setattr("fedseed.randomness.kernels.cpu._SLAB", 1 << 10)
    assert digest_of_a_product() == DIGEST


def digest_of_a_product():
    rng = np.random.default_rng(4)
    x, w, bias = random(rng, 77, 800), random(rng, 101, 800), random(rng, 101)
    parts = [Part(Basis("hadamard", 4).spec, 0, np.ones(1, np.float32))]
    return hashlib.blake2b(product(x, w, bias, parts, 0.3).tobytes(), digest_size=8).hexdigest()


@fused
@pytest.mark.long
@pytest.mark.slow
def test_processors_with_narrower_registers_give_the_same_bits():
    """Compiled for AVX2, whose tiles have another shape, where this processor has it."""
    features = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,+sse4.2"
    script = (
        "import test_product as t; from fedseed.randomness.kernels import cpu;"
        "print(cpu._REGISTER, t.digest_of_a_product())"
    )
    said = said_by(script, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES=features)
    assert said == ["8", digest_of_a_product()] == ["8", DIGEST]


@pytest.mark.long
def test_without_fused_multiply_adds_there_is_no_product():
    script = "from fedseed.randomness.kernels import cpu; print(cpu.product)"
    assert said_by(script, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="") == ["None"]


DIGEST = "8c9ed7ffd2d7adf4"  # of `digest_of_a_product`, on every processor


def product_of(*rows):
    """Of these rows of inputs with a matrix of several slabs."""
    rng = np.random.default_rng(3)
    x, w = random(rng, 131, 1552), random(rng, 517, 1552)
    return product(
        x[slice(*rows)], w, None, [Part(Basis("hadamard", 4).spec, 0, np.ones(1, np.float32))], 0.3
    )


@fused
def test_other_rows_of_a_product_do_not_matter():
    expected = product_of(None)
    for rows in ((0, 1), (50, 99), (130, 131)):
        np.testing.assert_array_equal(product_of(*rows), expected[slice(*rows)])


# -- threads
# ------------------------------------------------------------------------------------------------


def sums_and_projections():
    """By basis, over several runs and spans of elements."""
    rng = np.random.default_rng(2)
    n = 2_500_001
    c, x = random(rng, 5), random(rng, n)
    for name in FLAT:
        spec = Basis(name, 99, size=512).spec
        yield CPU.combine(CPU.prepare([Part(spec, 0, c)], n), 11, 11 + n)
        yield CPU.project(spec, 0, 5, x, 11, n)


def outer_products():
    """Of many directions on a matrix, by tables, and of a few."""
    rng = np.random.default_rng(4)
    matrices = Matrices([(11,), (2100, 40), (3,)])
    n = matrices.size
    c, x = random(rng, 100), random(rng, n)
    for rank, count in ((1, 100), (2, 2)):
        spec = Basis("lowrank", 5, rank=rank).spec_on(matrices)
        yield CPU.combine(CPU.prepare([Part(spec, 0, c[:count])], n), 5, n - 1)
        yield CPU.project(spec, 0, count, x[5:-1], 5, n)


def moved():
    """Weights after several steps at once, and others rounded by random words."""
    weights = np.linspace(-1, 1, 300_007, dtype=np.float32)
    parts = [Part(Basis("hadamard", 4).spec, 0, np.ones(3, np.float32))]
    CPU.move(weights, weights, "float32", CPU.prepare(parts, weights.size), 0.5, 11)
    yield weights
    drawn = np.empty(weights.size, dtype=np.uint16)
    CPU.draw(drawn, weights, "bfloat16", (5, 1), 3)
    yield drawn


def compare():
    """All of these with each number of threads; in a process that has so many."""
    found = []
    for threads in COUNTS:
        numba.set_num_threads(threads)
        products = [] if CPU.product is None else [product_of(None)]
        found.append(
            [
                array.tobytes()
                for array in (*sums_and_projections(), *outer_products(), *moved(), *products)
            ]
        )
    assert all(other == found[0] for other in found[1:]) and len(found[0]) >= 10
    print(len(found), "alike")


@pytest.mark.slow
def test_the_number_of_threads_does_not_matter():
    """Side by side with others this process has a single one: conftest.py."""
    said = said_by(
        "from test_product import compare; compare()", NUMBA_NUM_THREADS=str(max(COUNTS))
    )
    assert said == ["3", "alike"]
