"""The coordinator's end of a run on NATS."""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

import nats.errors
from nats.aio.client import Client
from nats.js import api
from nats.js.errors import NoStreamResponseError, NotFoundError

from fedseed.errors import NetworkError
from fedseed.transport.base import CoordinatorEnd, Events, Interrupted, LogLostError, Receive, Rejected
from fedseed.transport.nats_end import MORE, NatsEnd, explained, settled
from fedseed.transport.nats_hearing import Answer, Hearing, Questions, room_to_send
from fedseed.transport.nats_log import REQUEST_SECONDS, NatsLogWriter, is_missing
from fedseed.transport.pulse import Pulse
from fedseed.transport.server_log import ServerLog
from fedseed.transport.signatures import Chain, Signatures
from fedseed.transport.subjects import Subjects, name_of
from fedseed.transport.warden import Warden


@dataclass(frozen=True)
class Lines:
    """A coordinator's connections to the server.

    Args:
        log: for the log, objects, and what goes to everybody.
        clients: for what clients send.
        questions: for questions about the status.
    """

    log: Client
    clients: Client
    questions: Client


class NatsCoordinator(NatsEnd, CoordinatorEnd):
    """The coordinator's end.

    Args:
        lines: to the server.
        subjects: the run's names there.
        signatures: sign what is sent, and check what comes.
        events: told what happens.
        log: what the server itself refuses is read from here.
    """

    def __init__(
        self, lines: Lines, subjects: Subjects, signatures: Signatures, events: Events, log: ServerLog | None = None
    ) -> None:
        super().__init__(lines.log, subjects, None, signatures, events)
        self._lines = lines
        self._log = log
        self._rejected: Rejected = lambda who, what: None
        self._pulse = Pulse(lines.clients)
        readable = (subjects.stream, f"OBJ_{subjects.bucket()}")  # by whoever has a client's key
        self._warden = Warden(lines.log, readable, f"{subjects.root}.in.", self._deleted)
        self._head: tuple[int, bytes] | None = None  # of the log's chain, at an entry
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
        self._rejected = rejected
        lines, shared = self._lines, (self.subjects, self.signatures)
        self._questions = Questions(lines.questions, self.subjects, status, self._answers(lines.questions), rejected)
        self._hearing = Hearing(lines.clients, *shared, receive, self._answers(lines.log), rejected)
        await self._questions.begin()
        await self._hearing.begin()
        await self._pulse.begin()
        self._warden.begin()
        with explained("the server does not answer"):
            for connection in (lines.questions, lines.clients):
                await settled(connection)

    def _answers(self, connection: Client) -> Answer:
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

    async def entries(self, last: int) -> list[bytes]:
        found: list[bytes] = []
        reader = self._reader(0, lambda number, data: found.append(data), last)
        if last:
            stop = self._follow(reader)
            await reader.complete.wait()
            await stop()
        self._head = last, reader.chain.head
        return found

    async def writer(self, last: int | None, copies: int = 1) -> "NatsLogWriter":
        if last is None:
            await self._create_log(copies)
            last = 0

        async def chain() -> Chain:
            made = Chain(self.signatures, self.subjects.log)
            if made.checks and last:
                if self._head is None or self._head[0] != last:
                    await self.entries(last)
                assert self._head is not None
                made.head = self._head[1]
            return made

        return NatsLogWriter(self.connection, self.subjects, last, chain, self._foreign)

    async def _create_log(self, copies: int) -> None:
        settings = api.StreamConfig(
            name=self.subjects.stream,
            subjects=[self.subjects.log],
            storage=api.StorageType.FILE,
            num_replicas=copies,
            allow_direct=False,
            deny_delete=True,
            deny_purge=True,
        )
        with explained(f"the log of run {self.subjects.run} can't be made"):
            await self.connection.jetstream(timeout=REQUEST_SECONDS).add_stream(settings)

    def _foreign(self) -> None:
        self._rejected("somebody", "a message in the log that is not the coordinator's")

    def _deleted(self, count: int) -> None:
        for _ in range(count):
            self._rejected("somebody", "the server was to deliver the run's log or objects to others")

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
        for part in (self._warden, self._pulse, self._hearing, self._questions):
            if part is not None:
                await part.stop()
        for connection in (self._lines.questions, self._lines.clients):
            with suppress(nats.errors.Error, TimeoutError):
                await connection.close()
        await super().close()
