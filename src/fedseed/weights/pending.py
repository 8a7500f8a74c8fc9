"""Many changes in one pass over the weights, for replay: they are held back and carried out together.

The bits are those of one change at a time: a sum that is rebuilt from the base, or whole weights, replace all before
them; other steps keep their roundings, each in its place, while a piece of the weights is in the cache.
"""

from fedseed.weights.change import Add, Change, Rebuild, Replace, Term
from fedseed.weights.space import ParameterSpace

MOST = 1 << 22  # coefficients and table entries that are held back at most: 16 MiB
STEPS = 1 << 12  # adds that are held back at most, however small they are
WORK = 1 << 34  # steps times parameters that are held back at most: about a second of work, so that progress shows


class Pending:
    """Changes that are not carried out yet; `flush` brings the weights up to date.

    Args:
        space: the parameter space; while changes are held back its weights are those of an earlier step.
    """

    def __init__(self, space: ParameterSpace) -> None:
        self._space = space
        self._first: Rebuild | Replace | None = None  # what the adds come after
        self._adds: list[Add] = []
        self._held = 0

    def add(self, change: Change) -> None:
        """Take one more change, which comes after all before it."""
        if isinstance(change, Rebuild | Replace):
            self._first, self._adds, self._held = change, [], 0
        elif isinstance(change, Add) and change.rounding is None:
            if change.terms:
                self._adds.append(change)
                self._held += sum(map(_entries, change.terms))
            if self._held > MOST or len(self._adds) >= STEPS or len(self._adds) * self._space.size > WORK:
                self.flush()
        else:  # running averages, averages of branches and stochastic rounding take every step in turn
            self.flush()
            self._space.apply(change)

    def flush(self) -> None:
        """Carry out what is held back."""
        if self._first is not None:
            self._space.apply(self._first)
        self._space.apply_adds(self._adds)
        self._first, self._adds, self._held = None, [], 0


def _entries(term: Term) -> int:
    """Coefficients of a term, or entries of its basis' table."""
    return max(sum(len(c) if hasattr(c, "__len__") else 1 for c in term.coefficients), term.basis.tile)
