"""Pairs of tensors for any module: a loss for each pair, or none at all."""

import pytest
import torch
from torch.nn import CrossEntropyLoss

from fedseed import FedAvg, Federation, FeedSign
from fedseed.errors import RecipeError
from fedseed.objectives.losses import Supervised

DATA = [[(torch.full((4,), float(i)), torch.tensor(i % 2)) for i in range(8)] for _ in range(2)]


@pytest.mark.parametrize("method", [FedAvg(), FeedSign()])
@pytest.mark.parametrize(
    "loss", [CrossEntropyLoss(), lambda out, y: CrossEntropyLoss(reduction="none")(out, y)[:, None]]
)
def test_a_loss_that_is_not_one_for_each_pair_is_refused(method, loss):
    """A mean would be divided by the batch once more: it trained, far too slowly, and nobody was told."""
    federation = Federation(torch.nn.Linear(4, 2), DATA, method, Supervised(loss), rounds=1)
    with pytest.raises(RecipeError, match=r'not \(\d+,\): give one for each pair, such as .*reduction="none"'):
        federation.run()


@pytest.mark.parametrize("count", [1, 3])
def test_one_loss_for_each_pair(count):
    model = torch.nn.Linear(4, 2)
    losses = Supervised(CrossEntropyLoss(reduction="none")).losses(model, DATA[0][:count])
    expected = [CrossEntropyLoss()(model(x[None]), y[None]) for x, y in DATA[0][:count]]
    assert torch.allclose(losses, torch.stack(expected)) and losses.shape == (count,)
