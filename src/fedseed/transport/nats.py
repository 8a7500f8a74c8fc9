"""NATS with JetStream: core messages, a stream for the log, an object store for each owner's blobs.

Who has a key signs what it sends, and believes only what is signed (signatures.py).
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

from nats.aio.client import Client

from fedseed.transport.base import Access, Transport
from fedseed.transport.nats_connection import connect
from fedseed.transport.nats_coordinator import NatsCoordinator
from fedseed.transport.nats_end import NatsClient, NatsEnd
from fedseed.transport.server_log import ServerLog, key_names
from fedseed.transport.signatures import Signatures
from fedseed.transport.subjects import Subjects


class NatsTransport(Transport):
    """A run on a NATS server.

    Args:
        access: how to reach the server.
        run: the run's name.
    """

    schemes: ClassVar[Sequence[str]] = ("nats", "tls")

    def __init__(self, access: Access, run: str) -> None:
        self._access = access
        self._subjects = Subjects(run)

    async def coordinator(self, refused: Callable[[str], None]) -> "NatsCoordinator":
        """The coordinator's end. Raises FedseedError also if the server's log can't be read."""
        at = self._access
        names = key_names(at.key.parent) if at.key is not None else {}
        log = None if at.server_log is None else ServerLog(at.server_log, names)
        end: list[NatsCoordinator] = []

        def reconnected() -> None:
            for one in end:
                one.restart()

        def dropped(subject: str) -> None:
            for one in end:
                one.dropped(subject)

        connection = await self._connect("coordinator", refused, reconnected, dropped)
        end.append(NatsCoordinator(connection, self._subjects, Signatures.read(at.key, coordinating=True), log))
        return end[0]

    async def client(self, name: str, refused: Callable[[str], None], again: Callable[[], None]) -> "NatsClient":
        """A client's end."""
        end: list[NatsClient] = []

        def reconnected() -> None:
            for one in end:
                one.restart()
            again()

        connection = await self._connect(name, refused, reconnected)
        end.append(NatsClient(connection, self._subjects, name, Signatures.read(self._access.key)))
        return end[0]

    async def watcher(self) -> "NatsEnd":
        """A watcher's end."""
        return NatsEnd(await self._connect("watcher"), self._subjects, None, Signatures.read(self._access.key))

    async def _connect(
        self,
        name: str,
        refused: Callable[[str], None] | None = None,
        again: Callable[[], None] | None = None,
        dropped: Callable[[str], None] | None = None,
    ) -> Client:
        at = self._access
        return await connect(at.url, self._subjects, name, at.key, at.ca, refused, again, dropped)
