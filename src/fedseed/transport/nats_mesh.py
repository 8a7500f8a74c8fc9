"""Nodes without a coordinator on NATS: a subject for each node, which only that node writes to.

A node publishes on its own server, and receives each neighbour's messages on the neighbour's
server. This may be one server for all, connected servers (a cluster, leaf nodes), or an independent
server at each site. No stream is used: nodes keep their logs themselves, and repeat missing
entries. So the servers need no JetStream, and all are equal.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import nats.errors
from nats.aio.msg import Msg

from fedseed.errors import NetworkError
from fedseed.transport.base import QUIET, Access, Events, end_task
from fedseed.transport.mesh import Hear, MeshEnd, MeshTransport
from fedseed.transport.nats import network_errors, wait_for_server
from fedseed.transport.nats_address import read_address
from fedseed.transport.nats_connection import Guarded, connect
from fedseed.transport.signatures import Signatures
from fedseed.transport.subjects import Subjects, name_of

RETRY_SECONDS = 2.0  # seconds between attempts to reach a neighbour's server
# most bytes of a neighbour's messages that wait to be processed; further ones are dropped, and sent
# again
PENDING_BYTES = 16 << 20
PLACE = 3  # of the sender's name among the parts of a subject


class NatsMesh(MeshTransport):
    """A mesh on one NATS server or several.

    Args:
        access: this node's server, its key and certificates.
        run: the run's name.
        servers: addresses of neighbours' own servers, by name; others are on this node's.
    """

    def __init__(self, access: Access, run: str, servers: Mapping[str, str] | None = None) -> None:
        self._access = access
        self._subjects = Subjects(run)
        self._servers = dict(servers or {})
        for url in (access.url, *self._servers.values()):
            read_address(url)

    async def node(
        self, name: str, neighbours: Sequence[str], events: Events = QUIET
    ) -> "NatsMeshEnd":
        signatures = Signatures.from_key_file(self._access.key)
        connection = await connect(self._access, self._subjects, name, events)
        by_server: dict[str, list[str]] = {}
        for neighbour in neighbours:
            url = self._servers.get(neighbour, self._access.url)
            by_server.setdefault(url, []).append(neighbour)
        return NatsMeshEnd(
            name, self._subjects, self._access, connection, by_server, signatures, events
        )


class NatsMeshEnd(MeshEnd):
    """A node's end on NATS.

    Args:
        name: the node's name.
        subjects: the run's subjects.
        access: how this node reaches servers.
        connection: the connection to its own server.
        by_server: its neighbours, by the address of the server on which they are heard.
        signatures: its keys.
        events: callbacks.
    """

    def __init__(
        self,
        name: str,
        subjects: Subjects,
        access: Access,
        connection: Guarded,
        by_server: Mapping[str, Sequence[str]],
        signatures: Signatures,
        events: Events,
    ) -> None:
        self._name = name
        self._subjects = subjects
        self._access = access
        self._connection = connection
        self._by_server = by_server
        self._events = events
        self._others: list[Guarded] = []  # connections to neighbours' servers
        self._tasks: list[asyncio.Task[None]] = []
        self._take: Hear = lambda sender, data: None
        if signatures.clients is None:
            reason = "no key"
            if signatures.own is not None:
                reason = "the key file does not name the nodes' keys"
            self.unproven = (
                f"{reason}: the author of a step is not verified (see docs/decentralised.md)"
            )

    async def listen(self, take: Hear) -> None:
        self._take = take
        for url, neighbours in self._by_server.items():
            if url == self._access.url:
                await self._subscribe(self._connection, neighbours)
            else:
                self._tasks.append(asyncio.create_task(self._reach(url, neighbours)))

    async def _reach(self, url: str, neighbours: Sequence[str]) -> None:
        """Connect to neighbours' server as soon as it is there, and hear them."""
        access = Access(url, self._access.key, self._access.ca)
        is_noted = False
        while True:
            try:
                connection = await connect(access, self._subjects, self._name, self._events)
                self._others.append(connection)
                await self._subscribe(connection, neighbours)
            except NetworkError as error:
                if not is_noted:
                    self._events.noted(f"waiting for {', '.join(neighbours)}: {error}")
                    is_noted = True
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _subscribe(self, connection: Guarded, neighbours: Sequence[str]) -> None:
        with network_errors(f"messages of neighbours of {self._name} can't be received"):
            for neighbour in neighbours:
                for receiver in (None, self._name):
                    await connection.subscribe(
                        self._subjects.from_node(neighbour, receiver),
                        cb=partial(self._deliver, neighbour),
                        pending_bytes_limit=PENDING_BYTES,
                    )
        await wait_for_server(connection)

    async def _deliver(self, neighbour: str, message: Msg) -> None:
        parts = message.subject.split(".")
        if len(parts) > PLACE and name_of(parts[PLACE]) == neighbour:
            self._take(neighbour, message.data)

    async def send(self, data: bytes, receivers: Sequence[str]) -> None:
        one = receivers[0] if len(receivers) == 1 else None
        subject = self._subjects.from_node(self._name, one)
        # messages that are lost in a long interruption are sent again
        lost = nats.errors.OutboundBufferLimitError
        with network_errors(f"{self._name} can send nothing"), suppress(lost):
            await self._connection.publish(subject, data)

    async def close(self) -> None:
        for task in self._tasks:
            await end_task(task)
        for connection in (self._connection, *self._others):
            with suppress(nats.errors.Error, TimeoutError):
                await connection.close()
