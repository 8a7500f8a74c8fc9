"""Changes in random subspaces: the bits of a plain computation, on every kind of kernels."""

import importlib

import numpy as np
import pytest
import torch

from fedseed import ParameterSpace
from fedseed.orbit.replay import Pending
from fedseed.randomness.kernels import load
from fedseed.randomness.kernels.factors_reference import FactorJob, outer_sums
from fedseed.randomness.kernels.reference import from_float, to_float
from fedseed.randomness.stream import Domain, words
from fedseed.weights.change import AddFactors
from fedseed.weights.subspace import RandomSubspace, matrices_of

SHAPES = {
    "wide": (24, 70),
    "tall": (70, 24),
    "vector": (5,),
    "experts": (3, 20, 80),
    "filters": (8, 4, 3, 3),
    "small": (3, 2),
}


class Tensors(torch.nn.Module):
    """Tensors of all kinds of shapes."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for name, shape in SHAPES.items():
            values = torch.randn(shape, generator=generator) * 0.05
            self.register_parameter(name, torch.nn.Parameter(values.to(dtype)))


def random_factors(space, subspace, seed=1):
    draw = np.random.default_rng(seed)
    return [
        (draw.standard_normal(subspace.factor_shape(tensor.shape)) * 1e-2).astype(np.float32)
        for tensor in space.layout.tensors
    ]


def sign_bits(seed, row, start, count):
    """Signs of one row of P from the words of the stream: a set bit is -1."""
    blocks = words(seed, Domain.SUBSPACE, row, start // 128, -(-(start + count) // 128))
    first = start - start // 128 * 128
    bits = np.unpackbits(blocks.reshape(-1).astype("<u4").view(np.uint8), bitorder="little")
    return 1 - 2 * bits[first : first + count].astype(np.float32)


def plainly_moved(space, change):
    """What the change means, element by element, in NumPy."""
    moved, start = [], 0
    subspace = change.subspace
    scale = np.float32(change.scale)
    for tensor, parameter, factor in zip(
        space.layout.tensors, space.parameters, change.factors, strict=True
    ):
        stored = parameter.detach()
        weights = stored.float().numpy()
        total = np.zeros(tensor.shape, dtype=np.float32)
        if subspace.is_whole(tensor.shape):
            total += factor
        else:
            matrices = matrices_of(tensor.shape)
            seen = total.reshape(matrices.stack, matrices.rows, matrices.columns)
            scaled = factor * np.float32(1 / np.sqrt(subspace.rank))
            for number in range(matrices.stack):
                at = start + number * matrices.rows * matrices.columns
                for row in range(subspace.width):
                    signs = sign_bits(subspace.seed, row, at, matrices.longer)
                    column = scaled[number][:, row]
                    if matrices.rows > matrices.columns:
                        seen[number] += signs[:, None] * column[None, :]
                    else:
                        seen[number] += column[:, None] * signs[None, :]
        moved.append((torch.from_numpy(weights + (total * scale + 0))).to(stored.dtype))
        start += tensor.size
    return moved


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["cpu", "reference", "triton"])
def test_a_change_has_the_bits_of_a_plain_computation(kind, count, dtype, monkeypatch):
    monkeypatch.setenv("FEDSEED_KERNELS", kind)
    space = ParameterSpace(Tensors(dtype))
    subspace = RandomSubspace(seed=2**40 + 5, rank=5, count=count)
    change = AddFactors(subspace, random_factors(space, subspace), -0.7)
    expected = plainly_moved(space, change)
    space.apply(change)
    for parameter, values in zip(space.parameters, expected, strict=True):
        assert torch.equal(parameter, values)


def test_entries_of_p_are_signs_over_the_root_of_the_rank_and_uncorrelated():
    signs = RandomSubspace(seed=9, rank=64).signs(1000, 512)
    assert signs.shape == (64, 512) and set(np.unique(signs)) == {-1.0, 1.0}
    gram = signs.T @ signs / 64
    assert np.allclose(np.diag(gram), 1)
    off_diagonal = gram[~np.eye(512, dtype=bool)]
    assert abs(off_diagonal.mean()) < 2e-3 and abs(off_diagonal.std() - 1 / 8) < 2e-3


def test_matrices_and_subspaces_share_no_signs():
    one = RandomSubspace(seed=9, rank=4).signs(0, 256)
    assert not np.array_equal(one, RandomSubspace(seed=9, rank=4).signs(256, 256))
    assert not np.array_equal(one, RandomSubspace(seed=10, rank=4).signs(0, 256))
    assert np.array_equal(one, RandomSubspace(seed=9, rank=2, count=2).signs(0, 256))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_rounds_stochastically_as_the_cpu_does_in_one_launch(dtype, monkeypatch):
    digests = set()
    for kind in ("cpu", "triton"):
        monkeypatch.setenv("FEDSEED_KERNELS", kind)
        space = ParameterSpace(Tensors(dtype))
        subspace = RandomSubspace(seed=4, rank=3)
        launches = count_launches(monkeypatch)
        space.apply(AddFactors(subspace, random_factors(space, subspace), 0.01, (7, 2)))
        assert kind == "cpu" or launches.count("_add_factors") == 1
        digests.add(space.digest())
    assert len(digests) == 1


def count_launches(monkeypatch):
    """Names of the kernels launched from now on."""
    module = pytest.importorskip("triton") and importlib.import_module(
        "fedseed.randomness.kernels.factors_triton"
    )
    launch, names = module.launch, []

    def noted(kernel, *args, **constants):
        names.append(getattr(kernel, "__name__", None) or kernel.fn.__name__)
        launch(kernel, *args, **constants)

    monkeypatch.setattr(module, "launch", noted)
    return names


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_steps_in_one_pass_have_the_bits_of_one_after_the_other(dtype):
    one, other = ParameterSpace(Tensors(dtype)), ParameterSpace(Tensors(dtype))
    pending = Pending(other)
    for seed in range(7):
        subspace = RandomSubspace(seed, rank=3)
        rounding = (seed, 4) if seed % 2 else None
        change = AddFactors(subspace, random_factors(one, subspace, seed), 0.5, rounding)
        one.apply(change)
        pending.add(change)
    assert other.digest() != one.digest()
    pending.flush()
    assert other.digest() == one.digest()


def test_small_steps_of_16_bit_weights_are_kept_on_average():
    space, plain = ParameterSpace(Tensors(torch.bfloat16)), ParameterSpace(Tensors(torch.bfloat16))
    subspace = RandomSubspace(1, rank=4)
    factors = [
        np.full(subspace.factor_shape(t.shape), 1e-6, np.float32) for t in space.layout.tensors
    ]
    before = space.snapshot()
    for step in range(20):
        space.apply(AddFactors(subspace, factors, 1.0, rounding=(1, step)))
        plain.apply(AddFactors(subspace, factors, 1.0))
    moved = [int((p != s).sum()) for p, s in zip(space.parameters, before, strict=True)]
    assert sum(moved) > 0
    still = [int((p != s).sum()) for p, s in zip(plain.parameters, before, strict=True)]
    assert sum(still) < sum(moved)


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (np.full((1, 24, 5), np.nan, np.float32), r"the factor of wide has a value that is NaN"),
        (np.zeros((1, 24, 4), np.float32), r"wide has shape \(1, 24, 4\), \(1, 24, 5\) is needed"),
    ],
)
def test_factors_that_do_not_fit_change_nothing(factor, message):
    space = ParameterSpace(Tensors())
    subspace = RandomSubspace(1, rank=5)
    factors = [factor, *random_factors(space, subspace)[1:]]
    before = space.digest()
    with pytest.raises(ValueError, match=message):
        space.apply(AddFactors(subspace, factors))
    assert space.digest() == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("rows", "width", "columns"), [(1, 1, 1), (33, 7, 65), (70, 16, 5000)])
def test_compiled_products_have_the_references_bits(rows, width, columns, dtype):
    draw = np.random.default_rng(rows)
    left = draw.standard_normal((rows, width)).astype(np.float32)
    right = draw.choice(np.array([-1, 1], np.float32), (width, columns))
    weights = from_float(draw.standard_normal(rows * columns).astype(np.float32), dtype)
    expected = from_float(
        to_float(weights, dtype) + (outer_sums(left, right).reshape(-1) * np.float32(0.3) + 0),
        dtype,
    )
    load("cpu").add_factors([FactorJob(weights, weights, dtype, left, right, 0)], 0.3)
    assert np.array_equal(weights, expected)
