"""The steps of a run in the ServerApp: what nodes are sent that lack some. Free of torch."""

from collections.abc import Callable

from fedseed.federation.coordinator import Coordinator
from fedseed.methods.content import Content
from fedseed.orbit import NO_DIGEST, Header
from fedseed.runs.folder import RunFolder
from fedseed.runs.store import step_store


class Ledger:
    """The steps, in memory and in the run folder's file.

    Args:
        folder: the run's.
        header: what the run is.
        coordinator: is brought to the last step.
    """

    def __init__(self, folder: RunFolder, header: Header, coordinator: Coordinator) -> None:
        self.at = 0  # the last step
        self._changed = 0  # the last step that was not empty
        self._payloads: list[bytes] = []  # of all steps; where a step replaces those before it, of the newest
        self._replaces = coordinator.method.catch_up.replaces
        self._begun = folder.has_rounds
        self._store = step_store(coordinator.method, folder.path, header, coordinator)

    def restore(self, warn: Callable[[str], None]) -> list[Content]:
        """Take up what the folder holds; returns what each of its steps holds."""
        restored = self._store.restore(self._begun, warn)
        self.at = restored.round
        self._payloads = [record.payload for record in restored.records]
        self._changed = restored.records[-1].round if restored.records else 0
        return restored.contents

    def record(self, number: int, payload: bytes, waits: bool) -> None:
        """There is a new step; `waits`: it is written when its digest is known (`confirm`)."""
        self.at = number
        if payload or not self._replaces:
            self._changed = number
            self._payloads = [payload] if self._replaces else [*self._payloads, payload]
        self._store.prepare(number)
        self._store.record(number, payload, waits)

    def confirm(self, digest: str) -> None:
        """The digest of the weights after the newest step is known."""
        self._store.confirm(digest)

    def since(self, number: int) -> list[bytes]:
        """What leads from a step to the newest."""
        if self._replaces:
            return self._payloads if self._changed > number else []
        return self._payloads[number:]

    def complete(self) -> int | None:
        """The run is over: returns the orbit's bytes, None where there is none."""
        return self._store.complete(NO_DIGEST)

    def release(self) -> None:
        """Close the file as it is."""
        self._store.release()
