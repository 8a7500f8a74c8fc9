"""Kernels beside the reference: the same bits, whatever they do."""

import numpy as np
import torch

from fedseed.randomness.kernels import load
from fedseed.randomness.kernels.reference import from_float

REFERENCE = load("reference")
# bases that do not depend on tensors' shapes
FLAT = ("normal", "truncated_normal", "rademacher", "hadamard")
DTYPES = ["float32", "bfloat16", "float16"]


def same_bits(a, b):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"))


def coefficients(rng, count):
    """Random ones; a few are zero."""
    c = rng.normal(size=count).astype(np.float32)
    c[2::5] = 0
    return c


def stored(values, dtype):
    """Weights as kernels on arrays take them."""
    return values if dtype == "float32" else from_float(values, dtype)


def given(kernels, array, dtype="float32"):
    """A copy of them as these kernels take them."""
    if not kernels.TENSORS:
        return array.copy()
    numbers = torch.from_numpy(array.view({2: np.int16, 4: np.float32}[array.itemsize]).copy())
    return numbers.view(getattr(torch, dtype)).to(kernels.default_device())


def back(found):
    """What kernels have made, as an array."""
    if isinstance(found, np.ndarray):
        return found
    return (
        found.cpu().numpy()
        if found.itemsize == 4
        else found.cpu().view(torch.int16).numpy().view(np.uint16)
    )


def check_moved(
    kernels,
    parts,
    dtype,
    w,
    start,
    length,
    *,
    scale=-1.3,
    other=REFERENCE,
    ways=("apart", "in place"),
):
    expected = np.empty_like(w)
    with np.errstate(over="ignore"):
        other.move(expected, w, dtype, other.prepare(parts, length), scale, start)
    for way in ways:
        source = given(kernels, w, dtype)
        out = source if way == "in place" else given(kernels, np.zeros_like(w), dtype)
        kernels.move(out, source, dtype, kernels.prepare(parts, length), scale, start)
        same_bits(back(out), expected)
        assert way == "in place" or (back(source) == w).all()
    return expected


def check_summed(kernels, parts, start, stop, length):
    expected = REFERENCE.combine(REFERENCE.prepare(parts, length), start, stop)
    same_bits(back(kernels.combine(kernels.prepare(parts, length), start, stop)), expected)


def check_projected(kernels, spec, first, count, x, start, length, other=REFERENCE):
    expected = other.project(spec, first, count, x, start, length)
    same_bits(kernels.project(spec, first, count, given(kernels, x), start, length), expected)
    return expected
