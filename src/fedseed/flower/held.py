"""The steps that a node holds: in Flower's state of the node, which outlives its processes. Free of torch."""

from collections.abc import Sequence
from typing import Any

from fedseed.flower.wire import RECORD, Table, pack, unpack


class Held:
    """What takes a model at the base to where the node is.

    Args:
        state: the node's `Context.state`.
        replacing: each step is whole weights: only the newest is kept.
    """

    def __init__(self, state: Any, replacing: bool) -> None:
        self._state = state
        self._replacing = replacing
        kept = state.config_records.get(RECORD, {})
        self.at = int(kept.get("at", 0))
        self.changed = int(kept.get("changed", 0))  # where steps replace each other: number of the one that is kept
        self.payloads = unpack(kept.get("steps", b""))

    def take(self, asked: Table) -> bool:
        """Take the steps that a message brings; whether the node holds all that it needs now."""
        since, at = int(asked["since"]), int(asked["at"])
        if self.at < since:
            return False
        if at <= self.at:
            return True
        brought = unpack(asked["steps"])
        if self._replacing:
            if brought:
                self.payloads, self.changed = brought[-1:], at
        else:
            self.payloads += brought[self.at - since :]
        self.at = at
        self._write()
        return True

    def after(self, at: int) -> Sequence[bytes]:
        """The payloads of the steps after one that are not merged into a newer one."""
        if self._replacing:
            return self.payloads if self.changed > at else []
        return self.payloads[at:]

    def _write(self) -> None:
        from flwr.app import ConfigRecord

        kept = {"at": self.at, "changed": self.changed, "steps": pack(self.payloads)}
        self._state[RECORD] = ConfigRecord(kept)
