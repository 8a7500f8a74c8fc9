"""Momentum and Adam on a parameter space, for methods whose steps are scalars on directions.

Own code in place of `torch.optim`, whose implementations differ between devices in the last bits: this one takes
single operations only, each rounded exactly (add, multiply, divide, square root), so that a replay gives the same bits
anywhere. The running averages are float32, whatever the weights are.
"""

from dataclasses import dataclass
from typing import Literal

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
        root = (v / (1 - rule.beta2**self.steps)).sqrt_().add_(rule.eps)
        return (m / (1 - rule.beta1**self.steps)).mul_(-rule.rate).div_(root)
