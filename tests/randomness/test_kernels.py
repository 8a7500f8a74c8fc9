"""All implementations give the reference's bits."""

import numba
import numpy as np
import pytest

from fedseed.randomness import BASES, Basis
from fedseed.randomness.kernels import load

REFERENCE, CPU = load("reference"), load("cpu")
# (first element, elements): across tiles, chunks, spans and 32 bits; multiples of nothing
RUNS = [(0, 1), (3, 17), (1000, 4097), (4093, 10_007), (2**20 - 77, 20_011), (2**33 + 5, 513)]


def same_bits(a, b):
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize(("start", "count"), RUNS)
@pytest.mark.parametrize(("directions", "first"), [(1, 0), (7, 3), (150, 0), (150, 61)])
def test_combine_project_and_direction(name, start, count, directions, first):
    rng = np.random.default_rng(0)
    spec = Basis(name, 12345678901234567, size=64).spec
    length = max(count, 5000)
    c = rng.normal(size=directions).astype(np.float32)
    c[directions // 2 :: 5] = 0
    x = rng.normal(size=count).astype(np.float32)
    ends = (start, start + count, length)
    same_bits(REFERENCE.combine(spec, first, c, *ends), CPU.combine(spec, first, c, *ends))
    same_bits(
        REFERENCE.project(spec, first, directions, x, start, length),
        CPU.project(spec, first, directions, x, start, length),
    )
    same_bits(REFERENCE.direction(spec, first, *ends), CPU.direction(spec, first, *ends))


@pytest.mark.parametrize("name", BASES)
def test_many_directions(name):
    """4,096 directions at once, on a run that begins and ends anywhere."""
    rng = np.random.default_rng(1)
    spec = Basis(name, 99, size=4096).spec
    c, x = rng.normal(size=4096).astype(np.float32), rng.normal(size=301).astype(np.float32)
    same_bits(REFERENCE.combine(spec, 0, c, 4000, 4301, 301), CPU.combine(spec, 0, c, 4000, 4301, 301))
    same_bits(REFERENCE.project(spec, 0, 4096, x, 4000, 301), CPU.project(spec, 0, 4096, x, 4000, 301))


@pytest.mark.parametrize("name", BASES)
def test_thread_count_does_not_matter(name):
    rng = np.random.default_rng(2)
    spec = Basis(name, 99, size=512).spec
    n = 2_500_001
    c, x = rng.normal(size=5).astype(np.float32), rng.normal(size=n).astype(np.float32)
    results = []
    available = numba.get_num_threads()
    for threads in (1, available):
        numba.set_num_threads(threads)
        results.append((CPU.combine(spec, 0, c, 11, 11 + n, n), CPU.project(spec, 0, 5, x, 11, n)))
    same_bits(results[0][0], results[1][0])
    same_bits(results[0][1], results[1][1])


@pytest.mark.parametrize("name", BASES)
def test_operations_agree_with_single_directions(name):
    """combine and project against matrix products of the directions; relative tolerance 1e-5."""
    rng = np.random.default_rng(3)
    basis = Basis(name, 4, size=32)
    n, k, start = 9001, 40, 123
    v = np.stack([basis.direction(j, start, start + n, length=n) for j in range(k)]).astype(np.float64)
    c, x = rng.normal(size=k).astype(np.float32), rng.normal(size=n).astype(np.float32)
    scale = np.sqrt(basis.variance(n))
    combined = CPU.combine(basis.spec, 0, c, start, start + n, n)
    np.testing.assert_allclose(combined, c @ v, atol=3e-5 * scale)
    projected = CPU.project(basis.spec, 0, k, x, start, n)
    np.testing.assert_allclose(projected, v @ x, atol=1e-5 * scale * np.sqrt(n) * 10)


def test_an_unknown_implementation_is_named():
    with pytest.raises(ValueError, match="FEDSEED_KERNELS = 'abacus'"):
        load("abacus")
