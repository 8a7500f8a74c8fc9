"""Gradients as backward makes them: rows of embeddings as rows.

Losses and gradients without sums in any order.
"""

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_looked_up_rows_come_as_rows(dtype):
    """With what the output layer gives they are torch's own gradient.

    The padding's row does not learn by them.
    """
    torch.manual_seed(0)
    # which is the output layer, too
    embedding = torch.nn.Embedding(7, 5, padding_idx=PADDING, dtype=dtype)
    weight, upstream = embedding.weight, torch.randn(2, 4, 7).to(dtype)
    (embedding(IDS) @ weight.t()).backward(upstream)
    expected, weight.grad = weight.grad, None
    taken = []
    with gradients_taken([weight], lambda *one: taken.append(one), by_rows=True):
        (embedding(IDS) @ weight.t()).backward(upstream)
    whole = next(gradient for _, gradient, row in taken if row is None).clone()
    rows = {row: gradient for _, gradient, row in taken if row is not None}
    assert len(taken) == 1 + len(rows) and sorted(rows) == [0, 1, 3] and weight.grad is None
    assert not torch.equal(whole[[0, 1, 3]], expected[[0, 1, 3]])
    for row, gradient in rows.items():
        whole[row] += gradient
    torch.testing.assert_close(whole, expected)


class InAnyOrder(TorchDispatchMode):
    """Notes operations that add up by atomic operations on a GPU, in an order that differs from run
    to run.
    """

    found: set[str]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__.strip("_")
        if name in (
            "index_add",
            "scatter_add",
            "scatter_reduce",
            "bincount",
            "put",
            "embedding_bag",
        ):
            self.found.add(name)
        return func(*args, **(kwargs or {}))


CHOICE = ("the film was", (" good", " bad"), 1)
LOSSES = {
    "language": (
        "llama",
        CausalLM,
        [Example("the film was", " very very good"), Example("", "so bad")],
    ),
    "encoder-decoder": (
        "t5",
        Seq2SeqLM,
        [Example("the film was", "very very good"), Example("so", "bad")],
    ),
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
        with gradients_taken(parameters, lambda *one: taken.append(one), by_rows=True), noted:
            objective.losses(model, objective.prepare(examples)).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert {row is None for _, _, row in taken} == {True, False}  # whole ones, and rows
    assert not noted.found
