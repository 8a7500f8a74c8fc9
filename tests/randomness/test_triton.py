"""Triton's kernels give the reference's bits: in Triton's interpreter (see tests/conftest.py), or
on a GPU if any.

The interpreter takes some milliseconds for a tile and a direction, so runs are short here.
`test_large_runs_on_a_gpu` repeats the comparisons on millions of elements."""

import importlib

import numpy as np
import pytest
import torch

from fedseed import Basis
from fedseed.randomness.kernels import load
from fedseed.randomness.kernels.reference import Part
from fedseed.randomness.matrices import Matrices
from support import bits
from support.bits import (
    DTYPES,
    REFERENCE,
    check_moved,
    check_projected,
    check_summed,
    coefficients,
    same_bits,
    stored,
)
from support.tiers import mark, tiered

FLAT_TRITON = pytest.importorskip("triton") and importlib.import_module(
    "fedseed.randomness.kernels.triton"
)

CPU, TRITON = load("cpu"), load("triton")
GPU = torch.cuda.is_available() and not TRITON._interpreted()
DEVICE = "cuda" if GPU else "cpu"
# (first element, elements): across tiles, chunks, a span and 32 bits; multiples of nothing
RUNS = [(0, 1), (3, 17), (2**20 - 77, 1203), (2**33 + 5, 513)]
LONG = (4093, 10_007)  # for the bases of signs, which are quicker


@pytest.fixture(scope="module", autouse=True)
def quicker():
    """A kernel has patched Triton's language already.

    Its helpers would do so again: a third of the time.
    """
    if GPU:
        yield
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            interpreter.InterpretedFunction,
            "__call__",
            lambda self, *a, **k: self.rewrite()(*a, **k),
        )
        yield


def weights(count, dtype):
    return stored(np.random.default_rng(5).normal(size=count).astype(np.float32), dtype)


def takes_the_interpreter_long(name, run, *_):
    return not GPU and "normal" in name and run == LONG


@tiered(
    {"name": bits.FLAT, "run": [*RUNS, LONG], "directions": [1, 7], "dtype": DTYPES},
    without=takes_the_interpreter_long,
    quick=2,
    slow=lambda name, run, directions, dtype: run != (3, 17),
)
def test_moved_weights(name, run, directions, dtype):
    """`cpu` is compared with `reference` elsewhere, so that one of the two is enough here."""
    start, count = run
    rng = np.random.default_rng(directions)
    parts = [Part(Basis(name, 12345678901234567, size=64).spec, 61, coefficients(rng, directions))]
    # of several seeds, and of several numbers of a basis; one has nothing to add
    if directions > 1:
        parts.append(Part(Basis(name, 5).spec, 0, np.zeros(2, dtype=np.float32)))
        parts.append(Part(Basis(name, 5, size=8192).spec, 8190, coefficients(rng, 5)))
    ways = ["in place" if directions == 7 else "apart"]
    expected = check_moved(
        TRITON, parts, dtype, weights(count, dtype), start, max(count, 5000), ways=ways
    )
    assert count == 1 or (expected != weights(count, dtype)).any()


WIDTHS = [
    *((run, 7, 3) for run in RUNS),
    (LONG, 150, 61),
    ((3, 17), 150, 61),
    ((4000, 101), 4099, 1),
]


@tiered(
    {"name": bits.FLAT, "run, directions, first": WIDTHS},
    quick=1,
    without=lambda name, run, directions, _: (
        takes_the_interpreter_long(name, run)
        or (not GPU and "normal" in name and directions == 4099)
    ),
    slow=lambda name, run, directions, _: run != (3, 17) or directions != 7,
)
def test_projections(name, run, directions, first):
    start, count = run
    x = np.random.default_rng(2).normal(size=count).astype(np.float32)
    spec = Basis(name, 2**64 - 3, size=64 if directions < 4096 else 4096).spec
    check_projected(TRITON, spec, first, directions, x, start, max(count, 5000))


@pytest.mark.parametrize("name", mark(["rademacher", "hadamard"], lambda name: name == "hadamard"))
def test_projections_over_several_launches(name, monkeypatch):
    """Runs are taken in waves, and products added up by chunks or by spans.

    Neither changes a bit.
    """
    monkeypatch.setattr(FLAT_TRITON, "SCRATCH", 1)
    x = np.random.default_rng(2).normal(size=1500).astype(np.float32)
    check_projected(TRITON, Basis(name, 1, size=8).spec, 5, 7, x, 2**21 - 700, 1500)


@pytest.mark.parametrize("name", mark(bits.FLAT, lambda name: name != "rademacher"))
def test_single_directions_and_sums(name):
    spec = Basis(name, 8, size=100).spec
    for k, start, count in ((0, 0, 5), (130, 1021, 300), (2**32 - 1, 2**33 - 2, 9)):
        ends = (start, start + count, 5000)
        same_bits(TRITON.direction(spec, k, *ends), REFERENCE.direction(spec, k, *ends))
        check_summed(TRITON, [Part(spec, k, np.full(1, -0.7, dtype=np.float32))], *ends)
    assert TRITON.combine(TRITON.prepare([], 5), 0, 5).device.type == DEVICE
    assert len(TRITON.direction(spec, 0, 7, 7, 5000)) == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("change", mark([0.0, 1e-8, 3e-5, -0.7, 1e4, 3e38], lambda by: by != -0.7))
def test_every_16_bit_number_is_read_and_rounded_as_the_reference_does(dtype, change):
    every = np.arange(1 << 16, dtype=np.uint16)
    finite = torch.isfinite(
        torch.from_numpy(every.view(np.int16)).view(getattr(torch, dtype)).float()
    ).numpy()
    every = every[finite]
    part = [Part(Basis("rademacher", 5).spec, 0, np.ones(1, dtype=np.float32))]
    check_moved(TRITON, part, dtype, every, 0, len(every), scale=change, ways=["in place"])


@pytest.mark.parametrize("scale", [0.0, -0.0, 1.0, 1e-42, -3e38])
def test_scales_that_compilers_treat_specially(scale):
    """1e-42 has no normal float32; the change itself is denormal too."""
    part = [Part(Basis("hadamard", 5, size=4).spec, 0, np.array([0.5, 0.25], dtype=np.float32))]
    w = np.array([0.0, -0.0, 1e-44, -1e-39, 1.0], dtype=np.float32)
    check_moved(TRITON, part, "float32", w, 1, 5, scale=scale, ways=["in place"])


def test_gaps_in_memory_are_refused():
    part = TRITON.prepare([], 8)
    with pytest.raises(ValueError, match="contiguous"):
        TRITON.move(
            torch.zeros(8, device=DEVICE)[::2],
            torch.zeros(4, device=DEVICE),
            "float32",
            part,
            1.0,
            0,
        )


@pytest.mark.skipif(not GPU, reason="needs a GPU: the interpreter would take hours")
@pytest.mark.parametrize("name", bits.FLAT)
def test_large_runs_on_a_gpu(name):
    """Against the CPU's kernels: every dtype, thousands of directions, several spans, indices
    beyond 32 bits.
    """
    rng = np.random.default_rng(9)
    for dtype in DTYPES:
        for start, count, directions in (
            (0, 2**22, 64),
            (2**20 - 77, 3_000_017, 7),
            (2**33 + 5, 70_001, 4096),
        ):
            c = coefficients(rng, directions)
            part = [Part(Basis(name, 17, size=4096).spec, 3, c)]
            check_moved(TRITON, part, dtype, weights(count, dtype), start, count, other=CPU)
    for start, count, directions in (
        (2**20 - 77, 3_000_017, 50),
        (2**33 + 5, 70_001, 5000),
        (0, 2**22, 128),
    ):
        x = rng.normal(size=count).astype(np.float32)
        check_projected(
            TRITON, Basis(name, 17, size=4096).spec, 3, directions, x, start, count, other=CPU
        )


@pytest.mark.long
@tiered(
    {"rank": [1, 2], "directions": [1, 9], "run": [(0, 2515), (17, 900), (310, 316)]},
    slow=lambda rank, directions, run: (rank, run) != (2, (310, 316)),
)
def test_sums_of_outer_products(rank, directions, run):
    """lowrank: sums, moved weights and projections, on matrices and vectors, from within a row
    on.
    """
    rng = np.random.default_rng(0)
    matrices = Matrices([(30, 33), (5,), (3, 4, 5), (1, 257), (130,), (37, 29)])
    start, stop = run
    spec = Basis("lowrank", 2**63 + 5, rank=rank).spec_on(matrices)
    parts = [Part(spec, 7, coefficients(rng, directions))]
    check_summed(TRITON, parts, start, stop, matrices.size)
    x = rng.normal(size=stop - start).astype(np.float32)
    check_projected(TRITON, spec, 7, directions, x, start, matrices.size)
    check_moved(
        TRITON,
        parts,
        "bfloat16",
        weights(stop - start, "bfloat16"),
        start,
        matrices.size,
        ways=["apart"],
    )
