"""Turn gradients into steps. A `Rule` is data; `Moments` applies it to NumPy's arrays or torch's
tensors.

It replaces `torch.optim`, whose implementations differ between devices in the last bits: this
module uses single operations only, each rounded exactly (add, multiply, divide, square root), so
that a replay gives the same bits anywhere. Torch is not imported here. The running averages are
float32, whatever the weights are; sums are taken in the gradient's precision.

torch's own square root is not one of these: on a CPU it may come from MKL's vector library, which
rounds about one number in 150 the other way, and not the same ones on processors of different
makers.

`Squares` holds averages of a few squares, in place of one for every parameter. Their sums are exact
before they are rounded (`math.fsum`), and single operations follow, so that no machine's BLAS makes
a difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def power(base: float, exponent: int) -> float:
    """Return base^exponent by squaring.

    Products are rounded alike everywhere; the C library's powers are not.
    """
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def total(values: Floats) -> float:
    """Return the sum of single-precision numbers, rounded once."""
    return fsum(values.tolist())


def square(values: Floats) -> float:
    """Return |values|^2 of single-precision numbers, rounded once.

    Their squares are exact in double precision.
    """
    return fsum(value * value for value in values.tolist())


def deviation(values: Floats) -> float:
    """Return a sample's standard deviation, the root of sum (x - mean)^2 / (N - 1).

    0 for fewer than two values.
    """
    if len(values) < 2:
        return 0.0
    mean = total(values) / len(values)
    return sqrt(
        fsum((value - mean) * (value - mean) for value in values.tolist()) / (len(values) - 1)
    )


@dataclass(frozen=True)
class Squares:
    """Holds sums or averages of squares after a number of steps.

    sum        v <- v + x                            Adagrad's
    average    v <- beta v + (1 - beta) x            RMSProp's and Adam's; over 1 - beta^t when it
    is used

    Args:
        values: v of each; none before the first step.
        steps: t, how many steps there were.
    """

    values: tuple[float, ...] = ()
    steps: int = 0

    def take(self, squares: Sequence[float], beta: float | None) -> "Squares":
        """Return the sums or averages with the squares of one more step.

        Args:
            squares: x of each.
            beta: how much of an average stays; None: these are sums.
        """
        values = self.values or (0.0,) * len(squares)
        share, gain = (1.0, 1.0) if beta is None else (beta, 1.0 - beta)
        return Squares(
            tuple(share * v + gain * x for v, x in zip(values, squares, strict=True)),
            self.steps + 1,
        )

    def roots(self, beta: float | None) -> tuple[float, ...]:
        """Return sqrt(v) of each; averages are corrected for their start from zero.

        `beta` is as in `take`.
        """
        bias = 1.0
        if beta is not None:
            bias -= power(beta, self.steps)
        return tuple(sqrt(v / bias) for v in self.values)


@dataclass(frozen=True)
class Rule:
    """A rule that turns a gradient g into a step.

    momentum   m <- beta1 m + g;                    change = -rate m       (torch.optim.SGD's;
    FedAvgM's)
    nesterov   m <- beta1 m + g;                    change = -rate (g + beta1 m)
    (torch.optim.SGD's)
    adam       m <- beta1 m + (1 - beta1) g,
               v <- beta2 v + (1 - beta2) g^2;      change = -rate m^ / (sqrt(v^) + eps)
    rmsprop    v <- beta2 v + (1 - beta2) g^2;      change = -rate g / (sqrt(v) + eps)
    (torch.optim.RMSprop's; its alpha is beta2)
    hiso       g <- g / (sqrt(h) + eps);            change = -rate g
               h <- beta2 h + (1 - beta2) g^2,      from h = 1 on

    m^ = m / (1 - beta1^t) and v^ = v / (1 - beta2^t) if `corrected` (torch.optim.Adam), else m and
    v themselves (FedAdam: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2).

    "hiso" is HiSo's diagonal, learnt from the steps alone (Li et al., arXiv 2506.02370; its nu is 1
    - beta2): g is a sum over directions z, and losses are taken along z / (sqrt(h) + eps), too
    (`ParameterSpace.perturbed`).

    Args:
        kind: "momentum", "nesterov", "adam", "rmsprop" or "hiso".
        rate: eta.
        beta1: decay of the average of g.
        beta2: decay of the average of g^2.
        eps: keeps denominators away from zero.
        corrected: whether Adam's averages are corrected for their zero start.
    """

    kind: Literal["momentum", "nesterov", "adam", "rmsprop", "hiso"]
    rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    corrected: bool = True

    @property
    def averages(self) -> int:
        """Return the number of float32 numbers that the rule keeps for every parameter."""
        if self.kind == "adam":
            return 2
        return 1


class Moments:
    """The running averages of a run.

    They follow from its gradients, so that a replay restores them.

    Args:
        rule: how a gradient becomes a step.
        first: the average gradient, float32, shape (d,): an array or a tensor, changed in place;
            empty for "rmsprop" and "hiso".
        second: the average squared gradient, for Adam, "rmsprop" and "hiso" (ones at first);
            otherwise empty.
        steps: how many gradients there have been.
    """

    def __init__(self, rule: Rule, first: Any, second: Any, steps: int = 0) -> None:
        self.rule = rule
        self.first = first
        self.second = second
        self.steps = steps

    def change(self, gradient: Any, start: int) -> Any:
        """Return the change of the weights start, start + 1, ... by this gradient.

        It belongs to step `steps`, counted from 1.

        Args:
            gradient: 1-D; float32 or float64.
            start: index of its first element in the parameter vector.
        """
        span = slice(start, start + len(gradient))
        if self.rule.kind == "hiso":
            gradient = gradient / self.divisor(span, gradient.dtype)
            self.take(gradient, start)
            return gradient * -self.rule.rate
        self.take(gradient, start)
        if self.rule.kind == "rmsprop":
            root = _square_root(_to_dtype(self.second[span], gradient.dtype))
            return (gradient * -self.rule.rate) / (root + self.rule.eps)
        if self.rule.kind == "nesterov":
            ahead = _to_dtype(self.first[span], gradient.dtype) * self.rule.beta1
            return (gradient + ahead) * -self.rule.rate
        return self.descent(span, gradient.dtype)

    def take(self, gradient: Any, start: int) -> None:
        """Update the averages with a gradient, or with a part of one."""
        rule, span = self.rule, slice(start, start + len(gradient))
        gain = 1.0
        if rule.kind == "adam":
            gain = 1 - rule.beta1
        if rule.kind in ("momentum", "nesterov", "adam"):
            self.first[span] = (
                _to_dtype(self.first[span], gradient.dtype) * rule.beta1 + gradient * gain
            )
        if rule.kind in ("adam", "rmsprop", "hiso"):
            square = (gradient * gradient) * (1 - rule.beta2)
            self.second[span] = _to_dtype(self.second[span], gradient.dtype) * rule.beta2 + square

    def divisor(self, span: slice, dtype: Any) -> Any:
        """Return sqrt(h) + eps for some weights; "hiso" divides directions' entries by it."""
        return _square_root(_to_dtype(self.second[span], dtype)) + self.rule.eps

    def descent(self, span: slice, dtype: Any) -> Any:
        """Return the change of some weights by the averages.

        "nesterov" and "rmsprop" need the gradient, too.
        """
        rule = self.rule
        m = _to_dtype(self.first[span], dtype)
        if rule.kind == "momentum":
            return m * -rule.rate
        v = _to_dtype(self.second[span], dtype)
        if rule.corrected:
            m, v = m / self._bias(rule.beta1, m), v / self._bias(rule.beta2, v)
        return (m * -rule.rate) / (_square_root(v) + rule.eps)

    def _bias(self, beta: float, like: Any) -> Any:
        """Return 1 - beta^steps as a tensor, to divide tensors by.

        A GPU would multiply with the inverse of a number.
        """
        value = 1 - power(beta, self.steps)
        if isinstance(like, np.ndarray):
            return np.float32(value)
        return like.new_tensor(value)


def _to_dtype(values: Any, dtype: Any) -> Any:
    """Return averages in the precision in which sums are taken."""
    if isinstance(values, np.ndarray):
        return values.astype(dtype)
    return values.to(dtype)


def _square_root(values: Any) -> Any:
    """Return the square root as IEEE 754 rounds it."""
    if isinstance(values, np.ndarray):
        return np.sqrt(values)
    if values.device.type != "cpu":
        return values.sqrt()
    root = values.clone()
    np.sqrt(root.numpy(), out=root.numpy())
    return root
