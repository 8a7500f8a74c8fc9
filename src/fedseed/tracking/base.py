"""Defines trackers, and passes a run's events on to them.

A tracker gets each line of metrics.jsonl. It is a guest: one that fails is named
once and left out, and the run goes on. Its functions are called in the order in which they stand
here.
"""

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from fedseed.errors import RecipeError, to_install
from fedseed.hinting import Hinting
from fedseed.registry import one_line
from fedseed.text import flat

MetricsLine = Mapping[str, Any]


@dataclass(frozen=True)
class Start:
    """What a tracker gets first.

    Args:
        method: the method's name.
        rounds: how many there will be at most.
        seed: the run's seed.
        clients: the clients' names.
        folder: the run's folder; None: the run writes nothing.
        recipe: the complete recipe as TOML; None: the run has none.
        earlier: lines of metrics that an interrupted run has written before: nothing of them comes
            again, and what a tracker holds beyond the last one will come again.
    """

    method: str
    rounds: int
    seed: int
    clients: Sequence[str]
    folder: Path | None = None
    recipe: str | None = None
    earlier: Sequence[MetricsLine] = ()

    @property
    def title(self) -> str:
        """Return the run's title: its folder's name, or the method's."""
        if self.folder is None:
            return self.method
        return self.folder.resolve().name

    @property
    def config(self) -> dict[str, Any]:
        """Return the recipe's tables; without a recipe the method, the rounds and the seed."""
        if self.recipe is not None:
            return tomllib.loads(self.recipe)
        return {"method": {"name": self.method}, "rounds": self.rounds, "seed": self.seed}


class Tracker(BaseModel, ABC, metaclass=Hinting):
    """Settings of one tracker, and what it does.

    Subclasses stand in a file each, their names in `[[tracking]]`.

    Settings are frozen; what a tracker holds while it runs (files, connections) are pydantic's
    private attributes: `_file: Any = PrivateAttr(None)`. Each run works with a copy of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    about: ClassVar[str]  # one line for `fedseed list trackers`
    package: ClassVar[str | None] = None  # that it needs; the extra has the tracker's name

    def check(self) -> None:
        """Check that what it needs is installed, before anything is loaded.

        Raises:
            RecipeError: something is missing; the text has the command that installs it.
        """
        if self.package is not None and find_spec(self.package) is None:
            remedy = to_install(self.name)
            raise RecipeError(
                f'tracking.name = "{self.name}" needs the package {self.package}: {remedy}'
            )

    def start(self, run: Start) -> None:
        """Begin, or go on with a run, of which some lines may be known already."""

    @abstractmethod
    def metrics(self, line: MetricsLine) -> None:
        """Take a line of metrics, as metrics.jsonl has it, once it is on disk."""

    def artefacts(self, files: Sequence[Path]) -> None:
        """Take a finished run's recipe, orbit or weights, summary, pictures and report, if it has a
        folder.
        """

    def finish(self, summary: Mapping[str, Any]) -> None:
        """End the run, with the content of summary.json."""

    def close(self) -> None:
        """Let go of files and connections: always last, also of a run that was stopped."""


class Trackers:
    """Tells all trackers of a run what happens in it.

    Args:
        trackers: their settings.
        warn: called with a text when one has failed.
    """

    def __init__(
        self, trackers: Sequence[Tracker] = (), warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self._trackers = [tracker.model_copy(deep=True) for tracker in trackers]
        self._warn = warn

    def tell(self, event: str, *content: Any) -> None:
        """Tell all trackers something.

        Args:
            event: the name of one of `Tracker`'s functions: start, metrics, artefacts, finish.
            content: what it takes.
        """
        for tracker in list(self._trackers):
            try:
                getattr(tracker, event)(*content)
            except Exception as error:  # a tracker's trouble is no reason to lose a run
                self._trackers.remove(tracker)
                self._warn(
                    f'tracking.name = "{tracker.name}" is left out from here on: {one_line(error)}'
                )
                with suppress(Exception):
                    tracker.close()

    def close(self) -> None:
        """Release all trackers; later calls do nothing."""
        self.tell("close")
        self._trackers = []


def scalars(line: MetricsLine) -> dict[str, float]:
    """Return a line's numbers by name: tables are flattened ("seconds.local"), and a list counts as
    its length.
    """
    numbers = {
        key: len(value) if isinstance(value, list) else value for key, value in flat(line).items()
    }
    return {key: value for key, value in numbers.items() if isinstance(value, int | float)}


def slashed(values: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """Return numbers by names with slashes, by which curves are grouped: "seconds.local" as
    "seconds/local".
    """
    return {head + name.replace(".", "/"): value for name, value in values.items()}
