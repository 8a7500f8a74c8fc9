"""What trackers share whose runs live elsewhere: W&B, MLflow, Trackio.

A run that is resumed goes on in the same run there, whose name is kept in tracking.json in the run's folder. No round
is sent twice and none is missing: what is there already, the service says.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pydantic import PositiveInt, PrivateAttr

from fedseed.durable import write_whole
from fedseed.errors import RecipeError, to_install
from fedseed.tracking.base import MetricsLine, Start, Tracker, scalars

FILE = "tracking.json"


class Kept:
    """What a tracker remembers of a run from one session to the next; without a folder nothing.

    Args:
        folder: the run's; None: there is none.
        key: the tracker's own place in the file.
    """

    def __init__(self, folder: Path | None, key: str) -> None:
        self._file = None if folder is None else folder / FILE
        self._key = key

    def read(self) -> dict[str, Any]:
        """What was kept last, or an empty table."""
        return self._all().get(self._key, {})

    def write(self, content: Mapping[str, Any]) -> None:
        """Keep this in place of what was kept."""
        if self._file is not None:
            text = json.dumps(self._all() | {self._key: dict(content)}, indent=1)
            write_whole(self._file, f"{text}\n".encode())

    def _all(self) -> dict[str, Any]:
        if self._file is None or not self._file.exists():
            return {}
        found: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        return found


class RemoteTracker(Tracker):
    """A tracker whose runs have a name elsewhere. Subclasses say how to open one and how to send a line to it.

    Args:
        project: what runs stand under there; MLflow calls it an experiment.
        run_name: the run's name there; by default that of its folder.
        upload: whether the run's files (recipe, orbit or weights, pictures, report) are sent when it is over.
        largest: bytes of the largest file that is sent: whole weights may be gigabytes.
    """

    package: ClassVar[str]  # what is imported; the extra has the tracker's name

    project: str = "fedseed"
    run_name: str | None = None
    upload: bool = True
    largest: PositiveInt = 100_000_000

    _kept: Kept | None = PrivateAttr(None)
    _told: int = PrivateAttr(-1)
    _run_id: str = PrivateAttr("")

    def check(self) -> None:
        """Whether its package is there."""
        if find_spec(self.package) is None:
            raise RecipeError(
                f'tracking.name = "{self.name}" needs the package {self.package}: {to_install(self.name)}'
            )

    def start(self, run: Start) -> None:
        """Open the run there, and send of earlier lines what is missing."""
        self._kept = Kept(run.folder, f"{self.name}:{self.project}")
        known = self._kept.read()
        self._run_id, self._told = self.open(run, known.get("id"))
        if "id" not in known:
            self._kept.write({"id": self._run_id})
        for line in run.earlier:
            self.metrics(line)

    def metrics(self, line: MetricsLine) -> None:
        """Send the line's numbers, if its round is not there yet."""
        number = line["round"]
        if number <= self._told:
            return
        self.send(number, {key: value for key, value in scalars(line).items() if key != "round"})
        self._told = number

    def artefacts(self, files: Sequence[Path]) -> None:
        """Send what is not too large, if anything is to be sent."""
        small = [file for file in files if file.stat().st_size <= self.largest]
        if self.upload and small:
            self.send_files(small)

    @abstractmethod
    def open(self, run: Start, known: str | None) -> tuple[str, int]:
        """Begin the run there, or go on with it.

        Args:
            run: what it is.
            known: by what an earlier session knew it; None: it is new.

        Returns:
            By what it is known there, and the last round that is there (-1: none).
        """

    @abstractmethod
    def send(self, number: int, values: dict[str, float]) -> None:
        """Send a round's numbers."""

    @abstractmethod
    def send_files(self, files: Sequence[Path]) -> None:
        """Send what the run leaves."""
