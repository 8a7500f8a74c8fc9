"""All implementations give the reference's bits."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from fedseed.randomness import Basis, Domain, entries, stream
from fedseed.randomness.kernels import load, reference
from fedseed.randomness.kernels.reference import Part, from_float
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
from support.forked import forked
from support.tiers import tiered

CPU = load("cpu")
# (first element, elements): across tiles, chunks, spans and 32 bits; multiples of nothing
RUNS = [(0, 1), (3, 17), (1000, 4097), (4093, 10_007), (2**20 - 77, 20_011), (2**33 + 5, 513)]


@tiered(
    {
        "name": bits.FLAT,
        "start, count": RUNS,
        "directions, first": [(1, 0), (7, 3), (150, 0), (150, 130)],
    },
    together=2,
)
def test_combine_project_and_direction(name, start, count, directions, first):
    rng = np.random.default_rng(0)
    spec = Basis(name, 12345678901234567, size=64).spec
    ends = (start, start + count, max(count, 5000))
    c, x = coefficients(rng, directions), rng.normal(size=count).astype(np.float32)
    check_summed(CPU, [Part(spec, first, c), Part(spec, 200, c[:2])], *ends)
    check_projected(CPU, spec, first, directions, x, start, ends[2])
    same_bits(REFERENCE.direction(spec, first, *ends), CPU.direction(spec, first, *ends))


def test_many_directions():
    """4,096 directions at once, on a run that begins and ends anywhere."""
    rng = np.random.default_rng(1)
    spec = Basis("hadamard", 99, size=4096).spec
    c, x = rng.normal(size=4096).astype(np.float32), rng.normal(size=301).astype(np.float32)
    check_summed(CPU, [Part(spec, 0, c)], 4000, 4301, 301)
    check_projected(CPU, spec, 0, 4096, x, 4000, 301)


@pytest.mark.long
@tiered(
    {"name": bits.FLAT, "dtype": DTYPES, "start, count": RUNS, "directions": [1, 7]}, together=2
)
def test_moved_weights(name, dtype, start, count, directions):
    """Several parts at once; into other memory, and in place."""
    rng = np.random.default_rng(4)
    c = rng.normal(size=directions).astype(np.float32)
    parts = [Part(Basis(name, 7, size=64).spec, 3, c)]
    if directions > 1:
        parts += [Part(Basis(name, 8).spec, 0, c), Part(Basis(name, 9, size=8192).spec, 8190, c)]
    w = stored(rng.normal(size=count).astype(np.float32), dtype)
    expected = check_moved(CPU, parts, dtype, w, start, max(count, 5000))
    assert count == 1 or (expected != w).any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("change", [0.0, -0.0, 2.0**-8, 3e-5, -0.7, 3e38])  # 2^-8: halfway for some
def test_every_16_bit_number_is_read_and_rounded_as_torch_does(dtype, change):
    kind = getattr(torch, dtype)
    every = np.arange(1 << 16, dtype=np.uint16)
    every = every[torch.isfinite(torch.from_numpy(every.view(np.int16)).view(kind).float()).numpy()]
    n = len(every)
    part = [Part(Basis("rademacher", 5).spec, 0, np.ones(1, dtype=np.float32))]
    signs = torch.from_numpy(CPU.direction(part[0].spec, 0, 0, n, n))
    values = torch.from_numpy(every.view(np.int16)).view(kind)
    expected = (
        (values.float() + (signs * change + 0.0)).to(kind).view(torch.int16).numpy().view(np.uint16)
    )
    for kernels in (REFERENCE, CPU):
        out = np.empty_like(every)
        with np.errstate(over="ignore"):
            kernels.move(out, every, dtype, kernels.prepare(part, n), change, 0)
        np.testing.assert_array_equal(out, expected)


def test_nothing_to_add_leaves_the_weights():
    for kernels in (REFERENCE, CPU):
        for parts in ([], [Part(Basis("hadamard", 1).spec, 0, np.zeros(3, dtype=np.float32))]):
            w = np.linspace(-1, 1, 9000, dtype=np.float32)
            before = w.copy()
            kernels.move(w, w, "float32", kernels.prepare(parts, 9000), 0.5, 0)
            same_bits(w, before)
        for name in bits.FLAT:
            assert kernels.project(Basis(name).spec, 0, 3, w[:0], 5, 9).tolist() == [0] * 3
            assert kernels.project(Basis(name).spec, 0, 0, w, 5, 9005).shape == (0,)


def test_words_of_elements_and_what_is_no_number():
    whole = stream.words(1, Domain.ROUNDING, 2, 0, 25).reshape(-1)
    for start, stop in ((0, 1), (3, 9), (5, 5), (7, 100)):
        found = reference.element_words(1, Domain.ROUNDING, 2, start, stop)
        np.testing.assert_array_equal(found, whole[start:stop])
        values = np.linspace(-1, 1, stop - start, dtype=np.float32)
        for dtype in ("bfloat16", "float16"):
            expected, drawn = np.empty((2, stop - start), dtype=np.uint16)
            REFERENCE.draw(expected, values, dtype, (1, 2), start)
            CPU.draw(drawn, values, dtype, (1, 2), start)
            np.testing.assert_array_equal(drawn, expected)
    no_number = np.array([0x7FFFFFFF], dtype=np.uint32).view(np.float32)
    assert from_float(no_number, "bfloat16").tolist() == [0x7FC0]
    assert from_float(np.float32([1e6]), "float16").tolist() == [0x7C00]


def test_the_bound_of_truncated_entries_is_the_largest_number_that_does_not_exceed_it(monkeypatch):
    for length in range(1, 50):
        bound = reference.truncated_normal_constants(length)[1]
        assert float(bound) <= entries.bound(length) < float(np.nextafter(bound, np.float32(2)))
    # the ends of what is uniform, where the polynomial goes too far
    monkeypatch.setattr(
        reference, "words", lambda *_: np.array([[1 << 31, (1 << 31) - 1, 0, 1]], dtype=np.uint32)
    )
    bound = reference.truncated_normal_constants(5)[1]
    found = REFERENCE.direction(Basis("truncated_normal").spec, 0, 0, 4, 5)
    assert found[0] == -bound and found[1] == bound


@pytest.mark.parametrize("name", bits.FLAT)
def test_operations_agree_with_single_directions(name):
    """combine and project against matrix products of the directions; relative tolerance 1e-5."""
    rng = np.random.default_rng(3)
    basis = Basis(name, 4, size=32)
    n, k, start = 9001, 40, 123
    v = np.stack([basis.direction(j, start, start + n, length=n) for j in range(k)]).astype(
        np.float64
    )
    c, x = rng.normal(size=k).astype(np.float32), rng.normal(size=n).astype(np.float32)
    scale = np.sqrt(basis.variance(n))
    combined = CPU.combine(CPU.prepare([Part(basis.spec, 0, c)], n), start, start + n)
    np.testing.assert_allclose(combined, c @ v, atol=3e-5 * scale)
    projected = CPU.project(basis.spec, 0, k, x, start, n)
    np.testing.assert_allclose(projected, v @ x, atol=1e-5 * scale * np.sqrt(n) * 10)


def test_an_unknown_implementation_is_named():
    with pytest.raises(ValueError, match="FEDSEED_KERNELS = 'abacus'"):
        load("abacus")


@pytest.mark.parametrize("size", [1, 8, 4096])
def test_the_transform_is_a_product_with_the_matrix(size):
    x = np.random.default_rng(size).standard_normal(size) * 10.0 ** np.random.default_rng(
        1
    ).integers(-9, 9, size)
    matrix = [[(-1.0) ** (k & j).bit_count() for j in range(size)] for k in range(min(size, 8))]
    found = reference.hadamard_transform(x)[:8]
    np.testing.assert_allclose(found, np.array(matrix) @ x, rtol=1e-9, atol=1e-6 * np.abs(x).max())


def not_compiled():
    """The functions for several threads that the script leaves out.

    Before it none has run in a forked process.
    """
    from fedseed.randomness.kernels import cpu, lowrank_cpu

    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "compile_kernels.py"))
    for number in range(len(script["HALVES"])):
        script["compile_half"](number)
    found = {
        f"{m.__name__}.{k}": v
        for m in (cpu, lowrank_cpu)
        for k, v in vars(m).items()
        if hasattr(v, "signatures")
    }
    return [
        name
        for name, one in found.items()
        if one.targetoptions.get("parallel") and not one.signatures
    ]


@pytest.mark.slow
def test_make_compiles_every_kernel_beforehand():
    assert forked(not_compiled) == []


@pytest.mark.parametrize("count", [70_000, 20_000])
@pytest.mark.parametrize(
    ("start", "length"),
    [(0, 1 << 17), (3 * entries.CHUNK + 17, 150_001), (entries.SPAN - 9_000, 70_003), (5, 90)],
)
def test_many_hadamard_directions_are_projected_to_the_references_bits(start, length, count):
    """Whose sums no first-level cache has room for: they are made chunk of columns by chunk."""
    x = np.random.default_rng(4).standard_normal(length).astype(np.float32)
    spec = Basis("hadamard", 3, size=65_536).spec
    cpu, first = load("cpu"), 1_000
    ours = cpu.project_sums(spec, first, count, x, start, start + length)
    wanted = reference.project_sums(spec, first, count, x, start, start + length)
    assert np.array_equal(ours, wanted)
    products = cpu.project_finish(spec, first, count, ours)
    assert np.array_equal(products, reference.project_finish(spec, first, count, wanted))


@pytest.mark.parametrize("size", [1, 2, 64, 4096, 8192, 1 << 16])
def test_the_transform_has_the_references_bits(size):
    generator = np.random.default_rng(5)
    # of many sizes, so that another order of additions would show
    values = generator.standard_normal(size) * 10.0 ** generator.integers(-8, 8, size)
    before = values.copy()
    ours = load("cpu").hadamard_transform(values)
    assert np.array_equal(ours, reference.hadamard_transform(values))
    assert np.array_equal(values, before)
