"""NATS with JetStream: core messages, a stream for the log, an object store for each owner's blobs.

Who has a key signs what it sends, and believes only what is signed (signatures.py).
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

from nats.aio.client import Client

from fedseed.errors import FedseedError
from fedseed.transport.base import Access, Transport
from fedseed.transport.nats_connection import connect
from fedseed.transport.nats_coordinator import Lines, NatsCoordinator
from fedseed.transport.nats_end import NatsClient, NatsWatcher
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

        made: list[Client] = []
        try:
            made.append(await self._connect("coordinator", refused, reconnected))
            made.append(await self._connect("coordinator", refused, None, dropped))
            made.append(await self._connect("coordinator", refused))
        except FedseedError:
            for connection in made:
                await connection.close()
            raise
        signatures = Signatures.read(at.key, coordinating=True)
        end.append(NatsCoordinator(Lines(*made), self._subjects, signatures, log))
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

    async def watcher(self) -> "NatsWatcher":
        """A watcher's end."""
        return NatsWatcher(await self._connect("watcher"), self._subjects, None, Signatures.read(self._access.key))

    async def _connect(
        self,
        name: str,
        refused: Callable[[str], None] | None = None,
        again: Callable[[], None] | None = None,
        dropped: Callable[[str], None] | None = None,
    ) -> Client:
        at = self._access
        return await connect(at.url, self._subjects, name, at.key, at.ca, refused, again, dropped)
