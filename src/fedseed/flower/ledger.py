"""The steps of a run in the ServerApp: what nodes are sent that lack some, and the run folder's file of them.

Free of torch. A step is written together with the digest that the nodes report of it, where they are asked for one.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from fedseed.errors import FedseedError
from fedseed.federation.coordinator import Coordinator
from fedseed.methods.base import CatchUp
from fedseed.methods.content import Content
from fedseed.orbit import NO_DIGEST, Header, OrbitWriter, Record
from fedseed.runs.dense_files import (
    keep_outcome,
    keep_state,
    remove_state,
    restore_outcome,
    restore_state,
    write_weights,
)


class Ledger(ABC):
    """The steps, in memory and in a file.

    Args:
        folder: the run's.
        header: what the run is.
        coordinator: is brought to the last step.
    """

    def __init__(self, folder: Path, header: Header, coordinator: Coordinator) -> None:
        self.folder = folder
        self.header = header
        self.coordinator = coordinator
        self.at = 0  # the last step
        self._waits = False  # whether it is not written yet

    @abstractmethod
    def restore(self, warn: Callable[[str], None]) -> list[Content]:
        """Take up what the folder holds; what all its steps hold."""

    def record(self, number: int, payload: bytes, waits: bool) -> None:
        """There is a new step; `waits`: it is written when its digest is known (`confirm`)."""
        self.confirm(NO_DIGEST)
        self.at, self._waits = number, True
        self._keep(payload)
        if not waits:
            self.confirm(NO_DIGEST)

    def confirm(self, digest: str) -> None:
        """Write the newest step, with the digest of the weights after it."""
        if self._waits:
            self._waits = False
            self._write(digest)

    @abstractmethod
    def _keep(self, payload: bytes) -> None:
        """Remember the newest step."""

    @abstractmethod
    def _write(self, digest: str) -> None:
        """Bring it to the disk."""

    @abstractmethod
    def since(self, number: int) -> list[bytes]:
        """What leads from a step to the newest."""

    @abstractmethod
    def complete(self) -> int | None:
        """The run is over: the orbit's bytes, None where there is none."""

    def release(self) -> None:  # noqa: B027
        """Close the file as it is."""


class OrbitLedger(Ledger):
    """Every step, in an orbit."""

    def __init__(self, folder: Path, header: Header, coordinator: Coordinator) -> None:
        super().__init__(folder, header, coordinator)
        self._path = folder / "model.orbit"
        self._payloads: list[bytes] = []
        self._writer: OrbitWriter | None = None

    def restore(self, warn: Callable[[str], None]) -> list[Content]:
        """Read the orbit."""
        there = self._path.exists()
        self._writer = OrbitWriter(self._path, self.header, resume=there)
        if self._writer.cut is not None:
            warn(self._writer.cut)
        if there:
            self._payloads = [record.payload for record in self._writer.take().steps()]
        self.at = len(self._payloads)
        contents = self.coordinator.catch_up(self._payloads)
        restore_outcome(self.folder, self.at, self.coordinator, warn)
        return contents

    def _keep(self, payload: bytes) -> None:
        keep_outcome(self.folder, self.at, self.coordinator)
        self._payloads.append(payload)

    def _write(self, digest: str) -> None:
        assert self._writer is not None
        self._writer.append(Record(self.at, self._payloads[-1], digest))

    def since(self, number: int) -> list[bytes]:
        """All steps after it."""
        return self._payloads[number:]

    def complete(self) -> int | None:
        """End the file."""
        assert self._writer is not None
        self.confirm(NO_DIGEST)
        self._writer.close()
        return self._path.stat().st_size

    def release(self) -> None:
        """Close it."""
        if self._writer is not None:
            self._writer.release()


class WeightsLedger(Ledger):
    """The newest weights, and the newest of their files."""

    def __init__(self, folder: Path, header: Header, coordinator: Coordinator) -> None:
        super().__init__(folder, header, coordinator)
        self._path = folder / "model.safetensors"
        self._newest = b""
        self._changed = 0  # the last round whose step was not empty

    def restore(self, warn: Callable[[str], None]) -> list[Content]:
        """Read the weights."""
        if not self._path.exists():
            return []
        try:
            data = self._path.read_bytes()
            start = 8 + int.from_bytes(data[:8], "little")
            about = json.loads(data[8:start])["__metadata__"]["fedseed"]
            self.at = self._changed = int(json.loads(about)["round"])
            self._newest = data[start:]
            (held,) = self.coordinator.catch_up([self._newest])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FedseedError(f"{self._path}: the weights of a run can't be read: {error}") from error
        restore_state(self.folder, self.at, self.coordinator)
        return [Content()] * (self.at - 1) + [held]

    def _keep(self, payload: bytes) -> None:
        if payload:
            self._newest, self._changed = payload, self.at

    def _write(self, digest: str) -> None:
        weights = self.coordinator.weights
        if weights is not None:
            keep_state(self.folder, self.at, self.coordinator)
            write_weights(self._path, self.header, weights, digest, self.at)

    def since(self, number: int) -> list[bytes]:
        """The newest weights, if they are newer."""
        return [self._newest] if self._changed > number else []

    def complete(self) -> int | None:
        """Nothing is taken up any more."""
        self.confirm(NO_DIGEST)
        remove_state(self.folder)
        return None


LEDGERS: dict[CatchUp, type[Ledger]] = {"steps": OrbitLedger, "plan": OrbitLedger, "newest": WeightsLedger}
