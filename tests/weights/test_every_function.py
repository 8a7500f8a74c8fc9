"""Every function that torch lets others override sees perturbed values, not the weights' own."""

import warnings

import numpy as np
import pytest
import torch
from torch.overrides import get_overridable_functions, resolve_name

from fedseed import Basis, ParameterSpace
from fedseed.weights import space as spaces

CASTS = {"type", "type_as", "to", "float", "half", "bfloat16", "double", "int", "long", "cpu"}


def other(dtype=torch.float64):
    return torch.tensor([[0.5, -1.5], [2.5, 1.25]], dtype=dtype)


# the ways to call a function with a weight; what a function does not take is an error, and left out
CALLS = {
    "the weight alone": lambda func, weight: func(weight),
    "and a dtype": lambda func, weight: func(weight, torch.float64),
    "and a dtype by name": lambda func, weight: func(weight, dtype=torch.float64),
    "and a type's name": lambda func, weight: func(weight, "torch.DoubleTensor"),
    "and a tensor": lambda func, weight: func(weight, other()),
    "after a tensor": lambda func, weight: func(other(torch.float32), weight),
    "and a number": lambda func, weight: func(weight, 1),
    "in a list": lambda func, weight: func([weight, weight]),
}
# what draws at random, keeps uninitialised memory, or says where a tensor lies
NOT_VALUES = (
    "rand",
    "empty",
    "drop",
    "bernoulli",
    "multinomial",
    "normal",
    "poisson",
    "storage",
    "_cdata",
    "data_ptr",
    "hash",
    "__dlpack",
    "grad",
    "_base",
    "hook",
    "resize",
    "share_memory",
    "rrelu",
    "const_data",
    "lowrank",
    "fbgemm",
    "__repr__",
    "_is_view",
    "_version",
)


def overridable():
    """Return torch's functions of a tensor by name, without those that write to their argument."""
    functions = {}
    for group in get_overridable_functions().values():
        for func in group:
            name = resolve_name(func) or getattr(func, "__name__", str(func))
            last = name.removesuffix(".__get__").rpartition(".")[2]
            writes = last.endswith("_") and not last.endswith("__")
            writes = writes or last.startswith("__i") or last in ("__setitem__", "set_", "__set__")
            if not writes and not any(word in last for word in NOT_VALUES):
                functions[name] = func
    return functions


def outcome(call, func, weight):
    """Return what a call gives as text, value by value; None if the function does not take it."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = call(func, weight)
            return described(found)
    except Exception:
        return None


def described(value):
    if isinstance(value, torch.Tensor):
        return str((value.dtype, tuple(value.shape), value.detach().tolist()))
    if isinstance(value, tuple | list):
        return str([described(part) for part in value])
    if isinstance(value, np.ndarray):
        return str(value.tolist())
    return str(value) if isinstance(value, bool | int | float | complex | str) else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_overridable_function_sees_the_perturbed_weight(dtype, monkeypatch):
    monkeypatch.setattr(spaces, "can_stand_in", lambda *_: False)
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.tensor([[0.25, -0.5], [1.5, 0.75]]).to(dtype))
    space, basis = ParameterSpace(model), Basis("rademacher", seed=3)
    with space.perturbed(basis, 0, 0.25):
        moved = (model.weight + 0.0).detach().clone()
    assert not torch.equal(moved, model.weight)

    tried, dependent, wrong = set(), set(), []
    for name, func in overridable().items():
        for way, call in CALLS.items():
            copies = moved.clone(), moved.clone()
            expected, again = (outcome(call, func, copy) for copy in copies)
            writes = any(not torch.equal(copy, moved) for copy in copies)
            if expected is None or again != expected or writes:
                continue
            tried.add(name)
            with space.perturbed(basis, 0, 0.25):
                seen = outcome(call, func, model.weight)
            if outcome(call, func, model.weight) != expected:
                dependent.add(name)
            if seen != expected:
                wrong.append(f"{name} ({way})")
    assert wrong == []
    named = {name.rpartition(".")[2] for name in dependent}
    assert named >= CASTS, CASTS - named
    # most functions of torch are tried: a list that has become empty would prove nothing
    assert len(tried) > 500 and len(dependent) > 350, (len(tried), len(dependent))


CASTING = {
    "type": lambda weight: weight.type(torch.float32),
    "type by name": lambda weight: weight.type("torch.FloatTensor"),
    "type by keyword": lambda weight: weight.type(dtype=torch.float32),
    "to": lambda weight: weight.to(torch.float32),
    "float": lambda weight: weight.float(),
    "type_as": lambda weight: weight.type_as(torch.zeros(1)),
    "_to_copy": lambda weight: torch.ops.aten._to_copy(weight, dtype=torch.float32),
    "its overload": lambda weight: torch.ops.aten._to_copy.default(weight, dtype=torch.float32),
    "convert_element_type": lambda weight: torch.ops.prims.convert_element_type(
        weight, torch.float32
    ),
}


@pytest.mark.parametrize("cast", CASTING)
def test_a_cast_weight_moves_the_output_as_far_as_a_moved_one(cast, monkeypatch):
    monkeypatch.setattr(spaces, "can_stand_in", lambda *_: False)

    class Router(torch.nn.Module):
        def __init__(self):
            super().__init__()
            drawn = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
            self.weight = torch.nn.Parameter(drawn.bfloat16())

        def forward(self, x):
            return torch.nn.functional.linear(x, CASTING[cast](self.weight))

    model, x = Router(), torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    space = ParameterSpace(model)
    with torch.no_grad():
        for number in range(4):
            basis = Basis("lowrank", seed=6)
            before = model(x)
            with space.perturbed(basis, number, 1e-2):
                seen = model(x)
            with space.perturbed_rows(basis, [number] * 4, 1e-2):
                rows = model(x)
            saved = space.snapshot()
            space.add(basis, np.ones(1, dtype=np.float32), 1e-2, first=number)
            moved = model(x)
            space.restore(saved)
            assert not torch.equal(moved, before)
            assert torch.equal(seen, moved)
            assert torch.allclose(rows, moved, atol=0.02), (rows - moved).abs().max()
            assert (rows - before).abs().max() > 0.5 * (moved - before).abs().max()
