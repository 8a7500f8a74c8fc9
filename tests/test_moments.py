"""Momentum and Adam against torch's own."""

import numpy as np
import pytest
import torch

from fedseed import Basis, ParameterSpace
from fedseed.moments import Moments, Rule
from fedseed.parameters import Term


def torch_optimizer(rule, parameters):
    if rule.kind == "momentum":
        return torch.optim.SGD(parameters, lr=rule.rate, momentum=rule.beta1)
    return torch.optim.Adam(parameters, lr=rule.rate, betas=(rule.beta1, rule.beta2), eps=rule.eps)


@pytest.mark.parametrize("rule", [Rule("momentum", 0.03), Rule("adam", 0.01), Rule("adam", 0.01, 0.5, 0.9, 1e-4)])
def test_a_run_is_torchs_within_rounding(rule):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 2))
    space, basis = ParameterSpace(model, blocks=2), Basis("normal", 3)
    twin = torch.nn.Parameter(torch.cat([p.detach().reshape(-1) for p in space.parameters]))
    optimizer = torch_optimizer(rule, [twin])
    rng = np.random.default_rng(0)
    for step in range(50):
        c = rng.normal(size=3).astype(np.float32)
        space.descend([Term(basis, c, 3 * step)], rule)
        twin.grad = torch.from_numpy(
            sum(x * basis.direction(3 * step + j, 0, space.size) for j, x in enumerate(c)).astype(np.float32)
        )
        optimizer.step()
    now = torch.cat([p.detach().reshape(-1) for p in space.parameters])
    torch.testing.assert_close(now, twin.detach(), rtol=0, atol=2e-5)


def test_pieces_do_not_matter():
    """The averages of a part of the vector follow from that part alone."""
    rule, g = Rule("adam", 0.1), torch.randn(100, generator=torch.Generator().manual_seed(0))
    whole, parts = Moments(rule, 100), Moments(rule, 100)
    for _ in range(3):
        whole.steps += 1
        parts.steps += 1
        a = whole.change(g, 0)
        b = torch.cat([parts.change(g[:37], 0), parts.change(g[37:], 37)])
        assert torch.equal(a, b)
