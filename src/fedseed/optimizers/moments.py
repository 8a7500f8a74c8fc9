"""Momentum and Adam, once: on a parameter space's steps (torch, float32) and at a coordinator (NumPy, float64).

Own code in place of `torch.optim`, whose implementations differ between devices in the last bits: this one takes
single operations only, each rounded exactly (add, multiply, divide, square root), so that a replay gives the same bits
anywhere. It works on arrays of either library and imports torch only if it is handed tensors. The running averages are
float32, whatever the weights are; sums are taken in the gradient's precision.

torch's own square root does not belong to these: on a CPU it may come from MKL's vector library, which rounds about one
number in 150 the other way, and not the same ones on processors of different makers.
"""

from typing import Any

import numpy as np

from fedseed.optimizers.rules import Rule
from fedseed.optimizers.squares import power


class Moments:
    """The running averages of a run; a function of its gradients, so replaying them restores it.

    Args:
        rule: what becomes of a gradient.
        first: the average gradient, float32, shape (d,): an array or a tensor, changed in place; for "hiso" empty.
        second: the average squared gradient, for Adam and "hiso" (ones at first); otherwise empty.
        steps: how many gradients there were.
    """

    def __init__(self, rule: Rule, first: Any, second: Any, steps: int = 0) -> None:
        self.rule = rule
        self.first = first
        self.second = second
        self.steps = steps

    def change(self, gradient: Any, start: int) -> Any:
        """The change of the weights start, start + 1, ... that this gradient makes in step `steps` (from 1).

        Args:
            gradient: 1-D; float32 or float64.
            start: index of its first element in the parameter vector.
        """
        here = slice(start, start + len(gradient))
        if self.rule.kind == "hiso":
            gradient = gradient / self.divisor(here, gradient.dtype)
            self.take(gradient, start)
            return gradient * -self.rule.rate
        self.take(gradient, start)
        if self.rule.kind == "nesterov":
            ahead = _as(self.first[here], gradient.dtype) * self.rule.beta1
            return (gradient + ahead) * -self.rule.rate
        return self.descent(here, gradient.dtype)

    def take(self, gradient: Any, start: int) -> None:
        """Let the averages take a gradient, or a part of one."""
        rule, here = self.rule, slice(start, start + len(gradient))
        gain = 1 - rule.beta1 if rule.kind == "adam" else 1.0
        if rule.kind != "hiso":
            self.first[here] = _as(self.first[here], gradient.dtype) * rule.beta1 + gradient * gain
        if rule.kind in ("adam", "hiso"):
            square = (gradient * gradient) * (1 - rule.beta2)
            self.second[here] = _as(self.second[here], gradient.dtype) * rule.beta2 + square

    def divisor(self, here: slice, dtype: Any) -> Any:
        """sqrt(h) + eps of some weights: what "hiso" divides their entries of directions by."""
        return _square_root(_as(self.second[here], dtype)) + self.rule.eps

    def descent(self, here: slice, dtype: Any) -> Any:
        """The change of some weights that the averages alone ask for; "nesterov" needs the gradient, too."""
        rule = self.rule
        m = _as(self.first[here], dtype)
        if rule.kind == "momentum":
            return m * -rule.rate
        v = _as(self.second[here], dtype)
        if rule.corrected:
            m, v = m / self._bias(rule.beta1, m), v / self._bias(rule.beta2, v)
        return (m * -rule.rate) / (_square_root(v) + rule.eps)

    def _bias(self, beta: float, like: Any) -> Any:
        """1 - beta^steps. As a tensor where tensors are divided: a GPU would multiply by a number's inverse."""
        value = 1 - power(beta, self.steps)
        return np.float32(value) if isinstance(like, np.ndarray) else like.new_tensor(value)


def _as(values: Any, dtype: Any) -> Any:
    """Averages in the precision that sums are taken in."""
    return values.astype(dtype) if isinstance(values, np.ndarray) else values.to(dtype)


def _square_root(values: Any) -> Any:
    """The square root as IEEE 754 rounds it."""
    if isinstance(values, np.ndarray):
        return np.sqrt(values)
    if values.device.type != "cpu":
        return values.sqrt()
    root = values.clone()
    np.sqrt(root.numpy(), out=root.numpy())
    return root
