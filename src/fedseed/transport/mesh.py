"""The interface of transports between nodes that have no coordinator, and the one in memory.

A node sends to its neighbours, and receives from them. Messages may be lost, duplicated or
reordered. The transport verifies a message's sender as far as it can. The memory transport's nodes
are all in one process, and may have links that are down.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress

from fedseed.errors import NetworkError
from fedseed.transport.base import QUIET, Events

Hear = Callable[[str, bytes], None]  # sender's name, message


class MeshEnd(ABC):
    """A node's end. Every method may raise NetworkError."""

    # one line on why senders are not verified; None: they are
    unproven: str | None = None

    @abstractmethod
    async def listen(self, take: Hear) -> None:
        """Hear the neighbours' messages from now on.

        Args:
            take: called in the event loop with the sender's name and the message.
        """

    @abstractmethod
    async def send(self, data: bytes, receivers: Sequence[str]) -> None:
        """Send a message to some neighbours, at least to these; it may be lost."""

    @abstractmethod
    async def close(self) -> None:
        """Send pending messages, and close; may be called twice."""


class MeshTransport(ABC):
    """A way for nodes to reach their neighbours."""

    @abstractmethod
    async def node(self, name: str, neighbours: Sequence[str], events: Events = QUIET) -> MeshEnd:
        """Return a node's end. Raises RecipeError or NetworkError: it can't connect."""


class MemoryMesh(MeshTransport):
    """A transport whose nodes are in one process; each may be in a thread of its own."""

    def __init__(self) -> None:
        self._ends: dict[str, MemoryMeshEnd] = {}
        # links that are down, as pairs of names in order
        self._down: set[tuple[str, str]] = set()

    async def node(
        self, name: str, neighbours: Sequence[str], events: Events = QUIET
    ) -> "MemoryMeshEnd":
        end = self._ends[name] = MemoryMeshEnd(self, name)
        return end

    def set_link(self, first: str, second: str, is_up: bool) -> None:
        """Take a link down, or up again."""
        pair = (min(first, second), max(first, second))
        if is_up:
            self._down.discard(pair)
        else:
            self._down.add(pair)

    def deliver(self, sender: str, receiver: str, data: bytes) -> None:
        """Deliver a message to a node, if it has an end and the link is up."""
        end = self._ends.get(receiver)
        pair = (min(sender, receiver), max(sender, receiver))
        if end is not None and pair not in self._down:
            end.hear(sender, data)

    def forget(self, name: str) -> None:
        """Remove a node's end."""
        self._ends.pop(name, None)


class MemoryMeshEnd(MeshEnd):
    """A node's end in memory."""

    def __init__(self, mesh: MemoryMesh, name: str) -> None:
        self._mesh = mesh
        self._name = name
        self._take: Hear | None = None
        self._loop = asyncio.get_running_loop()
        self._closed = False

    async def listen(self, take: Hear) -> None:
        self._take = take

    def hear(self, sender: str, data: bytes) -> None:
        """Take a message, from any thread."""

        def act() -> None:
            if self._take is not None and not self._closed:
                self._take(sender, data)

        with suppress(RuntimeError):  # the loop is closed, so the end is closed, too
            self._loop.call_soon_threadsafe(act)

    async def send(self, data: bytes, receivers: Sequence[str]) -> None:
        if self._closed:
            raise NetworkError(f"the end of {self._name} is closed")
        for receiver in receivers:
            self._mesh.deliver(self._name, receiver, data)

    async def close(self) -> None:
        self._closed = True
        self._mesh.forget(self._name)
