"""The low-rank basis: its entries and sums against plain outer products, one implementation against
the other.
"""

import hashlib
from math import sqrt

import numpy as np
import pytest

from fedseed import Basis
from fedseed.randomness.kernels import load, lowrank_cpu, structured
from fedseed.randomness.kernels.lowrank_reference import factor
from fedseed.randomness.kernels.reference import Part
from fedseed.randomness.matrices import Matrices
from fedseed.randomness.stream import Domain
from support.bits import (
    DTYPES,
    check_moved,
    check_projected,
    check_summed,
    coefficients,
    same_bits,
    stored,
)
from support.tiers import tiered

CPU = load("cpu")
SHAPES = [(70, 33), (5,), (3, 4, 5), (), (130,), (0, 7), (1, 257), (257, 1), (64, 64)]
MATRICES = Matrices(SHAPES)
SIZE = MATRICES.size
# across tensors, within a row, one element
RUNS = [(0, SIZE), (17, 2400), (2310, 2316), (40, 41), (2000, 3333)]
SEED = 2**63 + 5


def spec(rank=1, seed=SEED, matrices=MATRICES):
    return Basis("lowrank", seed, rank=rank).spec_on(matrices)


def plain(rank, k, seed=SEED):
    """Direction k as a sum of outer products, in double precision."""
    parts, start = [], 0
    for shape in SHAPES:
        size = int(np.prod(shape))
        if len(shape) < 2:
            parts.append(
                Basis("rademacher", seed).direction(k, start, start + size).astype(np.float64)
            )
        elif size:
            m, n = shape[0], size // shape[0]
            u = [factor(seed, Domain.LEFT, k, j, start, m).astype(np.float64) for j in range(rank)]
            w = [factor(seed, Domain.RIGHT, k, j, start, n).astype(np.float64) for j in range(rank)]
            parts.append(
                sum(np.outer(a, b) for a, b in zip(u, w, strict=True)).reshape(-1) / sqrt(rank)
            )
        start += size
    return np.concatenate(parts)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_direction_is_a_sum_of_outer_products(rank):
    for k in (0, 3, 2**32 - 1):
        entries = Basis("lowrank", SEED, rank=rank).direction(k, 0, SIZE, matrices=MATRICES)
        np.testing.assert_allclose(entries, plain(rank, k), rtol=1e-6)
        part = Basis("lowrank", SEED, rank=rank).direction(k, 31, 2444, matrices=MATRICES)
        same_bits(part, entries[31:2444])


def test_the_bits_of_a_direction_never_change():
    entries = np.concatenate(
        [Basis("lowrank", 42, rank=r).direction(9, 0, SIZE, matrices=MATRICES) for r in (1, 2, 4)]
    )
    assert hashlib.sha256(entries.tobytes()).hexdigest()[:32] == "da9a58bcb90ae67bfec36c794efec4d2"


@tiered({"rank": [1, 2, 4], "count": [1, 3, 8, 9, 50], "run": RUNS}, together=2)
def test_sums_and_projections_have_the_references_bits(rank, count, run):
    rng = np.random.default_rng(0)
    c, x = coefficients(rng, count), rng.normal(size=run[1] - run[0]).astype(np.float32)
    parts = [Part(spec(rank), 7, c)]
    check_summed(CPU, parts, *run, SIZE)
    projected = check_projected(CPU, spec(rank), 7, count, x, run[0], SIZE)
    v = np.stack([plain(rank, 7 + i)[run[0] : run[1]] for i in range(count)])
    np.testing.assert_allclose(projected, v @ x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        CPU.combine(CPU.prepare(parts, SIZE), *run), c @ v, rtol=1e-4, atol=1e-4
    )


@tiered({"dtype": DTYPES, "count": [1, 50], "run": RUNS[:3]}, together=2)
def test_moved_weights_have_the_references_bits(dtype, count, run):
    rng = np.random.default_rng(1)
    parts = [Part(spec(2), 0, coefficients(rng, count)), Part(spec(1, 77), 5, coefficients(rng, 3))]
    source = stored(rng.normal(size=run[1] - run[0]).astype(np.float32), dtype)
    moved = check_moved(CPU, parts, dtype, source, run[0], SIZE, scale=0.37)
    once_more = check_moved(CPU, parts[1:], dtype, moved, run[0], SIZE, scale=-1.0)
    steps = source.copy()
    CPU.move(
        steps,
        steps,
        dtype,
        CPU.prepare_steps([(parts, 0.37), (parts[1:], -1.0)], SIZE),
        1.0,
        run[0],
    )
    same_bits(steps, once_more)
    check_moved(CPU, [Part(spec(1), 3, [-0.7])], dtype, source, run[0], SIZE, scale=0.37)


@pytest.mark.parametrize(
    "shape", [(300, 100), (2100, 50), pytest.param((40, 3000), marks=pytest.mark.slow)]
)
def test_large_matrices_by_tables_and_waves(shape, monkeypatch):
    """Above the sizes from which on tables and waves are used (and threads: `test_product`)."""
    monkeypatch.setattr(lowrank_cpu, "_WAVE", 1 << 12)
    monkeypatch.setattr(structured, "PIECE", 1 << 14)
    rng = np.random.default_rng(3)
    matrices = Matrices([(11,), shape, (3,)])
    of = spec(1, 5, matrices)
    c, x = coefficients(rng, 100), rng.normal(size=matrices.size).astype(np.float32)
    check_summed(CPU, [Part(of, 0, c)], 5, matrices.size - 1, matrices.size)
    check_projected(CPU, of, 0, 100, x[5:-1], 5, matrices.size)
    prepared = CPU.prepare([Part(of, 0, c)], matrices.size)
    for dtype in ("float32", "bfloat16"):
        source = stored(x, dtype)
        moved, sums = np.empty_like(source), np.empty_like(source)
        CPU.move(moved[9:], source[9:], dtype, prepared, -0.5, 9)  # by tables, in a few pieces
        CPU.add_sums(sums, source, dtype, CPU.combine(prepared, 0, matrices.size), -0.5)
        same_bits(moved[9:], sums[9:])


# -- statistics
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_moments(rank):
    """Mean 0, covariance 1, kurtosis 3 - 2/r.

    Four entries at the corners of a rectangle have product 1/r, not 0.
    """
    m, n, count = 12, 10, 2000
    basis = Basis("lowrank", 1, rank=rank)
    matrices = Matrices([(m, n)])
    v = np.stack([basis.direction(k, 0, m * n, matrices=matrices) for k in range(count)]).astype(
        np.float64
    )
    error = 5 / sqrt(count)
    assert np.abs(v.mean(axis=0)).max() < error
    assert np.abs(v.T @ v / count - np.eye(m * n)).max() < 1.5 * error  # of 7,260 numbers
    assert abs((v**4).mean() - (3 - 2 / rank)) < error
    a = v.reshape(count, m, n)
    corners = (a[:, 0, 0] * a[:, 0, 1] * a[:, 1, 0] * a[:, 1, 1]).mean()
    assert abs(corners - 1 / rank) < 3 * error


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Basis("lowrank", rank=0), "rank = 0: from 1 to 64"),
        (lambda: Basis("lowrank").direction(0, 0, 10), "lowrank needs the tensors' shapes"),
        (
            lambda: CPU.prepare(
                [Part(spec(), 0, [1.0]), Part(spec(matrices=Matrices([])), 0, [1.0])], 9
            ),
            "on the same",
        ),
        (
            lambda: Basis("lowrank").direction(0, 0, SIZE + 1, matrices=MATRICES),
            f"the tensors have {SIZE}",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
