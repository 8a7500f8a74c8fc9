import numpy as np
import pytest
import torch

from fedseed import Basis, ParameterSpace
from fedseed.randomness import BASES
from fedseed.randomness.kernels import load
from fedseed.randomness.kernels.reference import Part
from fedseed.weights import moving, projection
from fedseed.weights.change import Add, Rebuild, Term
from support.tiers import tiered

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Tied(torch.nn.Module):
    """Embedding and output share a weight; one parameter is frozen.

    One lies transposed in memory.
    """

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(37, 16, dtype=dtype)
        self.hidden = torch.nn.Linear(16, 16, dtype=dtype)
        self.hidden.weight = torch.nn.Parameter(torch.randn(16, 16).to(dtype).t())
        self.frozen = torch.nn.Parameter(torch.ones(5, dtype=dtype), requires_grad=False)
        self.output = torch.nn.Linear(16, 37, bias=False, dtype=dtype)
        self.output.weight = self.embedding.weight


def flat(space):
    return torch.cat([p.detach().reshape(-1) for p in space.parameters])


def test_tied_weights_count_once_and_frozen_ones_not_at_all():
    space = ParameterSpace(Tied())
    assert [e.name for e in space.layout.tensors] == [
        "embedding.weight",
        "hidden.weight",
        "hidden.bias",
    ]
    assert space.size == 37 * 16 + 16 * 16 + 16


@tiered(
    {
        "dtype": DTYPES,
        "name": BASES,
        "blocks": ["one", "tensor", 5],
        "kernels": ["reference", "cpu"],
    },
    together=2,
)
def test_add_is_the_reference_rounded_once(dtype, name, blocks, kernels, monkeypatch):
    monkeypatch.setenv("FEDSEED_KERNELS", kernels)
    space = ParameterSpace(Tied(dtype), blocks)
    before = flat(space)
    basis = Basis(name, 3, size=8)
    counts = [1 + b % 3 for b in range(len(space.layout.block_sizes))]
    coefficients = [np.linspace(-1, 2, c, dtype=np.float32) for c in counts]
    space.add(basis, coefficients, scale=-0.37)
    reference = load("reference")
    bounds = space.layout.boundaries
    change = np.concatenate(
        [
            reference.combine(
                reference.prepare([Part(basis.spec_on(space.layout.matrices), 0, c)], b - a), a, b
            )
            for c, a, b in zip(coefficients, bounds[:-1], bounds[1:], strict=True)
        ]
    ) * np.float32(-0.37)
    expected = (before.float() + torch.from_numpy(change)).to(dtype)
    assert torch.equal(flat(space), expected)
    assert not torch.equal(flat(space), before)


def test_terms_are_added_up_before_they_are_rounded():
    """In bfloat16, two changes that cancel leave every bit; applied apart they would not."""
    space = ParameterSpace(Tied(torch.bfloat16))
    before = space.digest()
    basis = Basis("normal", 1)
    space.apply(Add([Term(basis, [0.3]), Term(basis, [-0.3])]))
    assert space.digest() == before


def test_a_sum_is_rounded_up_or_down_by_the_words_of_its_elements():
    rounded, exact = (
        ParameterSpace(Tied(torch.bfloat16)),
        ParameterSpace(Tied(torch.bfloat16).float()),
    )
    terms, expected = (
        [Term(Basis("normal", 1), [0.3, -0.2])],
        torch.empty(rounded.size, dtype=torch.bfloat16),
    )
    exact.apply(Add(terms, 0.37))
    moving.write(expected, flat(exact), (5, 6), 0)
    rounded.apply(Add(terms, 0.37, (5, 6)))
    assert torch.equal(flat(rounded), expected) and not torch.equal(
        expected, flat(exact).bfloat16()
    )


@pytest.mark.parametrize("name", BASES)
def test_project_over_blocks(name):
    space = ParameterSpace(Tied(), 4)
    delta = torch.randn(space.size, generator=torch.Generator().manual_seed(1))
    basis = Basis(name, 3, size=16)
    parts = space.project(delta, basis, [3, 1, 16, 2])
    assert [len(p) for p in parts] == [3, 1, 16, 2]
    bounds = space.layout.boundaries
    for part, a, b in zip(parts, bounds[:-1], bounds[1:], strict=True):
        matrices = space.layout.matrices
        v = np.stack([basis.direction(k, a, b, b - a, matrices) for k in range(len(part))]).astype(
            np.float64
        )
        np.testing.assert_allclose(
            part, v @ delta[a:b].numpy().astype(np.float64), rtol=1e-4, atol=1e-5
        )
    whole = space.project(delta.numpy(), basis, 3)
    each = space.project(delta, basis, [3] * 4)
    np.testing.assert_allclose(whole, np.sum(each, axis=0), rtol=1e-5, atol=1e-6)
    assert ParameterSpace(Tied()).project(delta, basis, 3).shape == (3,)
    half = delta.bfloat16()  # in single precision, exactly
    np.testing.assert_array_equal(
        space.project(half, basis, 3), space.project(half.float().numpy(), basis, 3)
    )
    with pytest.raises(ValueError, match="shape"):
        space.project(delta[1:], basis, 3)
    with pytest.raises(ValueError, match="2 counts for 4 blocks"):
        space.project(delta, basis, [1, 2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_lengths_differences_and_gradients_are_those_of_the_elements(dtype, monkeypatch):
    """Differences are made in single precision; a tensor without a gradient has one of zeros."""
    monkeypatch.setattr(projection, "PIECE", 100)
    space = ParameterSpace(Tied(dtype))
    saved, before = space.snapshot(), flat(space).float()
    space.apply(Add([Term(Basis("normal", 1), [0.5], 3)], 1.0))
    now, digest = flat(space).float(), space.digest()
    space.restore(saved)
    space.add(Basis("normal", 1), [0.5], first=3)
    assert space.digest() == digest
    np.testing.assert_array_equal(space.difference(saved), (before - now).numpy())
    np.testing.assert_array_equal(
        space.difference(saved, [s.float() * 0 + 0.1 for s in saved]), (before - 0.1).numpy()
    )
    assert space.norm() == pytest.approx(float(now.double().norm()), rel=1e-12)
    space.parameters[1].grad = torch.full((16, 16), 2.0, dtype=dtype)
    gradient = torch.frombuffer(bytearray(space.take_gradient()), dtype=dtype)
    expected = torch.zeros(space.size, dtype=dtype)
    expected[37 * 16 : 37 * 16 + 16 * 16] = 2.0
    assert torch.equal(gradient, expected) and space.parameters[1].grad is None


def test_the_way_back_leads_to_the_base_or_what_was_rebuilt_from_it():
    space = ParameterSpace(Tied())
    assert space.way_back() is None
    space.keep_base()
    for change in (Add(()), Rebuild([Term(Basis("normal", 2), [0.5])])):
        space.restore_base() if isinstance(change, Add) else space.apply(change)
        there, back = space.digest(), space.way_back()
        space.restore([p * 2 for p in space.snapshot()])
        assert space.way_back() is None and space.digest() != there
        back()
        assert space.digest() == there
    space.release_base()
    assert space.way_back() is None


def test_a_model_that_can_not_be_tuned_is_refused():
    with pytest.raises(ValueError, match="no trainable"):
        ParameterSpace(torch.nn.ReLU())
    with pytest.raises(ValueError, match="float64"):
        ParameterSpace(torch.nn.Linear(2, 2, dtype=torch.float64))
