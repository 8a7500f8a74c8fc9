"""NATS with JetStream: core messages, a stream for the log, an object store for each owner's blobs.

Who has a key signs what it sends, and believes only what is signed (signatures.py).
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import ClassVar

import nats.errors
from nats.js import api
from nats.js.errors import NoStreamResponseError, NotFoundError

from fedseed.errors import FedseedError, NetworkError
from fedseed.transport.base import (
    QUIET,
    Access,
    CoordinatorEnd,
    Events,
    Interrupted,
    LogLostError,
    Receive,
    Rejected,
    Transport,
)
from fedseed.transport.nats_connection import Guarded, connect
from fedseed.transport.nats_end import MORE, NatsClient, NatsEnd, NatsWatcher, explained, settled
from fedseed.transport.nats_hearing import Answer, Hearing, Pulse, Questions, room_to_send
from fedseed.transport.nats_log import REQUEST_SECONDS, NatsLogWriter, is_missing
from fedseed.transport.server_log import ServerLog, key_names
from fedseed.transport.signatures import Chain, Signatures
from fedseed.transport.subjects import Subjects, name_of


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

    async def coordinator(self, events: Events = QUIET) -> "NatsCoordinator":
        """The coordinator's end. Raises FedseedError also if the server's log can't be read."""
        at, lines, log = self._access, list[Guarded](), None
        if at.server_log is not None:
            log = ServerLog(at.server_log, key_names(at.key.parent) if at.key is not None else {})
        try:
            for _ in range(3):
                lines.append(await connect(at, self._subjects, "coordinator", events))
        except FedseedError:
            for connection in lines:
                await connection.close()
            raise
        return NatsCoordinator(lines, self._subjects, Signatures.read(at.key, coordinating=True), events, log)

    async def client(self, name: str, events: Events = QUIET) -> NatsClient:
        connection = await connect(self._access, self._subjects, name, events)
        return NatsClient(connection, self._subjects, name, Signatures.read(self._access.key), events)

    async def watcher(self) -> NatsWatcher:
        connection = await connect(self._access, self._subjects, "watcher")
        return NatsWatcher(connection, self._subjects, None, Signatures.read(self._access.key), QUIET)


class NatsCoordinator(NatsEnd, CoordinatorEnd):
    """The coordinator's end.

    Args:
        lines: three connections to the server: for the log, objects, and what goes to everybody; for what clients send;
            for questions about the status.
        subjects: the run's names there.
        signatures: sign what is sent, and check what comes.
        events: told what happens.
        log: what the server itself refuses is read from here.
    """

    def __init__(
        self, lines: Sequence[Guarded], subjects: Subjects, signatures: Signatures, events: Events,
        log: ServerLog | None = None,
    ) -> None:  # fmt: skip
        own, self._clients, self._askers = lines
        super().__init__(own, subjects, None, signatures, events)
        self._clients.dropped = self.dropped
        self._log = log
        self._rejected: Rejected = lambda who, what: None
        self._pulse = Pulse(self._clients)
        self._hearing: Hearing | None = None  # once it listens
        self._questions: Questions | None = None
        self.unproven, self.keys = None, None
        if signatures.clients is not None:
            self.keys = {name: frozenset(map(bytes, keys)) for name, keys in signatures.clients.items()}
        else:
            why = "the key file does not name the clients' keys" if signatures.own is not None else "no key"
            self.unproven = f"{why}: it is not proven who sends a message, and what stands in the log ({MORE})"

    def now(self) -> float:
        return self._pulse.now()

    async def listen(self, receive: Receive, status: Callable[[], bytes], rejected: Rejected) -> None:
        self._rejected, clients, askers, subjects = rejected, self._clients, self._askers, self.subjects
        self._questions = Questions(askers, subjects, status, self._answers(askers), rejected)
        answers = self._answers(self.connection)
        self._hearing = Hearing(clients, subjects, self.signatures, receive, answers, rejected)
        for part in (self._questions, self._hearing, self._pulse):
            await part.begin()
        with explained("the server does not answer"):
            for connection in (askers, clients):
                await settled(connection)

    def _answers(self, connection: Guarded) -> Answer:
        """What sends answers on a connection."""

        async def answer(subject: str, data: bytes) -> None:
            await room_to_send(connection)
            await self._publish(subject, data, connection)

        return answer

    def dropped(self, subject: str) -> None:
        """There was no room for a message: its subject says whose name it came in."""
        parts = subject.split(".")
        name = name_of(parts[-2]) if len(parts) > 2 and parts[-3] == "up" else None
        if self._hearing is not None:
            self._hearing.dropped(name)

    def poll(self) -> None:
        if self._log is not None:
            for who, reason in self._log.new():
                self._rejected(who, reason)

    async def broadcast(self, data: bytes, to: Collection[str] | None = None) -> None:
        await self._publish(self.subjects.down, data)

    async def writer(self, last: int | None, copies: int = 1) -> "NatsLogWriter":
        if last is None:
            last, settings = 0, api.StreamConfig(
                name=self.subjects.stream, subjects=[self.subjects.log], storage=api.StorageType.FILE,
                num_replicas=copies, allow_direct=False, deny_delete=True, deny_purge=True,
                republish=api.RePublish(src=self.subjects.log, dest=self.subjects.entries),
            )  # fmt: skip
            with explained(f"the log of run {self.subjects.run} can't be made"):
                await self.connection.jetstream(timeout=REQUEST_SECONDS).add_stream(settings)

        async def chain() -> Chain:
            made = Chain(self.signatures, self.subjects.log)
            if made.checks and last:
                if self._head is None or self._head[0] != last:
                    await self.entries(last)
                assert self._head is not None
                made.head = self._head[1]
            return made

        return NatsLogWriter(self.connection, self.subjects, last, chain, self._foreign)

    def _foreign(self) -> None:
        self._rejected("somebody", "a message in the log that is not the coordinator's")

    async def put(self, name: str, data: bytes) -> None:
        try:
            await super().put(name, data)
        except NetworkError as error:
            with suppress(Interrupted):
                if isinstance(error.__cause__, (NoStreamResponseError, NotFoundError)) and await is_missing(
                    self.connection, self.subjects.stream
                ):
                    raise LogLostError(self.subjects.run) from error
            raise

    async def allow(self, owner: str | None, most: int | None) -> None:
        with explained(f"the object store {self.subjects.bucket(owner)} can't be made"):
            await self.objects.allow(owner, most)

    async def delete(self) -> None:
        stream = self.connection.jetstream(timeout=REQUEST_SECONDS)
        buckets = f"OBJ_{self.subjects.stream}--"
        with explained(f"run {self.subjects.run} can't be deleted"):
            found: list[str] = []
            while page := await stream.streams_info(offset=len(found)):
                found += [str(info.config.name) for info in page]
            for name in found:
                if name == self.subjects.stream or name.startswith(buckets):
                    await stream.delete_stream(name)

    async def close(self) -> None:
        for part in (self._pulse, self._hearing, self._questions):
            if part is not None:
                await part.stop()
        for connection in (self._askers, self._clients):
            with suppress(nats.errors.Error, TimeoutError):
                await connection.close()
        await super().close()
