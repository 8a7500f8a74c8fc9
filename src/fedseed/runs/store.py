"""Where a simulation's steps become durable: every step in an orbit, or the newest weights alone.

A round counts once its step is recorded here. Which store a run has follows from how whoever missed rounds catches up
(`Method.catch_up`): by steps, or by the newest one because it replaces all before it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from fedseed.errors import FedseedError, OrbitError
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.worker import Worker
from fedseed.methods.base import CatchUp
from fedseed.methods.content import Content
from fedseed.orbit import Header, OrbitWriter, Record
from fedseed.runs import checkpoint
from fedseed.runs.checkpoint import Checkpoint
from fedseed.runs.dense_files import keep_outcome, restore_outcome


class StepStore(ABC):
    """A file of a run's folder.

    Args:
        folder: the run's folder.
        header: what the run is.
        worker: holds the weights.
        coordinator: what it remembers besides the steps is kept, too.
    """

    name: ClassVar[str]  # of the file
    restored: Sequence[Record] = ()  # what takes a model at its base to where `restore` brought this one

    def __init__(self, folder: Path, header: Header, worker: Worker, coordinator: Coordinator) -> None:
        self.path = folder / self.name
        self.header = header
        self.worker = worker
        self.coordinator = coordinator

    def check(self, rounds: bool) -> None:
        """Raises FedseedError if the run has had rounds, but the file is not there."""
        if rounds and not self.path.exists():
            raise FedseedError(f"{self.path.parent}: {self.name} is missing, and with it what the run has learnt")

    @abstractmethod
    def restore(self, warn: Callable[[str], None]) -> tuple[int, list[Content]]:
        """Bring weights and states to the last round that counts: its number, what all steps to there hold."""

    @abstractmethod
    def record(self, number: int, payload: bytes, digest: str) -> None:
        """Keep a step, on disk before this returns."""

    def complete(self) -> int | None:
        """The run is over: the orbit's bytes, None where there is none."""
        return None

    def release(self) -> None:  # noqa: B027
        """Close the file as it is."""


class OrbitStore(StepStore):
    """All steps, in an orbit."""

    name = "model.orbit"
    _writer: OrbitWriter | None = None

    def restore(self, warn: Callable[[str], None]) -> tuple[int, list[Content]]:
        """Replay what is there."""
        there = self.path.exists()
        self._writer = OrbitWriter(self.path, self.header, resume=there)
        if self._writer.cut is not None:
            warn(self._writer.cut)
        if not there:
            restore_outcome(self.path.parent, 0, self.coordinator, warn)
            return 0, []
        orbit = self._writer.take()
        if orbit.header.first > 1:
            raise OrbitError(f"{self.path} is compacted: a run can't go on from it")
        self.restored = list(orbit.steps())
        self.worker.catch_up(self.restored)
        contents = self.coordinator.catch_up(record.payload for record in orbit.steps())
        restore_outcome(self.path.parent, orbit.last, self.coordinator, warn)
        return orbit.last, contents

    def record(self, number: int, payload: bytes, digest: str) -> None:
        """Append it."""
        assert self._writer is not None
        keep_outcome(self.path.parent, number, self.coordinator)
        self._writer.append(Record(number, payload, digest))

    def complete(self) -> int | None:
        """End the file."""
        assert self._writer is not None
        self._writer.close()
        return self.path.stat().st_size

    def release(self) -> None:
        """Close it."""
        if self._writer is not None:
            self._writer.release()


class WeightsStore(StepStore):
    """The newest weights, in a safetensors file that is replaced as a whole."""

    name = "model.safetensors"
    _changed = 0  # the last round whose step was not empty

    def restore(self, warn: Callable[[str], None]) -> tuple[int, list[Content]]:
        """Load what is there: such a step is the weights themselves."""
        if not self.path.exists():
            return 0, []
        at = checkpoint.load(self.path, self.worker.space, self.header)
        contents, self._changed = [Content()] * at.round, at.changed
        if at.changed:
            step = self.worker.space.dense()
            (contents[at.changed - 1],) = self.coordinator.catch_up([step])
            self.coordinator.load_state_dict(at.kept)
            self.worker.advance(step)
            self.restored = [Record(at.changed, step)]
        return at.round, contents

    def record(self, number: int, payload: bytes, digest: str) -> None:
        """Replace the file."""
        if payload:
            self._changed = number
        at = Checkpoint(number, self._changed, self.coordinator.state_dict())
        checkpoint.save(self.path, self.worker.space, self.header, at)


STORES: dict[CatchUp, type[StepStore]] = {"steps": OrbitStore, "plan": OrbitStore, "newest": WeightsStore}
