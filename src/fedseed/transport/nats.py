"""NATS with JetStream: core messages, a stream for the log, an object store for each owner's blobs.

Who has a key signs what it sends, and believes only what is signed (signatures.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from nats.aio.client import Client

from fedseed.errors import FedseedError
from fedseed.transport.base import QUIET, Access, Events, Transport
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

    async def coordinator(self, events: Events = QUIET) -> NatsCoordinator:
        """The coordinator's end. Raises FedseedError also if the server's log can't be read."""
        at, end, made = self._access, list[NatsCoordinator](), list[Client]()
        log = None
        if at.server_log is not None:
            log = ServerLog(at.server_log, key_names(at.key.parent) if at.key is not None else {})

        def reconnected() -> None:
            for one in end:
                one.restart()

        def dropped(subject: str) -> None:
            for one in end:
                one.dropped(subject)

        ways = (replace(events, again=reconnected), None), (events, dropped), (events, None)
        try:
            for told, drop in ways:
                made.append(await self._connect("coordinator", told, drop))
        except FedseedError:
            for connection in made:
                await connection.close()
            raise
        signatures = Signatures.read(at.key, coordinating=True)
        end.append(NatsCoordinator(Lines(*made), self._subjects, signatures, events, log))
        return end[0]

    async def client(self, name: str, events: Events = QUIET) -> NatsClient:
        end: list[NatsClient] = []

        def reconnected() -> None:
            for one in end:
                one.restart()
            events.again()

        connection = await self._connect(name, replace(events, again=reconnected))
        end.append(NatsClient(connection, self._subjects, name, Signatures.read(self._access.key), events))
        return end[0]

    async def watcher(self) -> NatsWatcher:
        signatures, events = Signatures.read(self._access.key), QUIET
        return NatsWatcher(await self._connect("watcher", events), self._subjects, None, signatures, events)

    async def _connect(self, name: str, events: Events, dropped: Callable[[str], None] | None = None) -> Client:
        return await connect(self._access, self._subjects, name, events, dropped)
