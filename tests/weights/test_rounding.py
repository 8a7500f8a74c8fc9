"""Stochastic rounding to 16 bits."""

import numpy as np
import pytest
import torch


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stochastic_rounding_goes_to_a_neighbour_and_leaves_what_the_dtype_holds(dtype):
    """Against a table of all numbers of the dtype, subnormal ones included."""
    from fedseed.weights.rounding import stochastic

    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype)).double().numpy()
    table = np.unique(every[np.isfinite(every)])
    exact = table.astype(np.float32)
    for bits in (0, 1, 2**31, 2**32 - 1):
        np.testing.assert_array_equal(stochastic(exact, np.full(len(exact), bits, np.uint32), dtype), exact)
    between = np.random.default_rng(0).uniform(size=len(table) - 1)
    values = (table[:-1] + np.diff(table) * between).astype(np.float32)
    at = np.searchsorted(table, values.astype(np.float64), side="right") - 1
    inside = (at >= 0) & (at < len(table) - 1)
    values, low, high = values[inside], table[at[inside]], table[at[inside] + 1]
    part = (values.astype(np.float64) - low) / (high - low)
    for bits in (0, 2**30, 2**31, 2**32 - 1):
        expected = np.where(part + bits / 2**32 >= 1, high, low)
        np.testing.assert_array_equal(stochastic(values, np.full(len(values), bits, np.uint32), dtype), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tensors_are_rounded_to_the_bits_of_arrays(dtype):
    """All kinds of numbers: subnormal in float32 and in 16 bits, beyond the range, infinite, NaN, both zeros."""
    from fedseed.weights import stochastic
    from fedseed.weights.rounding import stochastic as of_arrays

    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**32, 300_000, dtype=np.uint32)
    words[:4] = 0, 1, 2**31, 2**32 - 1
    values = rng.integers(0, 2**32, 300_000, dtype=np.uint32).view(np.float32).copy()
    values[10:100_000] = rng.normal(size=99_990) * 0.02
    values[:8] = 0.0, -0.0, np.inf, -np.inf, np.nan, 65_519.0, 1e-45, -1e-45
    with np.errstate(all="ignore"):
        expected = of_arrays(values, words, dtype)
    found = stochastic.stochastic(
        torch.from_numpy(values), torch.from_numpy(words.view(np.int32)), getattr(torch, dtype)
    ).numpy()
    number = ~np.isnan(expected)
    assert (np.isnan(found) == ~number).all()
    assert (found.view(np.uint32) == expected.view(np.uint32))[number].all()


@pytest.mark.parametrize("names", ["cpu", "reference"])  # one that draws by itself, one for which torch does
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_piece_of_a_tensor_is_written_as_the_whole(dtype, names, monkeypatch):
    """The words belong to the elements' places in the parameter vector, whatever pieces they are written in."""
    from fedseed.randomness import Domain, kernels
    from fedseed.weights import stochastic
    from fedseed.weights.rounding import stochastic as of_arrays

    monkeypatch.setenv("FEDSEED_KERNELS", names)
    values = torch.randn(10_001, generator=torch.Generator().manual_seed(0))
    whole = torch.empty(10_001, dtype=getattr(torch, dtype))
    stochastic.write(whole, values, (5, 9), 77)
    if dtype == "float32":
        assert torch.equal(whole, values)
    else:
        words = kernels.load("reference").element_words(5, Domain.ROUNDING, 9, 77, 77 + 10_001)
        assert torch.equal(whole.float(), torch.from_numpy(of_arrays(values.numpy(), words, dtype)))
    monkeypatch.setattr(stochastic, "PIECE", 1000)
    pieces = torch.empty_like(whole)
    stochastic.write(pieces[:333], values[:333], (5, 9), 77)
    stochastic.write(pieces[333:], values[333:], (5, 9), 77 + 333)
    assert torch.equal(pieces, whole)


@pytest.mark.parametrize("start", [0, 4095, 77_777])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_compiled_kernel_gives_the_bits_of_arrays(dtype, start):
    """Zeros have no sign, what is beyond the range is infinite; a float16 below 2**-14 has bits to round twice."""
    from fedseed.randomness import Domain, kernels
    from fedseed.weights.rounding import stochastic as of_arrays

    count, rng = 50_001, np.random.default_rng(2)
    values = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32).copy()
    values[8:20_000] = rng.normal(size=19_992) * 2.0 ** -rng.integers(0, 60, 19_992)
    values[:8] = 0.0, -0.0, np.inf, -np.inf, np.nan, 65_519.0, 1e-45, -1e-45
    out = np.empty(count, dtype=np.uint16)
    kernels.load("cpu").draw(out, values, dtype, 5, Domain.ROUNDING, 9, start)
    words = kernels.load("reference").element_words(5, Domain.ROUNDING, 9, start, start + count)
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(of_arrays(values, words, dtype)).to(getattr(torch, dtype))
    found = torch.from_numpy(out.view(np.int16)).view(expected.dtype)
    number = ~expected.isnan()
    assert torch.equal(found.isnan(), ~number)
    assert torch.equal(found.view(torch.int16)[number], expected.view(torch.int16)[number])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_steps_on_outlines_take_memory_of_nobody(dtype):
    """`bench` follows training with tensors that hold nothing: the kernel is not for them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from fedseed.weights import stochastic

    with FakeTensorMode(allow_non_fake_inputs=True):
        stochastic.write(torch.empty(9, dtype=getattr(torch, dtype)), torch.zeros(9), (5, 9), 0)
