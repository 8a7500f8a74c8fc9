"""Many steps in one pass over the weights: the bits of one step at a time."""

import numpy as np
import pytest
import torch

from fedseed import Basis, ParameterSpace
from fedseed.optimizers.rules import Rule
from fedseed.randomness import BASES
from fedseed.weights import pending as module
from fedseed.weights.change import Add, Average, Optimize, Rebuild, Replace, Term
from fedseed.weights.pending import Pending
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
    made = [Add([Term(basis, [float(rng.normal())], t)], -1e-3) for t in range(count)]
    made[2] = Add([Term(basis, [0.0], 2)], -1e-3)
    made[4] = Add([Term(basis, [0.3], 1), Term(Basis("normal", 6), [0.1, 0.2], 7)], 2e-3)
    made[5] = Add([Term(basis, rng.normal(size=20).astype(np.float32))], -1e-3)
    return made


KERNELS = [("cpu", 40), ("reference", 40)]


@tiered({"kernels, count": KERNELS, "name": BASES, "dtype": DTYPES, "blocks": ["one", 3]}, together=2, quick=6)
def test_steps_in_one_pass_round_as_one_at_a_time(kernels, name, dtype, blocks, count, monkeypatch):
    one, many = (ParameterSpace(net(dtype), blocks) for _ in range(2))
    made = steps(name, count)
    monkeypatch.setenv("FEDSEED_KERNELS", kernels)
    for change in made:
        one.apply(change)
    many.apply_adds(made)
    assert one.digest() == many.digest() != ParameterSpace(net(dtype), blocks).digest()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.slow
def test_so_do_they_through_tritons_interpreter(dtype, monkeypatch):
    """Which takes long: fewer steps."""
    test_steps_in_one_pass_round_as_one_at_a_time("triton", "rademacher", dtype, "one", 6, monkeypatch)


def test_a_negative_zero_and_an_empty_list():
    space = ParameterSpace(net(torch.float32))
    for p in space.parameters:
        p.data.fill_(-0.0)
    twin = ParameterSpace(net(torch.float32))
    twin.restore(space.snapshot())
    made = Add([Term(Basis("rademacher", 1), [0.0], 0)], -1.0)
    space.apply(made)
    twin.apply_adds([])
    twin.apply_adds([made])
    assert space.digest() == twin.digest()


def test_a_bad_step_changes_nothing():
    space = ParameterSpace(net(torch.float32))
    before = space.digest()
    good, basis = [Term(Basis("normal"), [1.0])], Basis("normal")
    with pytest.raises(ValueError, match="NaN or infinite"):
        space.apply_adds([Add(good), Add([Term(basis, [np.nan])])])
    with pytest.raises(ValueError, match="scale"):
        space.apply_adds([Add(good), Add(good, float("inf"))])
    with pytest.raises(ValueError, match="one by one"):
        space.apply_adds([Add(good), Add(good, rounding=(7, 1))])
    assert space.digest() == before


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
    monkeypatch.setattr(module, "MOST", most)
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


@pytest.mark.parametrize("last", [Rebuild([Term(Basis("normal", 3), [0.5])], 1e-2), None])
def test_what_is_replaced_anyway_is_never_carried_out(last, monkeypatch):
    """Of all that comes before whole weights, or a sum from the base, nothing counts."""
    space = ParameterSpace(net(torch.float32))
    space.keep_base()
    last = last or Replace(space.dense())
    carried = []
    monkeypatch.setattr(space, "apply", carried.append)
    monkeypatch.setattr(space, "apply_adds", lambda adds: carried.extend(adds))
    later = Pending(space)
    after = Add([Term(Basis("normal", 1), [0.5])])
    for change in (*steps("rademacher", 9), Rebuild([Term(Basis("normal", 2), [0.5])]), after, last, after):
        later.add(change)
    assert carried == []
    later.flush()
    assert carried == [last, after]
    later.flush()
    assert carried == [last, after]
