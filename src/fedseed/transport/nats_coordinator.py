"""The coordinator's end of a run on NATS."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import NoStreamResponseError, NotFoundError

from fedseed.errors import NetworkError
from fedseed.transport.base import CoordinatorEnd, Interrupted, LogLostError, Receive, Rejected
from fedseed.transport.nats_end import MORE, OVER, NatsEnd, explained
from fedseed.transport.nats_log import REQUEST_SECONDS, NatsLogWriter, is_missing
from fedseed.transport.pulse import Pulse
from fedseed.transport.server_log import ServerLog
from fedseed.transport.signatures import Chain, Signatures
from fedseed.transport.subjects import Subjects, name_of
from fedseed.transport.warden import Warden

IN_A_ROW = 8  # messages that are looked at before others get a turn, and more are read
STATUS_SECONDS = 0.1  # for which an answer about the status is given again: many may ask
PENDING_BYTES = 16 << 20  # of messages that wait to be looked at; what comes beyond is dropped, and said again
PENDING_MESSAGES = 20_000  # that wait to be looked at: each takes a kilobyte, however little it holds
PENDING_QUESTIONS = 4 << 20  # bytes of questions for the status that wait: they need hold nothing
UNSENT_BYTES = 1 << 20  # of answers, beyond which nobody is answered until they are on their way


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
        self._answered: set[str] = set()  # where it has been sent

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
                self._answer, self._answered = (now, status()), set()
            if message.reply not in self._answered:  # whoever asks again at once has this answer already
                self._answered.add(message.reply)
                await self._reply(message, self._answer[1])

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
                await self._reply(message, reply)

        async def subscribe(subject: str, take: Callable[[Msg], Awaitable[None]], most: int) -> None:
            await self.connection.subscribe(
                subject, cb=take, pending_bytes_limit=most, pending_msgs_limit=PENDING_MESSAGES
            )

        await subscribe(self.subjects.status, answer, PENDING_QUESTIONS)
        await subscribe(f"{self.subjects.root}.up.*.*", deliver, PENDING_BYTES)
        await self._pulse.begin()
        self._warden.begin()
        with explained("the server does not answer"):
            await self.connection.flush()

    async def _reply(self, message: Msg, data: bytes) -> None:
        """Answer, as fast as the server takes it: whoever asks ten thousand times gets so many answers."""
        while self.connection.pending_data_size > UNSENT_BYTES and self.connection.is_connected:
            await asyncio.sleep(0.001)
        await self._publish(message.reply, data)

    def _inboxes(self, *names: str) -> tuple[str, ...]:
        """What the subjects begin with at which somebody may be answered."""
        return tuple(f"{self.subjects.inbox(name)}." for name in names)

    def dropped(self, subject: str) -> None:
        """There was no room for a message: its subject says whose name it came in; that it is theirs is not proven."""
        parts = subject.split(".")
        name = name_of(parts[-2]) if len(parts) > 2 else None
        who = f"somebody as {name}" if name is not None and parts[-3] == "up" else "somebody"
        self._rejected(who, "one of too many messages at once: it was not looked at")

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
        with explained(f"the log of run {self.subjects.run} can't be made"):
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
        with explained(f"the object store {self.subjects.bucket(owner)} can't be made"):
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
        with explained(f"run {self.subjects.run} can't be deleted"):
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
