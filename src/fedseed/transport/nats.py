"""NATS with JetStream: core messages, a stream for the log, an object store for each owner's blobs.

Who has a key signs what it sends, and believes only what is signed (signatures.py).
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import NoStreamResponseError, NotFoundError

from fedseed.errors import NetworkError
from fedseed.transport.base import (
    Access,
    ClientEnd,
    CoordinatorEnd,
    End,
    Interrupted,
    LogLostError,
    Receive,
    Rejected,
    Take,
    Transport,
)
from fedseed.transport.nats_connection import connect
from fedseed.transport.nats_log import (
    PENDING_BYTES,
    REQUEST_SECONDS,
    LogReader,
    NatsFollowing,
    NatsLogWriter,
    is_missing,
)
from fedseed.transport.nats_objects import Objects
from fedseed.transport.pulse import Pulse
from fedseed.transport.server_log import ServerLog, key_names
from fedseed.transport.signatures import Chain, Signatures
from fedseed.transport.subjects import Subjects, name_of
from fedseed.transport.warden import Warden

OVER = "the run is over"
IN_A_ROW = 32  # messages that are looked at before others get a turn
STATUS_SECONDS = 0.1  # for which an answer about the status is given again: many may ask
MORE = "docs/federation.md says what that means"


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """The library's errors as one of ours."""
    try:
        yield
    except (TimeoutError, nats.errors.Error, OSError) as error:
        raise NetworkError(f"{what}: {error or type(error).__name__}") from error


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

        connection = await self._connect("coordinator", refused, reconnected)
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
        self, name: str, refused: Callable[[str], None] | None = None, again: Callable[[], None] | None = None
    ) -> Client:
        return await connect(self._access.url, self._subjects, name, self._access.key, self._access.ca, refused, again)


class NatsEnd(End):
    """What the ends have in common.

    Args:
        connection: to the server.
        subjects: the run's names there.
        owner: whose blobs are put here; None: the coordinator's.
        signatures: sign what is sent, and check what comes.
    """

    largest = 256 * 1024  # a server takes 1 MiB by default

    def __init__(self, connection: Client, subjects: Subjects, owner: str | None, signatures: Signatures) -> None:
        self.connection = connection
        self.subjects = subjects
        self.signatures = signatures
        self.objects = Objects(connection, subjects, signatures)
        self._owner = owner
        self._followers: list[NatsFollowing] = []
        self._told: set[str] = set()

    @property
    def unproven(self) -> str | None:
        """Without the coordinator's public key."""
        if self.signatures.coordinator is not None:
            return None
        why = "the key file does not name the coordinator's key" if self.signatures.own is not None else "no key"
        return f"{why}: it is not proven that what comes is the coordinator's ({MORE})"

    async def status(self, seconds: float) -> bytes | None:
        """What the coordinator answers."""
        return await self._request(self.subjects.status, b"{}", seconds)

    async def _request(self, subject: str, data: bytes, seconds: float) -> bytes | None:
        """Ask the coordinator; None: it has not answered."""
        headers = self.signatures.headers(subject, data)
        try:
            answer = await self.connection.request(subject, data, timeout=seconds, headers=headers)
        except (nats.errors.Error, TimeoutError, OSError):
            return None
        return answer.data if self.signatures.of_coordinator(answer.subject, answer.data, answer.headers) else None

    async def log_end(self) -> int | None:
        """The stream's last sequence number. Raises NetworkError if JetStream is missing, or this key may not ask."""
        info = await self._stream()
        return None if info is None else int(info.state.last_seq)

    async def log_over(self) -> bool:
        """Whether the stream's description says that it was ended. Raises as `log_end` does."""
        info = await self._stream()
        return info is not None and info.config.description == OVER

    async def _stream(self) -> api.StreamInfo | None:
        try:
            return await self.connection.jetstream(timeout=REQUEST_SECONDS).stream_info(self.subjects.stream)
        except NotFoundError:
            return None
        except (TimeoutError, nats.errors.Error) as error:
            raise NetworkError(
                f"the server does not answer about run {self.subjects.run}: has it JetStream, and may this key ask? "
                f"({error})"
            ) from error

    async def follow(self, after: int, take: Take) -> "NatsFollowing":
        """Follow the stream."""
        return self._follow(self._reader(after, take))

    def _reader(self, after: int, take: Take, until: int | None = None) -> LogReader:
        chain = Chain(self.signatures, self.subjects.log)
        return LogReader(self.subjects.run, chain, after, take, self._foreign, self._log_lost, until)

    def _follow(self, reader: LogReader) -> NatsFollowing:
        following = NatsFollowing(
            self.connection, self.subjects.stream, reader, reader.first, stopped=self._followers.remove
        )
        self._followers.append(following)
        return following

    def _foreign(self) -> None:
        """There is something in the log that the coordinator has not written."""
        self._note("the log holds messages that are not the coordinator's: they are passed over")

    def _log_lost(self) -> None:
        """The log was there."""
        self.noted(f"{LogLostError(self.subjects.run)}: waiting until it is put there again by `fedseed serve`")

    def _note(self, text: str) -> None:
        """Say something once."""
        if text not in self._told:
            self._told.add(text)
            self.noted(text)

    def restart(self) -> None:
        """The connection was interrupted: whatever consumers there were may be gone."""
        for following in self._followers:
            following.restart()
        self.objects.restart()

    async def put(self, name: str, data: bytes) -> None:
        """Store an object; an interruption is waited for."""
        with _explained(f"{len(data):,} bytes can't be stored on the server as {name}"):
            await self.objects.put(self._owner, name, data)

    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        """Fetch an object; an interruption is waited for."""
        return await self.objects.get(owner, name, size)

    async def drop(self, owner: str | None, name: str) -> None:
        """Delete an object."""
        await self.objects.drop(owner, name)

    async def close(self) -> None:
        """End the connection."""
        for following in list(self._followers):
            await following.stop()
        with suppress(nats.errors.Error, TimeoutError):
            await self.connection.close()

    async def _publish(self, subject: str, data: bytes) -> None:
        try:
            await self.connection.publish(subject, data, headers=self.signatures.headers(subject, data))
        except nats.errors.OutboundBufferLimitError:
            pass  # an interruption that lasts: what is not kept is lost
        except nats.errors.Error as error:
            raise NetworkError(f"nothing can be sent to run {self.subjects.run}: {error}") from error


class NatsClient(NatsEnd, ClientEnd):
    """A client's end."""

    async def listen(self, take: Callable[[bytes], None]) -> None:
        """Subscribe to what goes to everybody."""

        async def deliver(message: Msg) -> None:
            if not message.data or message.reply.startswith("$JS"):  # a heartbeat, or delivered from a stream
                return
            if self.signatures.of_coordinator(message.subject, message.data, message.headers):
                take(message.data)
            else:
                self._note("somebody else than the coordinator writes to everybody: that is passed over")

        await self.connection.subscribe(self.subjects.down, cb=deliver)
        await self.flush()  # what is broadcast from here on comes

    async def send(self, client: str, what: str, data: bytes) -> None:
        """Publish under the client's name."""
        await self._publish(self.subjects.up(client, what), data)

    async def ask(self, client: str, what: str, data: bytes, seconds: float) -> bytes | None:
        """A request under the client's name."""
        return await self._request(self.subjects.up(client, what), data, seconds)

    async def flush(self) -> None:
        """A round trip to the server."""
        with _explained("the server does not answer"):
            await self.connection.flush()


class NatsCoordinator(NatsEnd, CoordinatorEnd):
    """The coordinator's end.

    Args:
        connection: to the server.
        subjects: the run's names there.
        signatures: sign what is sent, and check what comes.
        log: what the server itself refuses is read from here.
    """

    def __init__(
        self, connection: Client, subjects: Subjects, signatures: Signatures, log: ServerLog | None = None
    ) -> None:
        super().__init__(connection, subjects, None, signatures)
        self._log = log
        self._rejected: Rejected = lambda who, what: None
        self._pulse = Pulse(connection)
        readable = (subjects.stream, f"OBJ_{subjects.bucket()}")  # by whoever has a client's key
        self._warden = Warden(connection, readable, f"{subjects.root}.in.", self._deleted)
        self._head: tuple[int, bytes] | None = None  # of the log's chain, at an entry
        self._answer: tuple[float, bytes] | None = None  # the newest about the status, and since when

    @property
    def unproven(self) -> str | None:
        """Without the clients' public keys."""
        if self.signatures.clients is not None:
            return None
        why = "the key file does not name the clients' keys" if self.signatures.own is not None else "no key"
        return f"{why}: it is not proven who sends a message, and what stands in the log ({MORE})"

    def now(self) -> float:
        """Stands still while the server is silent."""
        return self._pulse.now()

    async def listen(self, receive: Receive, status: Callable[[], bytes], rejected: Rejected) -> None:
        """Subscribe to what clients publish, and to questions."""
        self._rejected = rejected
        root = [*self.subjects.root.split("."), "up"]
        turn = 0

        async def answer(message: Msg) -> None:
            if not message.reply.startswith(self._inboxes("watcher", "coordinator")):
                rejected(
                    "somebody", "a question for the status that is to be answered elsewhere than in an inbox for it"
                )
                return
            now = time.monotonic()
            if self._answer is None or now > self._answer[0] + STATUS_SECONDS:
                self._answer = now, status()
            await self._publish(message.reply, self._answer[1])

        async def deliver(message: Msg) -> None:
            nonlocal turn
            turn += 1
            if turn % IN_A_ROW == 0:  # a flood must not keep others from being heard
                await asyncio.sleep(0)
            parts = message.subject.split(".")
            status = message.headers is not None and "Status" in message.headers  # a heartbeat
            if message.reply.startswith("$JS") or status or parts[:-2] != root:
                rejected("a consumer", "not sent by a client: delivered from a stream")
                return
            sender = name_of(parts[-2])
            if sender is None:
                rejected("somebody", "a message in the name of nobody")
                return
            if not self.signatures.of_client(sender, message.subject, message.data, message.headers):
                rejected("somebody", f"a message in the name of {sender[:100]} without a signature of its key")
                return
            if message.reply and not message.reply.startswith(self._inboxes(sender)):
                rejected(sender, "its question is to be answered elsewhere than in its inbox")
                return
            reply = await receive(sender, parts[-1], message.data)
            if reply is not None and message.reply:
                await self._publish(message.reply, reply)

        await self.connection.subscribe(self.subjects.status, cb=answer)
        up = f"{self.subjects.root}.up.*.*"
        await self.connection.subscribe(up, cb=deliver, pending_bytes_limit=PENDING_BYTES)
        await self._pulse.begin()
        self._warden.begin()
        with _explained("the server does not answer"):
            await self.connection.flush()

    def _inboxes(self, *names: str) -> tuple[str, ...]:
        """What the subjects begin with at which somebody may be answered."""
        return tuple(f"{self.subjects.inbox(name)}." for name in names)

    def together(self, one: str, other: str) -> bool:
        """Whether they have the same key."""
        return self.signatures.together(one, other)

    def poll(self) -> None:
        """Read on in the server's log."""
        if self._log is not None:
            for who, reason in self._log.new():
                self._rejected(who, reason)

    async def broadcast(self, data: bytes) -> None:
        """Publish to everybody."""
        await self._publish(self.subjects.down, data)

    async def create_log(self, copies: int) -> None:
        """Make the stream."""
        settings = api.StreamConfig(
            name=self.subjects.stream,
            subjects=[self.subjects.log],
            storage=api.StorageType.FILE,
            num_replicas=copies,
            allow_direct=False,
            deny_delete=True,
            deny_purge=True,
        )
        with _explained(f"the log of run {self.subjects.run} can't be made"):
            await self.connection.jetstream(timeout=REQUEST_SECONDS).add_stream(settings)

    async def entries(self, last: int) -> list[bytes]:
        """Those that count."""
        found: list[bytes] = []
        reader = self._reader(0, lambda number, data: found.append(data), last)
        if last:
            following = self._follow(reader)
            await reader.complete.wait()
            await following.stop()
        self._head = last, reader.chain.head
        return found

    def writer(self, last: int) -> "NatsLogWriter":
        """What publishes to the stream."""

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

    def _deleted(self, count: int) -> None:
        for _ in range(count):
            self._rejected("somebody", "the server was to deliver the run's log or objects to others")

    async def put(self, name: str, data: bytes) -> None:
        """Store an object; an interruption is waited for."""
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
        """Make a bucket, if there is none."""
        with _explained(f"the object store {self.subjects.bucket(owner)} can't be made"):
            await self.objects.allow(owner, most)

    async def mark_over(self) -> None:
        """Describe the stream so; a run is no less over if that fails."""
        with suppress(nats.errors.Error, TimeoutError, NetworkError):
            info = await self._stream()
            if info is not None:
                settings = info.config.evolve(description=OVER)
                await self.connection.jetstream(timeout=REQUEST_SECONDS).update_stream(settings)

    async def delete(self) -> None:
        """Delete the stream and the buckets."""
        stream = self.connection.jetstream(timeout=REQUEST_SECONDS)
        buckets = f"OBJ_{self.subjects.stream}--"
        with _explained(f"run {self.subjects.run} can't be deleted"):
            found: list[str] = []
            while page := await stream.streams_info(offset=len(found)):
                found += [str(info.config.name) for info in page]
            for name in found:
                if name == self.subjects.stream or name.startswith(buckets):
                    await stream.delete_stream(name)

    async def close(self) -> None:
        """End the connection."""
        await self._warden.stop()
        await self._pulse.stop()
        await super().close()
