"""Changes of the weights, as data. A method makes one from each step, and `ParameterSpace.apply`
carries it out. docs/architecture.md lists which methods make which changes. It needs no torch: a
change can be made, printed and bounded without a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseed.optimizers.rules import Rule
from fedseed.randomness import Basis
from fedseed.weights.layout import Layout
from fedseed.weights.subspace import RandomSubspace

Floats = NDArray[np.float32]
Coefficients = NDArray[Any] | Sequence[float] | Sequence[NDArray[Any]]
Rounding = tuple[int, int]  # (seed, step) of the shared stream


@dataclass(frozen=True, eq=False)
class Term:
    """sum_j coefficients[j] * direction(first + j) of one basis."""

    basis: Basis  # where the directions come from
    coefficients: Coefficients  # 1-D, used on all blocks; or one 1-D array per block
    first: int = 0  # index of the first direction


@dataclass(frozen=True, eq=False)
class Add:
    """w <- round(w + scale * sum of the terms), in one pass over w; no terms: nothing happens.

    The sums are taken in single precision in the order of the directions, added up in the order of
    the terms, multiplied by `scale`, added to w in single precision and rounded once to each
    tensor's dtype.

    Args:
        terms: what to add up.
        scale: multiplies the sum.
        rounding: round stochastically to 16-bit dtypes: up or down with probabilities that make the
            mean exact, so that steps below half a unit in the last place are not lost. The random
            numbers come from the shared stream, so that a replay rounds alike. None: to nearest.
            float32 is always rounded to nearest.
    """

    terms: Sequence[Term]
    scale: float = 1.0
    rounding: Rounding | None = None


@dataclass(frozen=True, eq=False)
class Rebuild:
    """w <- round(w0 + scale * sum of the terms), where w0 is what `ParameterSpace.keep_base` kept.

    Small steps are not lost, as they are added up in the coefficients, not in the weights.
    """

    terms: Sequence[Term]
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class Optimize:
    """The sum of the terms is the gradient of a rule with running averages, which the space keeps.

    With `past` the space keeps no averages: they are computed from zero, from the past gradients
    and this one, for a piece of the weights at a time. If all steps so far are remembered, they are
    equal to running averages, bit for bit.
    """

    terms: Sequence[Term]
    rule: Rule  # the same rule at each step, except for its rate
    rounding: Rounding | None = None  # as in `Add`
    # terms of earlier steps, the oldest first; None: the space keeps the averages
    past: Sequence[Sequence[Term]] | None = None


@dataclass(frozen=True, eq=False)
class Average:
    """w <- sum_i c_i w_i, where w_i is w after the changes of branch i, each rounded in its turn.

    The bits are those of clients that each take their steps and send their weights to be averaged:
    the average is summed in double precision and rounded once. Carrying it out needs a copy of the
    weights and their sum.
    """

    # c_i and its changes, of each branch; none: nothing happens
    branches: Sequence[tuple[float, Sequence[Add]]]


@dataclass(frozen=True, eq=False)
class Patch:
    """Values for entries of the vector."""

    start: int  # index of the first entry
    values: Floats  # finite
    # entries' positions counted from `start`, ascending; None: the entries are consecutive
    offsets: NDArray[np.integer[Any]] | None = None

    def within(self, lo: int, hi: int) -> tuple[Any, Floats]:
        """Return the patch's part in entries lo..hi: its positions, counted from lo, and its
        values.
        """
        if self.offsets is None:
            a = max(lo, self.start)
            values = self.values[a - self.start : max(0, hi - self.start)]
            return slice(a - lo, a - lo + len(values)), values
        a, b = np.searchsorted(self.offsets, (lo - self.start, hi - self.start))
        return self.offsets[a:b].astype(np.int64) + (self.start - lo), self.values[a:b]


@dataclass(frozen=True, eq=False)
class Entries:
    """w[i] <- round(w[i] + scale * v[i]) for the entries of the patches.

    All others stay as they are.

    Each value is multiplied by `scale` and added to w in single precision, and rounded once to the
    tensor's dtype, to nearest: the bits are the same on any device.
    """

    patches: Sequence[Patch]  # in ascending order, without overlap
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class AddFactors:
    """w <- round(w + scale * B P) for each tensor, in random subspaces of its matrices.

    B times 1/sqrt(r) is rounded to single precision; its products with signs are summed up in
    single precision in the order of P's rows, multiplied by `scale`, added to w in single precision
    and rounded once to the tensor's dtype: the bits are the same on any device.

    Args:
        subspace: the matrices P.
        factors: B of each tensor, in the shapes of `RandomSubspace.factor_shape`; finite.
        scale: multiplies the change.
        rounding: as in `Add`.
    """

    subspace: RandomSubspace
    factors: Sequence[Floats]
    scale: float = 1.0
    rounding: Rounding | None = None


@dataclass(frozen=True, eq=False)
class Replace:
    """All trainable tensors in order, in their own dtypes, as bytes (`ParameterSpace.dense`)."""

    data: bytes


Change = Add | Rebuild | Optimize | Average | Entries | AddFactors | Replace
NOTHING = Add(())  # the change of a step that no client answered


def expected_norm(change: Change, layout: Layout) -> float | None:
    """Return the Euclidean norm of a change of the weights, for sums over directions the expected
    norm; None: it is not known.

    E |s sum_k c_k v_k|^2 = s^2 sum_l rho_l d_l |c_l|^2, as random directions are orthogonal up to 1
    / sqrt(d_l). For coefficients of a projection onto K_l << d_l directions almost all of it is
    noise.
    """
    if isinstance(change, Entries):
        squares = (
            float(np.square(patch.values, dtype=np.float64).sum()) for patch in change.patches
        )
        return abs(change.scale) * sqrt(sum(squares))
    if isinstance(change, AddFactors):
        return abs(change.scale) * sqrt(change.subspace.squared_norm(layout, list(change.factors)))
    if not isinstance(change, Add):
        return None
    square = 0.0
    for term in change.terms:
        whole = not len(term.coefficients) or np.ndim(term.coefficients[0]) == 0
        for block, size in enumerate(layout.block_sizes):
            c = np.asarray(
                term.coefficients if whole else term.coefficients[block], dtype=np.float64
            )
            square += term.basis.variance(size) * size * float(np.dot(c, c))
    return abs(change.scale) * sqrt(square)
