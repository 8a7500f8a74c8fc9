"""How many kernels a GPU is asked for, and how often it is waited for: the same, however many
tensors there are.

benchmarks/launches.py counts, on tensors without memory; what is kept there is what the code does.
"""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import fedseed
from fedseed import Basis, ParameterSpace
from fedseed.models.loading import load_model
from fedseed.objectives.losses import CausalLM, Choices
from fedseed.randomness.basis import BASES
from fedseed.randomness.kernels import Kernels
from fedseed.tasks.data import Choice, Example
from fedseed.training.client import part_losses
from fedseed.weights import vector
from fedseed.weights.change import Add, Rebuild, Term
from fedseed.weights.digest import tensor_bytes
from fedseed.weights.perturbation import Perturbation, can_stand_in
from fedseed.weights.projection import change_norms, project_change
from support.text_bases import write
from support.tiers import mark

LAUNCHES = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "launches.py"))
OURS = str(Path(fedseed.__file__).parent)
KEPT = json.loads(LAUNCHES["TABLE"].read_text())
MOST = {"a look": 2, "a step": 6, "project": 10, "project, hadamard": 10, "apply": 10, "norms": 10}
LAYERS = {"125M": 12, "1.3B": 24, "7B": 32}


def test_launches_are_few_and_those_that_the_table_has():
    assert LAUNCHES["table"]("125M") == KEPT["125M"]
    for shape, rows in KEPT.items():
        assert all(rows[name][0] <= most for name, most in MOST.items())
        assert all(waits <= 1 for _, waits, _ in rows.values())
        # embeddings, the last norm and the output layer besides
        assert rows["a look, layers"][0] <= LAYERS[shape] + 4
        assert rows["a look, lowrank"][0] <= 3


def test_a_launch_for_each_tensor_and_a_number_waited_for_are_noticed(monkeypatch):
    copies, move_all = Perturbation.copies, Kernels.move_all
    one_by_one = lambda self, parameters: {id(p): copies(self, [p])[id(p)] for p in parameters}  # noqa: E731

    def looking(self, jobs, *rest):
        move_all(self, jobs, *rest)
        jobs[0].destination.sum().item()

    with monkeypatch.context() as patched:
        patched.setattr(Perturbation, "copies", one_by_one)
        assert LAUNCHES["table"]("125M")["a look"][0] > 100
    monkeypatch.setattr(Kernels, "move_all", looking)
    with pytest.raises(RuntimeError, match="item"):
        LAUNCHES["table"]("125M")


@pytest.mark.parametrize("free, all_at_once", [(7999, False), (8000, True)])
def test_copies_of_all_tensors_are_there_at_once_where_twice_their_memory_is_free(
    free, all_at_once, monkeypatch
):
    monkeypatch.setattr(vector, "free_on", lambda device: free)
    model = torch.nn.Linear(999, 1, device="meta")
    with torch.no_grad():
        assert can_stand_in(model, ParameterSpace(model).vector) == all_at_once
    assert not can_stand_in(model, ParameterSpace(model).vector)  # gradients would go to the copies


class Waits(TorchFunctionMode):
    """Notes where fedseed would wait for a GPU: values that come to the host, and copies that are
    not made in passing.

    Whole numbers (tokens, labels) are on the host before the model is called.
    """

    NAMES = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        mask = args[1] if name == "__getitem__" and args[0].is_floating_point() else None
        masked = isinstance(mask, torch.Tensor) and mask.dtype == torch.bool
        copied = (
            name == "to"
            and isinstance([*args, None][1], torch.device)
            and not kwargs.get("non_blocking")
        )
        made = name == "tensor" and kwargs.get("device") not in (None, "cpu")
        if (name in self.NAMES or masked or copied or made) and sys._getframe(
            1
        ).f_code.co_filename.startswith(OURS):
            self.found.append(name)
        return func(*args, **kwargs)


@pytest.mark.parametrize("kind", ["language", "choices"])
def test_a_loss_is_waited_for_once(kind, tmp_path, monkeypatch):
    """At weights that are moved and at those that are not.

    What is made of tokens is on the host before.
    """
    monkeypatch.setenv("FEDSEED_KERNELS", "triton")
    model, tokenizer = load_model(str(write(tmp_path / "llama", "llama")))
    space = ParameterSpace(model)
    if kind == "language":
        objective, examples = (
            CausalLM(tokenizer),
            [Example("the film was", " very very good"), Example("", "so bad")],
        )
    else:
        objective, examples = Choices(tokenizer), [Choice("the film was", (" good", " bad"), 1)]
    items, waits = objective.prepare(examples), Waits()
    for scale in (0.0, 1e-3):
        waits.found.clear()
        with waits:
            (losses,) = part_losses(space, objective, [items], Basis("rademacher", 3), [5], scale)
        assert np.isfinite(losses).all()
        assert waits.found == ["tolist"]


class Layered(torch.nn.Module):
    """Tensors of three dtypes, of sizes that are multiples of nothing, one with gaps in memory."""

    def __init__(self):
        super().__init__()
        draw, self.layers = torch.Generator().manual_seed(0), torch.nn.ModuleList()
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            layer = torch.nn.Module()
            layer.weight = torch.nn.Parameter(torch.randn(13, 11, generator=draw).to(dtype))
            layer.bias = torch.nn.Parameter(torch.randn(7, generator=draw).to(dtype))
            self.layers.append(layer)
        self.head = torch.nn.Parameter(torch.randn(5, 9, generator=draw).t())


def moved_in_every_way(name, kernels, monkeypatch):
    """The weights and numbers after all kinds of changes of many tensors, by some kernels."""
    monkeypatch.setenv("FEDSEED_KERNELS", kernels)
    space, basis = ParameterSpace(Layered(), blocks=3), Basis(name, 7, size=16, rank=2)
    rng = np.random.default_rng(1)
    per_block = [rng.normal(size=3).astype(np.float32) for _ in range(3)]
    term, found = Term(basis, per_block, 2), []
    space.keep_base()
    before = space.snapshot()
    for change in (
        Add([term], 0.3),
        Add([term], -0.1, rounding=(5, 6)),
        Rebuild([term, term], 0.7),
    ):
        space.apply(change)
        found.append(space.digest())
    space.apply_adds(
        [
            Add([Term(basis, per_block)], 0.1),
            Add([Term(basis, [0.0]), term], -0.2),
            Add([term], 0.3),
        ]
    )
    found.append(space.digest())
    found += [
        products.tobytes() for products in project_change(space.vector, before, basis, [3, 4, 0])
    ]
    perturbation = Perturbation(space.vector, Term(basis, np.ones(1, np.float32)), 1e-2)
    together = perturbation.copies(space.parameters)
    found += [tensor_bytes(together[id(p)]).tobytes() for p in space.parameters]
    assert all(torch.equal(perturbation.whole(p), together[id(p)]) for p in space.parameters)
    return found, change_norms(space.vector, before)


@pytest.mark.parametrize("name", mark(BASES, lambda name: name in ("normal", "truncated_normal")))
def test_many_tensors_at_once_have_the_bits_of_one_after_the_other(name, monkeypatch):
    bits, norms = moved_in_every_way(name, "cpu", monkeypatch)
    others, same_norms = moved_in_every_way(name, "triton", monkeypatch)
    assert bits == others
    np.testing.assert_allclose(norms, same_norms, rtol=1e-12)
