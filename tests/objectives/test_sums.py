"""Sums of each row's losses: the bits of adding one after the other, and their gradients."""

import torch
from torch.nn.functional import cross_entropy

from fedseed.objectives.losses import IGNORE, losses_of_rows


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
    gradients = [torch.autograd.grad((sums * weights).sum(), logits)[0] for sums in (found, expected)]
    assert torch.equal(*gradients) and gradients[0].any()
