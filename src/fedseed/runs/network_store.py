"""The files of a networked run's steps: an orbit beside the log, or the newest weights alone. Free of torch.

The log decides which rounds count; the files follow it, and are brought in line with it when a coordinator starts.
`store.py` has the same for a simulation, whose files decide.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from fedseed.errors import FedseedError
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.cost import Cost
from fedseed.federation.orbit_copy import OrbitCopy
from fedseed.federation.step_log import StepLog
from fedseed.methods.base import CatchUp
from fedseed.methods.content import Content
from fedseed.orbit import NO_DIGEST, Header
from fedseed.runs.dense_files import (
    keep_outcome,
    keep_state,
    remove_state,
    restore_outcome,
    restore_state,
    write_weights,
)
from fedseed.runs.folder import RunFolder


class NetworkStore(ABC):
    """What a run's folder keeps of its steps.

    Args:
        folder: the run's folder.
        header: what the run is.
        coordinator: is brought to the last step, too.
        log: the run's.
        run: the run's name.
    """

    def __init__(self, folder: RunFolder, header: Header, coordinator: Coordinator, log: StepLog, run: str) -> None:
        self.folder = folder
        self.header = header
        self.coordinator = coordinator
        self.log = log
        self.run = run

    @abstractmethod
    async def restore(self, waits: bool, warn: Callable[[str], None]) -> tuple[int, list[Content]]:
        """Bring log, files and coordinator together: each may be behind the others after a crash.

        Args:
            waits: whether the log's last step, if it is new here, waits for its digest.
            warn: told what was mended.

        Returns:
            The last round that counts, what is in all steps to there.

        Raises:
            FedseedError: they can't be brought together.
        """

    def before(self, number: int) -> None:  # noqa: B027
        """A step is about to count."""

    def after(self, number: int, step: bytes, waits: bool) -> None:  # noqa: B027
        """A step, a message, counts now. `waits`: for its digest (`confirm`)."""

    def confirm(self, digest: str) -> None:  # noqa: B027
        """The digest of the weights after the newest step is known."""

    @property
    def due(self) -> bool:
        """Whether it is time for `sync`."""
        return False

    def sync(self) -> None:  # noqa: B027
        """Bring everything to the disk."""

    @abstractmethod
    def complete(self) -> int | None:
        """The run is over: the orbit's bytes, None where there is none."""

    def release(self) -> None:  # noqa: B027
        """Close the files as they are."""


class OrbitStore(NetworkStore):
    """All steps, in an orbit beside the log."""

    _copy: OrbitCopy | None = None

    async def restore(self, waits: bool, warn: Callable[[str], None]) -> tuple[int, list[Content]]:
        """Repair the orbit from the log and the log from the orbit."""
        path, steps = self.folder.path / "model.orbit", len(self.log.steps)
        if steps and not path.exists():
            raise FedseedError(
                f"the server holds a run {self.run} of {steps} steps, {self.folder.path} does not: "
                "go on in its folder (--out), choose another name (--run), or delete it from the server with --fresh"
            )
        self._copy = OrbitCopy(path, self.header)
        if self._copy.cut is not None:
            warn(self._copy.cut)
        payloads = await self._copy.repair(self.log, self.run, waits)
        contents = self.coordinator.catch_up(payloads)
        restore_outcome(self.folder.path, len(payloads), self.coordinator, warn)
        self.folder.fill(len(payloads), _unknown_round)
        return len(payloads), contents

    @property
    def copy(self) -> OrbitCopy:
        """The file, once the run is taken up."""
        assert self._copy is not None
        return self._copy

    def before(self, number: int) -> None:
        """Write what the rule remembers, if it does."""
        keep_outcome(self.folder.path, number, self.coordinator)

    def after(self, number: int, step: bytes, waits: bool) -> None:
        """Append it."""
        self.copy.append(number, step, waits)

    def confirm(self, digest: str) -> None:
        """Write it beside the step."""
        self.copy.confirm(digest)

    @property
    def due(self) -> bool:
        """Now and then, where there are many steps a second."""
        return self.copy.due

    def sync(self) -> None:
        """Bring it to the disk."""
        self.copy.sync()

    def complete(self) -> int | None:
        """End the file."""
        return self.copy.close()

    def release(self) -> None:
        """Close it."""
        if self._copy is not None:
            self._copy.release()


class WeightsStore(NetworkStore):
    """What the coordinator remembers besides the weights, which the log has; at the end the weights."""

    _round = 0  # the last that counts

    async def restore(self, waits: bool, warn: Callable[[str], None]) -> tuple[int, list[Content]]:
        """Take the newest weights from the log."""
        if self.folder.has_rounds and not self.log.steps:
            raise FedseedError(f"{self.folder.path}: the server has lost this run's weights; start again elsewhere")
        sizes, newest = await self.log.newest()
        held = Content() if newest is None else self.coordinator.catch_up([newest])[0]
        self._round = len(sizes)
        if sizes:
            restore_state(self.folder.path, len(sizes), self.coordinator)
        return len(sizes), [held if size else Content() for size in sizes]  # whole weights: all are of one size

    def before(self, number: int) -> None:
        """Write what is not in the step."""
        keep_state(self.folder.path, number, self.coordinator)

    def after(self, number: int, step: bytes, waits: bool) -> None:
        """Remember which it is."""
        self._round = number

    def complete(self) -> int | None:
        """Write the weights."""
        weights = self.coordinator.weights
        if weights is not None:
            digest = self.log.digest or NO_DIGEST
            path = self.folder.path / "model.safetensors"
            write_weights(path, self.header, weights, digest, self._round)
        remove_state(self.folder.path)
        return None


STORES: dict[CatchUp, type[NetworkStore]] = {"steps": OrbitStore, "plan": OrbitStore, "newest": WeightsStore}


def _unknown_round(number: int) -> dict[str, Any]:
    """The line of a round whose cost was not on disk when the machine stopped."""
    return {
        "round": number, "clients": [], "skipped": [], "refused": 0, "bytes_up": 0.0, "bytes_down": 0.0,
        **Cost().about(), "attacked": [], "seconds": {}, "unknown": True,
    }  # fmt: skip
