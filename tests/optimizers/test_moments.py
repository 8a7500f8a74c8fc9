"""Momentum and Adam against torch's own."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedseed import Basis, ParameterSpace
from fedseed.optimizers.rules import Moments, Rule
from fedseed.weights.change import Optimize, Term


@pytest.mark.parametrize(
    "rule",
    [
        Rule("momentum", 0.03),
        Rule("nesterov", 0.03),
        Rule("adam", 0.01),
        Rule("adam", 0.01, 0.5, 0.9, 1e-4),
        Rule("rmsprop", 0.003, beta2=0.99, eps=1e-4),
    ],
)
def test_a_run_is_torchs_within_rounding(rule):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 2))
    space, basis = ParameterSpace(model, blocks=2), Basis("normal", 3)
    twin = torch.nn.Parameter(torch.cat([p.detach().reshape(-1) for p in space.parameters]))
    adam = torch.optim.Adam([twin], rule.rate, (rule.beta1, rule.beta2), rule.eps)
    sgd = torch.optim.SGD([twin], rule.rate, rule.beta1, nesterov=rule.kind == "nesterov")
    rmsprop = torch.optim.RMSprop([twin], rule.rate, alpha=rule.beta2, eps=rule.eps)
    optimizer = {"adam": adam, "rmsprop": rmsprop}.get(rule.kind, sgd)
    rng = np.random.default_rng(0)
    for step in range(50):
        c = rng.normal(size=3).astype(np.float32)
        rule = replace(rule, rate=rule.rate * 0.99)  # a schedule's, which leaves the averages
        optimizer.param_groups[0]["lr"] = rule.rate
        space.apply(Optimize([Term(basis, c, 3 * step)], rule))
        twin.grad = torch.from_numpy(
            sum(x * basis.direction(3 * step + j, 0, space.size) for j, x in enumerate(c)).astype(
                np.float32
            )
        )
        optimizer.step()
    now = torch.cat([p.detach().reshape(-1) for p in space.parameters])
    torch.testing.assert_close(now, twin.detach(), rtol=0, atol=2e-5)


def test_every_operation_is_rounded_as_ieee_754_says():
    """The same bits as NumPy's single operations.

    Torch's square root on a CPU need not give them.
    """
    rule, size, f = Rule("adam", 0.01), 100_000, np.float32
    moments = Moments(rule, torch.zeros(size), torch.zeros(size))
    first, second = np.zeros(size, dtype=f), np.zeros(size, dtype=f)
    for step in range(1, 6):
        g = torch.randn(size, generator=torch.Generator().manual_seed(step))
        moments.steps += 1
        change, g = moments.change(g, 0).numpy(), g.numpy()
        first = first * f(0.9) + g * f(1 - 0.9)
        second = second * f(0.999) + g * g * f(1 - 0.999)
        bias = [f(float(1 - Fraction(beta) ** step)) for beta in (0.9, 0.999)]
        expected = first / bias[0] * f(-0.01) / (np.sqrt(second / bias[1]) + f(1e-8))
        np.testing.assert_array_equal(change, expected)


@pytest.mark.parametrize("kind", ["momentum", "nesterov", "adam", "rmsprop"])
@pytest.mark.parametrize("corrected", [True, False])
def test_torch_and_numpy_agree_bit_for_bit(kind, corrected):
    rule, size = Rule(kind, 0.01, 0.9, 0.99, 1e-6, corrected), 10_000
    tensors = Moments(rule, torch.zeros(size), torch.zeros(size))
    arrays = Moments(rule, np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.float32))
    generator = torch.Generator().manual_seed(0)
    for _ in range(7):
        gradient = torch.randn(size, generator=generator) * 1e-3
        tensors.steps += 1
        arrays.steps += 1
        a, b = tensors.change(gradient, 0), arrays.change(gradient.numpy(), 0)
        assert b.dtype == np.float32 and a.numpy().tobytes() == b.tobytes()
    assert tensors.first.numpy().tobytes() == arrays.first.tobytes()
    assert tensors.second.numpy().tobytes() == arrays.second.tobytes()


def test_hisos_diagonal_is_learnt_of_scaled_sums():
    """g <- g / (sqrt(h) + eps), w <- w - eta g, h <- (1 - nu) h + nu g^2, from h = 1: in NumPy, to
    the bit.
    """
    rule, size, f = Rule("hiso", 0.03, beta2=0.75, eps=1e-3), 1000, np.float32
    tensors = Moments(rule, torch.zeros(0), torch.ones(size))
    arrays = Moments(rule, np.zeros(0, dtype=f), np.ones(size, dtype=f))
    h = np.ones(size, dtype=f)
    for step in range(1, 6):
        total = np.random.default_rng(step).normal(size=size, scale=2.0).astype(f)
        g = total / (np.sqrt(h) + f(1e-3))
        h = h * f(0.75) + g * g * f(0.25)
        tensors.steps = arrays.steps = step
        halves = [
            tensors.change(torch.from_numpy(total[part]), part.start)
            for part in (slice(0, 300), slice(300, size))
        ]
        np.testing.assert_array_equal(torch.cat(halves).numpy(), g * f(-0.03))
        np.testing.assert_array_equal(arrays.change(total, 0), g * f(-0.03))
    np.testing.assert_array_equal(tensors.second.numpy(), h)
    assert h.max() > 1.5 > 0.5 > h.min() > 0
