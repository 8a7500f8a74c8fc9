"""Gradients as backward makes them: rows of embeddings as rows; losses and gradients without sums in any order."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedseed.models.loading import load_model
from fedseed.objectives.losses import CausalLM, Choices
from fedseed.objectives.masked import NextWords
from fedseed.objectives.seq2seq import Seq2SeqLM
from fedseed.tasks.data import Choice, Example, NextWord
from fedseed.training.streaming import gradients_taken
from support.text_bases import write

PADDING = 2
IDS = torch.tensor([[3, 1, 3, PADDING], [3, PADDING, 0, 1]])


class Tied(torch.nn.Module):
    """An embedding that is the output layer, too."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(7, 5, padding_idx=PADDING, dtype=dtype)

    def forward(self, ids):
        return self.embedding(ids) @ self.embedding.weight.t()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_looked_up_rows_come_as_rows(dtype):
    """With what the output layer gives they are torch's own gradient; the padding's row does not learn by them."""
    model, upstream = Tied(dtype), torch.randn(2, 4, 7).to(dtype)
    weight = model.embedding.weight
    model(IDS).backward(upstream)
    expected, weight.grad = weight.grad, None
    whole, rows = [], []
    with gradients_taken([weight], lambda *found: whole.append(found), lambda *found: rows.append(found)):
        model(IDS).backward(upstream)
    ((index, found),), ((same, numbers, gradients),) = whole, rows
    assert index == same == 0 and numbers.tolist() == [0, 1, 2, 3] and gradients.shape == (4, 5)
    assert not gradients[PADDING].any() and gradients[[0, 1, 3]].any(1).all()
    torch.testing.assert_close(found.index_add(0, numbers, gradients), expected)
    assert torch.equal(found[4:], expected[4:]) and weight.grad is None


class InAnyOrder(TorchDispatchMode):
    """Notes operations that add up by atomic operations on a GPU, in an order that differs from run to run."""

    found: set[str]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__.strip("_")
        if name in ("index_add", "scatter_add", "scatter_reduce", "bincount", "put", "embedding_bag"):
            self.found.add(name)
        return func(*args, **(kwargs or {}))


CHOICE = ("the film was", (" good", " bad"), 1)
LOSSES = {
    "language": ("llama", CausalLM, [Example("the film was", " very very good"), Example("", "so bad")]),
    "encoder-decoder": ("t5", Seq2SeqLM, [Example("the film was", "very very good"), Example("so", "bad")]),
    "choices": ("llama", Choices, [Choice(*CHOICE), Choice("so", *CHOICE[1:])]),
    "next-words": ("llama", NextWords, [NextWord(*CHOICE), NextWord("so", *CHOICE[1:])]),
}


@pytest.mark.parametrize("case", LOSSES)
def test_losses_and_gradients_are_added_up_in_order(case, tmp_path):
    kind, make, examples = LOSSES[case]
    model, tokenizer = load_model(str(write(tmp_path / kind, kind)))
    objective = make(tokenizer)
    parameters, taken = list(model.parameters()), []
    noted = InAnyOrder()
    noted.found = set()
    torch.use_deterministic_algorithms(True)
    try:
        with gradients_taken(parameters, lambda *one: taken.append(one), lambda *some: taken.append(some)), noted:
            objective.losses(model, objective.prepare(examples)).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert {len(one) for one in taken} == {2, 3}  # whole ones, and rows
    assert not noted.found
