"""How somebody who missed rounds gets the model: a method names one of three objects (`Method.catch_up`).

A step either adds to those before it or, as whole weights do, replaces them; the object says which, and which steps
are still needed. Stores, logs and clients ask it and nothing else.
"""

from abc import ABC, abstractmethod
from typing import ClassVar


class CatchUp(ABC):
    """A way to get the model after missed rounds."""

    replaces: ClassVar[bool] = False  # whether a step replaces all before it, as whole weights do
    may_drop: ClassVar[bool] = False  # whether an orbit replays without its earlier steps

    @abstractmethod
    def needs(self, has: int, last: int, changed: int) -> range:
        """Returns the numbers of the steps that somebody still downloads.

        Args:
            has: the last step that they have.
            last: the newest step.
            changed: the newest step that is not empty.
        """


class EveryStep(CatchUp):
    """Each step adds to those before it."""

    def needs(self, has: int, last: int, changed: int) -> range:
        return range(has + 1, last + 1)


class NewestStep(CatchUp):
    """A step is whole weights: the newest replaces all before it."""

    replaces = True

    def needs(self, has: int, last: int, changed: int) -> range:
        return range(changed, changed + 1) if changed > has else range(0)


class NextPlan(CatchUp):
    """The next plan carries the model, so nothing has to be downloaded."""

    may_drop = True

    def needs(self, has: int, last: int, changed: int) -> range:
        return range(0)
