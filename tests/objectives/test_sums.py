"""Sums of each row's losses: the bits of adding one after the other, and their gradients."""

import torch

from fedseed.objectives.losses import sums_of_rows


def test_rows_are_summed_in_their_order():
    torch.manual_seed(1)
    kept = torch.rand(33, 200) < torch.rand(33, 1)
    kept[7] = False  # a row without a value
    values = torch.randn(int(kept.sum())).exp().requires_grad_()
    rows = torch.arange(33).repeat_interleave(kept.sum(1))
    expected = torch.zeros(33).index_add(0, rows, values)
    found, weights = sums_of_rows(values, kept), torch.randn(33)
    assert torch.equal(found, expected) and found[7] == 0
    (gradient,) = torch.autograd.grad((found * weights).sum(), values)
    assert torch.equal(gradient, weights[rows])
