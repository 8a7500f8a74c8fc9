"""Stochastic rounding to 16 bits."""

import numpy as np
import pytest
import torch

from fedseed.randomness import Domain, kernels
from fedseed.randomness.kernels.reference import stochastic
from fedseed.weights.moving import write


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stochastic_rounding_goes_to_a_neighbour_and_leaves_what_the_dtype_holds(dtype):
    """Against a table of all numbers of the dtype, subnormal ones included."""
    every = (
        torch.arange(1 << 16, dtype=torch.int32)
        .to(torch.int16)
        .view(getattr(torch, dtype))
        .double()
        .numpy()
    )
    table = np.unique(every[np.isfinite(every)])
    exact = table.astype(np.float32)
    for bits in (0, 1, 2**31, 2**32 - 1):
        np.testing.assert_array_equal(
            stochastic(exact, np.full(len(exact), bits, np.uint32), dtype), exact
        )
    between = np.random.default_rng(0).uniform(size=len(table) - 1)
    values = (table[:-1] + np.diff(table) * between).astype(np.float32)
    at = np.searchsorted(table, values.astype(np.float64), side="right") - 1
    inside = (at >= 0) & (at < len(table) - 1)
    values, low, high = values[inside], table[at[inside]], table[at[inside] + 1]
    part = (values.astype(np.float64) - low) / (high - low)
    for bits in (0, 2**30, 2**31, 2**32 - 1):
        expected = np.where(part + bits / 2**32 >= 1, high, low)
        np.testing.assert_array_equal(
            stochastic(values, np.full(len(values), bits, np.uint32), dtype), expected
        )


@pytest.mark.parametrize("draws", ["cpu", "reference", "triton"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_tensor_and_its_pieces_are_written_as_arrays_are_rounded(dtype, draws, monkeypatch):
    """All kinds of numbers: subnormal in float32 and in 16 bits, beyond the range, infinite, NaN,
    both zeros.

    The words belong to the elements' places in the parameter vector, whatever pieces they are
    written in."""
    monkeypatch.setenv("FEDSEED_KERNELS", draws)
    count, rng = 50_001, np.random.default_rng(2)
    values = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32).copy()
    values[8:20_000] = rng.normal(size=19_992) * 2.0 ** -rng.integers(0, 60, 19_992)
    values[:9] = (
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        65_519.0,
        1e-45,
        -1e-45,
        np.finfo(np.float32).max,
    )
    words = kernels.load("reference").element_words(5, Domain.ROUNDING, 9, 77, 77 + count)
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(stochastic(values, words, dtype)).to(getattr(torch, dtype))
    tensor, whole, pieces = (
        torch.from_numpy(values),
        torch.empty_like(expected),
        torch.empty_like(expected),
    )
    write(whole, tensor, (5, 9), 77)
    write(pieces[:333], tensor[:333], (5, 9), 77)
    write(pieces[333:], tensor[333:], (5, 9), 77 + 333)
    number = ~expected.isnan()
    for found in (whole, pieces):
        assert torch.equal(found.isnan(), ~number)
        assert torch.equal(found.view(torch.int16)[number], expected.view(torch.int16)[number])
    write(whole := torch.empty(8), tensor[8:16], (5, 9), 77)
    assert torch.equal(whole, tensor[8:16])
