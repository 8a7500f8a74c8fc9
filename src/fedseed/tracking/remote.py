"""What trackers share whose runs live elsewhere: W&B and MLflow.

A run that is resumed goes on in the same run there, whose name is kept in tracking.json in the run's folder. No round
is sent twice and none is missing: what is there already, the service says.
"""

import json
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from pydantic import PositiveInt, PrivateAttr

from fedseed.durable import write_whole
from fedseed.tracking.base import MetricsLine, Start, Tracker, scalars

FILE = "tracking.json"


class RemoteTracker(Tracker):
    """A tracker whose runs have a name elsewhere. Subclasses say how to open one and how to send a line to it.

    Args:
        project: what runs stand under there; MLflow calls it an experiment.
        run_name: the run's name there; by default that of its folder.
        upload: whether the run's files (recipe, orbit or weights, pictures, report) are sent when it is over.
        largest: bytes of the largest file that is sent: whole weights may be gigabytes.
    """

    project: str = "fedseed"
    run_name: str | None = None
    upload: bool = True
    largest: PositiveInt = 100_000_000

    _told: int = PrivateAttr(-1)
    _run_id: str = PrivateAttr("")

    def start(self, run: Start) -> None:
        """Open the run there, whose name is kept in its folder, and send of earlier lines what is missing."""
        file = None if run.folder is None else run.folder / FILE
        kept = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.exists() else {}
        key = f"{self.name}:{self.project}"
        known = kept.get(key, {}).get("id")
        self._run_id, self._told = self.open(run, known)
        if file is not None and known is None:
            write_whole(file, f"{json.dumps({**kept, key: {'id': self._run_id}}, indent=1)}\n".encode())
        for line in run.earlier:
            self.metrics(line)

    def metrics(self, line: MetricsLine) -> None:
        """Send the line's numbers, if its round is not there yet."""
        number = line["round"]
        if number <= self._told:
            return
        self.send(number, scalars({**line, "round": None}))
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
