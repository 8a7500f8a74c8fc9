"""Adam made anew from its last steps, and directions that steps have scaled: against plain
copies.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedseed import Basis, ParameterSpace
from fedseed.optimizers.rules import Rule
from fedseed.weights import moving
from fedseed.weights.change import Optimize, Term
from fedseed.weights.perturbed_rows import RowsError
from weights.test_space import flat

BASES = [Basis("normal", 5), Basis("lowrank", 5, rank=2), Basis("hadamard", 5, size=8)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HISO = Rule("hiso", 0.05, beta2=0.6, eps=1e-6)
ADAM = Rule("adam", 0.02, 0.8, 0.9, 1e-6)


class Net(torch.nn.Module):
    """A tied embedding, a layer norm, a convolution, a matrix that is not contiguous."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(40, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.conv = torch.nn.Conv1d(8, 8, 3, padding=1)
        self.turned = torch.nn.Parameter(torch.randn(8, 8).t())

    def forward(self, ids):
        x = self.norm(self.embedding(ids)) @ self.turned
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        return functional.linear(x, self.embedding.weight)


def space_of(dtype=torch.float32, blocks="one"):
    return ParameterSpace(Net().to(dtype), blocks)


def steps_of(basis, count):
    """The terms of steps: two directions of one term, and one of another."""
    rng = np.random.default_rng(0)
    return [
        [
            Term(basis, rng.normal(size=2).astype(np.float32), 3 * i),
            Term(basis, [float(rng.normal())], 1000 + i),
        ]
        for i in range(count)
    ]


@pytest.mark.parametrize("basis", BASES, ids=lambda b: b.name)
def test_rebuilt_averages_are_those_that_were_kept(basis, monkeypatch):
    """Adam with 8 bytes for each weight, and Adam of the last h sums: the same bits for h steps.

    After them: those of an Adam that began h steps ago, at the weights that the rebuilt one has
    reached."""
    horizon, rounding, blocks = 4, (9, 2), 3
    steps = steps_of(basis, 6)
    kept, rebuilt = space_of(torch.bfloat16, blocks), space_of(torch.bfloat16, blocks)
    monkeypatch.setattr(moving, "PIECE", 100)  # pieces do not matter
    for number, terms in enumerate(steps, 1):
        before = flat(rebuilt)
        past = steps[max(0, number - horizon) : number - 1]
        rebuilt.apply(Optimize(terms, ADAM, rounding, past))
        assert not torch.equal(before, flat(rebuilt))
        if number <= horizon:
            kept.apply(Optimize(terms, ADAM, rounding))
            assert torch.equal(flat(kept), flat(rebuilt))
        else:
            late = space_of(torch.bfloat16, blocks)
            for one in past:
                late.apply(Optimize(one, ADAM, rounding))
            torch.nn.utils.vector_to_parameters(before, late.parameters)
            late.apply(Optimize(terms, ADAM, rounding))
            assert torch.equal(flat(late), flat(rebuilt))
    assert rebuilt._moments is None


class Plain:
    """HiSo with whole vectors, in single precision."""

    def __init__(self, space):
        self.space, self.h = space, torch.ones(space.size)

    def scaled(self, basis, k):
        z = torch.from_numpy(
            basis.direction(k, 0, self.space.size, matrices=self.space.layout.matrices)
        )
        return z / (self.h.sqrt() + 1e-6)

    def step(self, terms):
        g = sum(
            float(c) * self.scaled(t.basis, t.first + j)
            for t in terms
            for j, c in enumerate(t.coefficients)
        )
        self.h = 0.6 * self.h + 0.4 * g * g
        return -0.05 * g


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("basis", BASES, ids=lambda b: b.name)
def test_steps_and_losses_are_along_scaled_directions(basis, dtype, monkeypatch):
    monkeypatch.setattr(moving, "PIECE", 100)
    space, ids = (
        space_of(dtype),
        torch.randint(40, (5, 7), generator=torch.Generator().manual_seed(1)),
    )
    plain = Plain(space)
    tolerance = (
        {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 4e-2, "atol": 4e-2}
    )
    for number, terms in enumerate(steps_of(basis, 3)):
        before = flat(space).float()
        space.apply(Optimize(terms, HISO))
        expected = (before + plain.step(terms)).to(dtype)
        torch.testing.assert_close(flat(space), expected, **tolerance)
        digest = space.digest()
        moved = Net().to(dtype)
        where = flat(space).float() + 0.1 * plain.scaled(basis, 50 + number)
        torch.nn.utils.vector_to_parameters(where.to(dtype), moved.parameters())
        with torch.no_grad(), space.perturbed(basis, 50 + number, 0.1):
            seen = space.model(ids)
        torch.testing.assert_close(seen, moved(ids), **tolerance)
        assert space.digest() == digest
    assert plain.h.max() > 1.2 and plain.h.min() < 0.8


TRITON = pytest.param(torch.bfloat16, "triton", marks=pytest.mark.slow)


@pytest.mark.parametrize(("dtype", "other"), [*((dtype, "reference") for dtype in DTYPES), TRITON])
def test_every_kernel_gives_the_same_bits(dtype, other, monkeypatch):
    if other == "triton":
        pytest.importorskip("triton", reason="no triton for this platform")
    found = []
    for kernels in ("cpu", other):
        monkeypatch.setenv("FEDSEED_KERNELS", kernels)
        spaces = [space_of(dtype, 2), space_of(dtype, 2)]
        for basis in BASES:
            steps = steps_of(basis, 2)
            spaces[0].apply(Optimize(steps[1], ADAM, (9, 2), steps[:1]))
            for terms in steps:
                spaces[1].apply(Optimize(terms, HISO, (9, 3)))
            with spaces[1].perturbed(basis, 77, 0.1):
                found += [torch.cat([(p * 1).reshape(-1) for p in spaces[1].parameters])]
        found += [flat(space) for space in spaces]
    half = len(found) // 2
    assert all(torch.equal(a, b) for a, b in zip(found[:half], found[half:], strict=True))


def test_rows_of_scaled_directions_go_one_after_the_other():
    basis, space = Basis("lowrank", 5), space_of()
    for terms in steps_of(basis, 3):
        space.apply(Optimize(terms, HISO))
    assert space.rows.problem(basis)
    with pytest.raises(RowsError, match="hiso"), space.perturbed_rows(basis, [4, 7, 4], 0.1):
        pass
