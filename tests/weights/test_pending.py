"""Many steps in one pass over the weights: the bits of one step at a time."""

import numpy as np
import pytest
import torch

from fedseed import Basis, ParameterSpace
from fedseed.optimizers.rules import Rule
from fedseed.orbit import replay as module
from fedseed.orbit.replay import Pending
from fedseed.randomness import BASES
from fedseed.weights.change import Add, Average, Optimize, Rebuild, Replace, Term
from support.tiers import tiered

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def net(dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(70, 90), torch.nn.Linear(90, 3)).to(dtype)
    # not contiguous
    model[1].weight = torch.nn.Parameter(model[1].weight.detach().t().contiguous().t())
    return model


def steps(name, count):
    """Single directions, a zero, two terms, many directions."""
    rng = np.random.default_rng(0)
    basis, other = Basis(name, 5, size=16), Basis(name, 6)
    made = [Add([Term(basis, [float(rng.normal())], t)], -1e-3) for t in range(count)]
    made[2] = Add([Term(basis, [0.0], 2)], -1e-3)
    made[4] = Add([Term(basis, [0.3], 1), Term(other, [0.1, 0.2], 7)], 2e-3)
    made[5] = Add([Term(basis, rng.normal(size=20).astype(np.float32))], -1e-3)
    return made


AXES = {"kernels": ["cpu", "reference"], "name": BASES, "dtype": DTYPES, "blocks": ["one", 3]}


@tiered(AXES, together=2, quick=6)
def test_steps_in_one_pass_round_as_one_at_a_time(kernels, name, dtype, blocks, monkeypatch):
    one, many = (ParameterSpace(net(dtype), blocks) for _ in range(2))
    made = steps(name, 40)
    monkeypatch.setenv("FEDSEED_KERNELS", kernels)
    for change in made:
        one.apply(change)
    many.apply_adds(made)
    assert one.digest() == many.digest() != ParameterSpace(net(dtype), blocks).digest()


def mixed(before):
    """Changes of all kinds; `before`: whole weights."""
    one = [Term(Basis("normal", 1), [0.5])]
    return [
        *steps("rademacher", 12),
        Rebuild([Term(Basis("hadamard", 1), [0.5, 0.25])], -1e-2),
        Add(one, 1e-3),
        Add(one, 1e-3, (7, 1)),
        Optimize(one, Rule("adam", 1e-3)),
        *steps("hadamard", 9),
        Average([(0.25, steps("normal", 6)), (0.75, [Add(one, 1e-3)])]),
        Add(()),
        Add(one, -1e-3),
        Rebuild([Term(Basis("hadamard", 1), [0.5, 0.125])], -1e-2),
        *steps("rademacher", 6),
        Replace(before),
        *steps("normal", 7),
    ]


@pytest.mark.parametrize("most", [1 << 22, 30])
def test_every_kind_of_step_in_any_order(most, monkeypatch):
    """At the end, and wherever one stops."""
    monkeypatch.setattr(module, "MAX_HELD_ENTRIES", most)
    direct, held = (ParameterSpace(net(torch.bfloat16)) for _ in range(2))
    changes = mixed(direct.dense())
    for space in (direct, held):
        space.keep_base()
    later = Pending(held)
    for number, change in enumerate(changes):
        direct.apply(change)
        later.add(change)
        if number % 5 == 0:
            later.flush()
            assert held.digest() == direct.digest()
    later.flush()
    assert direct.digest() == held.digest()
