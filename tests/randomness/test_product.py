"""Products with moved weights that are never stored: the reference's numbers, and the same bits whatever the tiles."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedseed.randomness import Basis
from fedseed.randomness.basis import FLAT
from fedseed.randomness.kernels import load
from fedseed.randomness.kernels.reference import Part
from support.tiers import tiered

REFERENCE, CPU = load("reference"), load("cpu")
pytestmark = pytest.mark.skipif(CPU.product is None, reason="no fused multiply-add on this processor")
# (inputs, rows, columns): fewer than a tile, none of them a multiple of one, several panels, slabs and depths
SHAPES = [(1, 1, 16), (7, 5, 16), (8, 8, 32), (33, 100, 800), (125, 301, 784), (97, 600, 1552), (300, 20, 64)]
START = 2**33 + 4093  # of the matrix in the vector: no multiple of anything


def random(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def product(x, w, bias, parts, scale, start=START):
    prepared = CPU.prepare(parts, 1 << 34)
    return CPU.product(x, w, bias, prepared, scale, start, lambda count: np.full(count, np.nan, np.float32))


@tiered({"name": FLAT, "shape": SHAPES})
def test_agrees_with_the_reference(name, shape):
    rng = np.random.default_rng(0)
    inputs, rows, columns = shape
    x, w, bias = random(rng, inputs, columns), random(rng, rows, columns), random(rng, rows)
    parts = [Part(Basis(name, 7, size=64).spec, 3, np.ones(1, np.float32))]
    scale = 40.0 if name == "truncated_normal" else 0.5  # its entries are at most 1 / sqrt(d)
    moved = np.empty_like(w)
    REFERENCE.move(moved.reshape(-1), w.reshape(-1), "float32", REFERENCE.prepare(parts, 1 << 34), scale, START)
    for b in (0, bias):
        expected = x @ moved.T + b
        found = product(x, w, b if b is bias else None, parts, scale)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * columns)
    if name != "truncated_normal":
        assert np.abs(expected - (x @ w.T + bias)).max() > 0.1  # the move bites


def test_slabs_of_another_size_give_the_same_bits(monkeypatch):
    monkeypatch.setattr("fedseed.randomness.kernels.cpu._SLAB", 1 << 10)
    assert digest_of_a_product() == DIGEST


def digest_of_a_product():
    rng = np.random.default_rng(4)
    x, w, bias = random(rng, 77, 800), random(rng, 101, 800), random(rng, 101)
    parts = [Part(Basis("hadamard", 4).spec, 0, np.ones(1, np.float32))]
    return hashlib.blake2b(product(x, w, bias, parts, 0.3).tobytes(), digest_size=8).hexdigest()


@pytest.mark.long
@pytest.mark.slow
def test_processors_with_narrower_registers_give_the_same_bits():
    """Compiled for AVX2, whose tiles have another shape, where this processor has it."""
    features = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,+sse4.2"
    places = f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"
    environment = {
        **os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": features, "PYTHONPATH": places,
    }  # fmt: skip
    script = (
        "import test_product as t; from fedseed.randomness.kernels import cpu;"
        "print(cpu._REGISTER, t.digest_of_a_product())"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=Path(__file__).parent, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert out.stdout.split() == ["8", digest_of_a_product()]
    assert digest_of_a_product() == DIGEST


@pytest.mark.long
def test_without_fused_multiply_adds_there_is_no_product():
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    script = "from fedseed.randomness.kernels import cpu; print(cpu.product)"
    out = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "None"


DIGEST = "8c9ed7ffd2d7adf4"  # of `digest_of_a_product`, on every processor
