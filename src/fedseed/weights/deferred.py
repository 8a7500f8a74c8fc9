"""A parameter space for replay: steps are collected, and many are applied in one pass over the weights.

The bits are those of one step at a time: sums that a method rebuilds from the base replace each other, so only the last
one counts; other steps keep their roundings, each in its place, while a piece of the weights is in the cache.
"""

from collections.abc import Sequence
from typing import Any

from fedseed.optimizers.moments import Rule
from fedseed.weights.space import ParameterSpace, Term

MOST = 1 << 22  # coefficients and table entries that are held back at most: 16 MiB
WORK = 1 << 34  # steps times parameters that are held back at most: about a second of work, so that progress shows


class Deferred:
    """What a method's `apply` uses of a `ParameterSpace`; `flush` brings the weights up to date.

    Args:
        space: the parameter space; while steps are held back its weights are those of an earlier step.
    """

    def __init__(self, space: ParameterSpace) -> None:
        self._space = space
        self._rebuilt: tuple[Sequence[Term], float] | None = None
        self._steps: list[tuple[Sequence[Term], float]] = []
        self._held = 0

    def add_terms(self, terms: Sequence[Term], scale: float = 1.0, rounding: tuple[int, int] | None = None) -> None:
        """As `ParameterSpace.add_terms`; stochastic rounding is not held back."""
        if rounding is not None:
            self.flush()
            self._space.add_terms(terms, scale, rounding)
            return
        self._steps.append((terms, scale))
        self._held += sum(max(_count(t.coefficients), t.basis.tile) for t in terms)
        if self._held > MOST or len(self._steps) * self._space.size > WORK:
            self.flush()

    def rebuild(self, terms: Sequence[Term], scale: float = 1.0) -> None:
        """As `ParameterSpace.rebuild`: whatever came before does not matter any more."""
        self._steps, self._held = [], 0
        self._rebuilt = (terms, scale)

    def descend(self, terms: Sequence[Term], rule: Rule, rounding: tuple[int, int] | None = None) -> None:
        """As `ParameterSpace.descend`, at once: an optimiser's averages take every step in turn."""
        self.flush()
        self._space.descend(terms, rule, rounding)

    def average_steps(self, branches: Sequence[tuple[float, Sequence[tuple[Sequence[Term], float]]]]) -> None:
        """As `ParameterSpace.average_steps`, at once."""
        self.flush()
        self._space.average_steps(branches)

    def load_dense(self, data: bytes) -> None:
        """As `ParameterSpace.load_dense`."""
        self._rebuilt, self._steps, self._held = None, [], 0
        self._space.load_dense(data)

    def flush(self) -> None:
        """Apply what is held back."""
        if self._rebuilt is not None:
            self._space.rebuild(*self._rebuilt)
        self._space.add_steps(self._steps)
        self._rebuilt, self._steps, self._held = None, [], 0


def _count(coefficients: Any) -> int:
    return sum(len(c) if hasattr(c, "__len__") else 1 for c in coefficients)
