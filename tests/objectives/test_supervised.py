"""Losses of single items: of pairs of tensors for any module, and the sums of a row's, to the
bit.
"""

import pytest
import torch
from torch.nn import CrossEntropyLoss
from torch.nn.functional import cross_entropy

from fedseed import FedAvg, Federation, FeedSign
from fedseed.errors import RecipeError
from fedseed.objectives.losses import Supervised, losses_of_rows
from fedseed.objectives.tokens import IGNORE

DATA = [[(torch.full((4,), float(i)), torch.tensor(i % 2)) for i in range(8)] for _ in range(2)]


@pytest.mark.parametrize("method", [FedAvg(), FeedSign()])
@pytest.mark.parametrize(
    "loss", [CrossEntropyLoss(), lambda out, y: CrossEntropyLoss(reduction="none")(out, y)[:, None]]
)
def test_a_loss_that_is_not_one_for_each_pair_is_refused(method, loss):
    """A mean would be divided by the batch once more: it trained, far too slowly, and nobody was
    told.
    """
    federation = Federation(torch.nn.Linear(4, 2), DATA, method, Supervised(loss), rounds=1)
    with pytest.raises(
        RecipeError,
        match=r'not \(\d+,\): return one loss for each pair, such as .*reduction="none"',
    ):
        federation.run()


@pytest.mark.parametrize("count", [1, 3])
def test_one_loss_for_each_pair(count):
    model = torch.nn.Linear(4, 2)
    losses = Supervised(CrossEntropyLoss(reduction="none")).losses(model, DATA[0][:count])
    expected = [CrossEntropyLoss()(model(x[None]), y[None]) for x, y in DATA[0][:count]]
    assert torch.allclose(losses, torch.stack(expected)) and losses.shape == (count,)


def test_rows_are_summed_in_their_order():
    torch.manual_seed(1)
    kept = torch.rand(33, 200) < torch.rand(33, 1)
    kept[7] = False  # a row without a label
    logits, weights = torch.randn(33, 200, 5, requires_grad=True), torch.randn(33)
    labels = torch.randint(5, (33, 200)).masked_fill(~kept, IGNORE)
    each = cross_entropy(logits[kept], labels[kept], reduction="none")
    expected = torch.zeros(33).index_add(0, torch.arange(33).repeat_interleave(kept.sum(1)), each)
    found = losses_of_rows(logits, labels)
    assert torch.equal(found, expected) and found[7] == 0
    gradients = [
        torch.autograd.grad((sums * weights).sum(), logits)[0] for sums in (found, expected)
    ]
    assert torch.equal(*gradients) and gradients[0].any()
