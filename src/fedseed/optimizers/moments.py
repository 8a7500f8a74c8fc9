"""Momentum and Adam on a parameter space, for methods whose steps are scalars on directions.

Own code in place of `torch.optim`, whose implementations differ between devices in the last bits: this one takes
single operations only, each rounded exactly (add, multiply, divide, square root), so that a replay gives the same bits
anywhere. The running averages are float32, whatever the weights are.

torch's own square root does not belong to these: on a CPU it may come from MKL's vector library, which rounds about one
number in 150 the other way, and not the same ones on processors of different makers.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch


@dataclass(frozen=True)
class Rule:
    """What becomes of a gradient g.

    momentum   m <- beta1 m + g;                    change = -rate m       (torch.optim.SGD's)
    adam       m <- beta1 m + (1 - beta1) g,
               v <- beta2 v + (1 - beta2) g^2;      change = -rate m^ / (sqrt(v^) + eps), m^ and v^ bias-corrected

    Args:
        kind: "momentum" or "adam".
        rate: eta.
        beta1: decay of the average of g.
        beta2: decay of the average of g^2.
        eps: keeps Adam's denominator away from zero.
    """

    kind: Literal["momentum", "adam"]
    rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


class Moments:
    """The running averages of a run; a function of its steps, so replaying them restores it.

    Args:
        rule: what becomes of a gradient.
        size: d.
        device: where the averages are kept.
    """

    def __init__(self, rule: Rule, size: int, device: torch.device | str = "cpu") -> None:
        self.rule = rule
        self.steps = 0
        self._first = torch.zeros(size, device=device)
        self._second = torch.zeros(size if rule.kind == "adam" else 0, device=device)

    def change(self, gradient: torch.Tensor, start: int) -> torch.Tensor:
        """The change of the weights start, start + 1, ... that this gradient makes in step `steps`.

        Args:
            gradient: float32, 1-D.
            start: index of its first element in the parameter vector.
        """
        rule = self.rule
        m = self._first[start : start + len(gradient)]
        if rule.kind == "momentum":
            m.mul_(rule.beta1).add_(gradient)
            return m * -rule.rate
        v = self._second[start : start + len(gradient)]
        m.mul_(rule.beta1).add_(gradient * (1 - rule.beta1))
        v.mul_(rule.beta2).add_((gradient * gradient) * (1 - rule.beta2))
        root = _square_root(v / self._bias(rule.beta2)).add_(rule.eps)
        return (m / self._bias(rule.beta1)).mul_(-rule.rate).div_(root)

    def _bias(self, beta: float) -> torch.Tensor:
        """1 - beta^steps. A tensor, as torch multiplies by the inverse where a GPU is to divide by a number."""
        return torch.tensor(1 - _power(beta, self.steps), dtype=torch.float32, device=self._first.device)


def _power(base: float, exponent: int) -> float:
    """base^exponent by squaring: products are rounded alike everywhere, the C library's powers need not be."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _square_root(values: torch.Tensor) -> torch.Tensor:
    """The square root as IEEE 754 rounds it, in place."""
    if values.device.type != "cpu":
        return values.sqrt_()
    array = values.numpy()
    np.sqrt(array, out=array)
    return values
