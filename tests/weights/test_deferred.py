"""Many steps in one pass over the weights: the bits of one step at a time."""

import numpy as np
import pytest
import torch
from fedseed.weights.deferred import Deferred

from fedseed import Basis, ParameterSpace
from fedseed.optimizers.moments import Rule
from fedseed.randomness import BASES
from fedseed.weights import deferred as module
from fedseed.weights.change import Term
from support.tiers import tiered

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def net(dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(70, 90), torch.nn.Linear(90, 3)).to(dtype)
    model[1].weight = torch.nn.Parameter(model[1].weight.detach().t().contiguous().t())  # not contiguous
    return model


def steps(name, count):
    """Single directions, a zero, two terms, many directions."""
    rng = np.random.default_rng(0)
    basis = Basis(name, 5, size=16)
    made = [([Term(basis, [float(rng.normal())], t)], -1e-3) for t in range(count)]
    made[2] = ([Term(basis, [0.0], 2)], -1e-3)
    made[4] = ([Term(basis, [0.3], 1), Term(Basis("normal", 6), [0.1, 0.2], 7)], 2e-3)
    made[5] = ([Term(basis, rng.normal(size=20).astype(np.float32))], -1e-3)
    return made


KERNELS = [("cpu", 40), ("reference", 40), ("triton", 6)]  # the last through the interpreter, which takes long


@tiered(
    {"kernels, count": KERNELS, "name": BASES, "dtype": DTYPES, "blocks": ["one", 3]},
    together=2,
    without=lambda kernels, count, name, dtype, blocks: kernels == "triton" and (name, blocks) != ("rademacher", "one"),
)
def test_steps_in_one_pass_round_as_one_at_a_time(kernels, name, dtype, blocks, count, monkeypatch):
    one, many = (ParameterSpace(net(dtype), blocks) for _ in range(2))
    made = steps(name, count)
    monkeypatch.setenv("FEDSEED_KERNELS", kernels)
    for terms, scale in made:
        one.add_terms(terms, scale)
    many.add_steps(made)
    assert one.digest() == many.digest() != ParameterSpace(net(dtype), blocks).digest()


def test_a_negative_zero_and_an_empty_list():
    space = ParameterSpace(net(torch.float32))
    for p in space.parameters:
        p.data.fill_(-0.0)
    twin = ParameterSpace(net(torch.float32))
    twin.restore(space.snapshot())
    made = [([Term(Basis("rademacher", 1), [0.0], 0)], -1.0)]
    space.add_terms(*made[0])
    twin.add_steps([])
    twin.add_steps(made)
    assert space.digest() == twin.digest()


def test_a_bad_step_changes_nothing():
    space = ParameterSpace(net(torch.float32))
    before = space.digest()
    good, basis = [Term(Basis("normal"), [1.0])], Basis("normal")
    with pytest.raises(ValueError, match="NaN or infinite"):
        space.add_steps([(good, 1.0), ([Term(basis, [np.nan])], 1.0)])
    with pytest.raises(ValueError, match="scale"):
        space.add_steps([(good, 1.0), (good, float("inf"))])
    assert space.digest() == before


@pytest.mark.parametrize("most", [1 << 22, 30])
def test_every_kind_of_step_in_any_order(most, monkeypatch):
    monkeypatch.setattr(module, "MOST", most)
    direct, held = (ParameterSpace(net(torch.bfloat16)) for _ in range(2))
    later = Deferred(held)
    for space in (direct, held):
        space.keep_base()
    rule = Rule("adam", 1e-3)
    for target in (direct, later):
        for terms, scale in steps("rademacher", 12):
            target.add_terms(terms, scale)
        target.rebuild([Term(Basis("hadamard", 1), [0.5, 0.25])], -1e-2)
        target.add_terms([Term(Basis("normal", 1), [0.5])], 1e-3)
        target.add_terms([Term(Basis("normal", 1), [0.5])], 1e-3, (7, 1))
        target.descend([Term(Basis("normal", 1), [0.5])], rule)
        for terms, scale in steps("hadamard", 9):
            target.add_terms(terms, scale)
    later.flush()
    assert direct.digest() == held.digest()
