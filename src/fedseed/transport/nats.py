"""NATS with JetStream: core messages, a stream for the log, an object store for each owner's blobs.

A side with a key signs its messages, and believes only signed ones (signatures.py).
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import nats.errors
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import NoStreamResponseError, NotFoundError

from fedseed.errors import FedseedError, NetworkError
from fedseed.text import show_text
from fedseed.transport import base
from fedseed.transport.nats_address import DEFAULT_PORTS
from fedseed.transport.nats_connection import REQUEST_SECONDS, RETRY_SECONDS, Guarded, connect
from fedseed.transport.nats_hearing import Hearing, Pulse, Questions
from fedseed.transport.nats_log import (
    JETSTREAM,
    JETSTREAM_AGAIN,
    LOST_SECONDS,
    NO_JETSTREAM,
    OVER,
    LogFollower,
    NatsLogWriter,
    is_missing,
    is_without_jetstream,
    read_stream,
    with_remedy,
)
from fedseed.transport.nats_objects import ObjectsEnd
from fedseed.transport.signatures import Chain, Signatures
from fedseed.transport.subjects import Subjects, name_of
from fedseed.transport.troubles import Troubles

AGAIN_SECONDS = 1.0  # seconds after which a question is repeated, as it may have been dropped
REPEATS = "repeats"  # the kind of trouble (`Troubles`)
UNSENT_BYTES = 1 << 20  # bytes of pending answers above which no further answer is sent
NOBODY_LISTENS = "503"  # header of the server's own answers
MORE = "docs/federation.md says what that means"


@contextmanager
def network_errors(failure: str, stream: str = "") -> Iterator[None]:
    """Raise the library's errors as one of fedseed's.

    Args:
        failure: the beginning of the error's text: what can't be done.
        stream: the name of the stream that it concerns.
    """
    try:
        yield
    except (TimeoutError, nats.errors.Error, OSError) as error:
        raise NetworkError(f"{failure}: {with_remedy(error, stream)}") from error


def is_receipt(data: bytes) -> bool:
    """Return whether an answer is a server's: it confirms that a stream has stored the question."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and "stream" in answer and bool({"seq", "error"} & set(answer))


@dataclass(eq=False)
class NatsEnd(ObjectsEnd):
    """The common part of the ends."""

    events: base.Events  # callbacks

    largest = 256 * 1024  # a server takes 1 MiB by default
    asks_as: ClassVar[str] = "watcher"  # the name under which it asks for the status
    # number of answers "nobody listens", one a second, before it gives up: a coordinator may come
    # back
    silences: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._followers: list[LogFollower] = []
        self._head = 0, b""  # the last entry that was read, and the head of the log's chain there
        self._notes: set[str] = set()
        if self.signatures.coordinator is None:
            reason = "no key"
            if self.signatures.own is not None:
                reason = "the key file does not name the coordinator's key"
            self.unproven = (
                f"{reason}: it is not proven that what comes is the coordinator's ({MORE})"
            )

    async def status(self, seconds: float) -> bytes | None:
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        silences = itertools.count(1)

        async def take(message: Msg) -> None:
            if answer.done():
                return
            code = (message.headers or {}).get("Status")
            if code == NOBODY_LISTENS and message.subject == inbox:
                if next(silences) == self.silences:
                    answer.set_result(None)
            elif is_receipt(message.data):
                self._note_receipt(message.data)
            elif self.signatures.of_coordinator(message.subject, message.data, message.headers):
                answer.set_result(message.data)

        inbox, question = self.connection.new_inbox(), b"{}"
        listening = []
        try:
            async with asyncio.timeout(seconds):
                for subject in (inbox, self.subjects.statuses(self.asks_as)):
                    listening.append(await self.connection.subscribe(subject, cb=take))
                headers = self.signatures.headers(self.subjects.status, question)
                while not answer.done():
                    await self.connection.publish(
                        self.subjects.status, question, reply=inbox, headers=headers
                    )
                    await asyncio.wait({answer}, timeout=AGAIN_SECONDS)
                return await answer
        except (nats.errors.Error, TimeoutError, OSError):
            return None
        finally:
            with suppress(nats.errors.Error):
                for subscription in listening:
                    await subscription.unsubscribe()

    async def log(self) -> base.Log | None:
        try:
            info = await self.connection.jetstream(timeout=REQUEST_SECONDS).stream_info(
                self.subjects.stream
            )
        except NotFoundError:
            self.connection.troubles.end(JETSTREAM, JETSTREAM_AGAIN)
            return None
        except (TimeoutError, nats.errors.Error) as error:
            if is_without_jetstream(error):
                self.connection.troubles.report(JETSTREAM, NO_JETSTREAM)
                raise NetworkError(NO_JETSTREAM) from error
            raise NetworkError(
                f"the server does not answer about run {self.subjects.run}: check that it has "
                f"JetStream, and that this key may ask ({error})"
            ) from error
        self.connection.troubles.end(JETSTREAM, JETSTREAM_AGAIN)
        await self._check_settings(info.config)
        # if all entries are deleted, the first number is above the last one
        return base.Log(
            int(info.state.last_seq),
            info.config.description == OVER,
            cut=int(info.state.first_seq) > 1,
        )

    async def _check_settings(self, config: api.StreamConfig) -> None:
        """Check the settings of the log's stream, and correct those that this party may change."""

    async def follow(self, last_number: int, take: base.Take) -> base.Stop:
        chain = Chain(self.signatures, self.subjects.log)
        follower = LogFollower(
            self.connection,
            self.subjects,
            chain,
            last_number,
            take,
            self._foreign,
            self._log_lost,
        )
        self._followers.append(follower)
        return follower.stop

    async def entries(self, last: int | None = None) -> list[bytes]:
        while True:
            try:
                return await self.connection.unless_interrupted(self._entries(last))
            except base.Interrupted:
                await asyncio.sleep(RETRY_SECONDS)
            except NotFoundError as error:
                raise base.LogLostError(self.subjects.run) from error

    async def _entries(self, last: int | None) -> list[bytes]:
        entries: list[bytes] = []
        chain = Chain(self.signatures, self.subjects.log)
        sequence = 0
        async with aclosing(read_stream(self.connection, self.subjects.stream)) as messages:
            async for message in messages:
                if message.sequence > sequence + 1:
                    raise base.LogCutError(self.subjects.run)
                sequence = message.sequence
                if last is not None and message.sequence > last:
                    break
                if chain.take(message.data, message.headers):
                    entries.append(message.data)
                else:
                    self._foreign()
        self._head = last or 0, chain.head
        return entries

    def _foreign(self) -> None:
        self._note("the log holds messages that are not the coordinator's: they are ignored")

    def _log_lost(self, error: NetworkError, for_good: bool) -> None:
        command, advice = "fedseed serve", ""
        if isinstance(error, base.LogUnusableError):
            command = "fedseed serve --fresh"
            advice = "; if the run is over, `fedseed export` makes the model from its orbit"
        if for_good:
            self.events.failed(
                NetworkError(
                    f"{error}, and it was not restored: start `{command}`, then this again{advice}"
                )
            )
        else:
            self.events.noted(
                f"{error}: waiting until it is restored by `{command}`, at most {LOST_SECONDS:.0f} "
                f"s{advice}"
            )

    def _note(self, text: str) -> None:
        """Show a text once."""
        if text not in self._notes:
            self._notes.add(text)
            self.events.noted(text)

    def _note_receipt(self, receipt: bytes) -> None:
        """Warn that a stream answers this side's questions in place of the coordinator."""
        stream = show_text(json.loads(receipt)["stream"])
        self._note(
            f"the server's stream {stream} stores the messages of run {self.subjects.run} and "
            "answers questions to the coordinator; its answers are ignored: remove "
            f"{self.subjects.root}.> from its subjects"
        )

    async def close(self) -> None:
        for follower in self._followers:
            await follower.stop()
        with suppress(nats.errors.Error, TimeoutError):
            await self.connection.close()

    async def _publish(self, subject: str, data: bytes, connection: Guarded | None = None) -> None:
        headers = self.signatures.headers(subject, data)
        # during a long interruption messages that are not stored are lost
        lost = nats.errors.OutboundBufferLimitError
        with network_errors(f"nothing can be sent to run {self.subjects.run}"), suppress(lost):
            await (connection or self.connection).publish(subject, data, headers=headers)


async def wait_for_server(connection: Guarded) -> None:
    """Wait until the server has processed all earlier subscriptions and messages.

    nats-py writes the ping of a flush ahead of pending data; a second flush comes after all of it.
    """
    with network_errors("the server does not answer"):
        for _ in range(2):
            await connection.flush()


class NatsClient(NatsEnd, base.ClientEnd):
    """A client's end."""

    async def listen(self, take: Callable[[bytes], None]) -> None:

        async def deliver(message: Msg) -> None:
            if self.signatures.of_coordinator(message.subject, message.data, message.headers):
                take(message.data)
            else:
                self._note("broadcasts that are not the coordinator's are ignored")

        await self.connection.subscribe(self.subjects.down, cb=deliver)
        await wait_for_server(self.connection)  # later broadcasts are received

    async def send(self, client: str, kind: str, data: bytes) -> None:
        await self._publish(self.subjects.from_client(client, kind), data)

    async def ask(self, client: str, kind: str, data: bytes, seconds: float) -> bytes | None:
        subject = self.subjects.from_client(client, kind)
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        async def take(message: Msg) -> None:
            if answer.done():
                return
            if (message.headers or {}).get("Status") == NOBODY_LISTENS:
                answer.set_result(None)
            elif is_receipt(message.data):
                self._note_receipt(message.data)
            elif self.signatures.of_coordinator(message.subject, message.data, message.headers):
                answer.set_result(message.data)

        inbox = self.connection.new_inbox()
        headers = self.signatures.headers(subject, data)
        listening = None
        try:
            async with asyncio.timeout(seconds):
                listening = await self.connection.subscribe(inbox, cb=take)
                await self.connection.publish(subject, data, reply=inbox, headers=headers)
                return await answer
        except (nats.errors.Error, TimeoutError, OSError):
            return None
        finally:
            if listening is not None:
                with suppress(nats.errors.Error, OSError):
                    await listening.unsubscribe()


class NatsCoordinator(NatsEnd, base.CoordinatorEnd):
    """The coordinator's end.

    Args: those of `NatsEnd` except connection and owner, and `lines`: three connections to the
        server: for the log, objects and broadcasts; for the clients' messages; for questions about
        the status.
    """

    asks_as = "coordinator"
    silences = 1

    def __init__(
        self,
        lines: Sequence[Guarded],
        subjects: Subjects,
        signatures: Signatures,
        events: base.Events,
    ) -> None:
        main_connection, self._clients, self._askers = lines
        super().__init__(main_connection, subjects, None, signatures, events)
        self._clients.dropped = self.dropped
        self._rejected: base.Rejected = lambda sender, reason: None
        self._pulse = Pulse(self._clients)
        self._hearing: Hearing | None = None  # set by `listen`
        self._questions: Questions | None = None
        self.unproven, self.keys = None, None
        if signatures.clients is not None:
            self.keys = {
                name: frozenset(map(bytes, keys)) for name, keys in signatures.clients.items()
            }
            return
        cause = "no key"
        if signatures.own is not None:
            cause = "the key file does not name the clients' keys"
        self.unproven = (
            f"{cause}: neither the sender of a message nor the log's content is verified ({MORE})"
        )

    def now(self) -> float:
        return self._pulse.now()

    async def listen(
        self, receive: base.Receive, status: Callable[[], bytes], rejected: base.Rejected
    ) -> None:
        self._rejected = rejected
        clients, askers, subjects = self._clients, self._askers, self.subjects
        self._questions = Questions(askers, subjects, status, partial(self._answer, askers))
        answer = partial(self._answer, self.connection)
        self._hearing = Hearing(clients, subjects, self.signatures, receive, answer, rejected)
        for part in (self._questions, self._hearing, self._pulse):
            await part.begin()
        for connection in (askers, clients):
            await wait_for_server(connection)

    async def _answer(self, connection: Guarded, subject: str, data: bytes) -> None:
        """Send an answer once the server has taken most of the earlier ones.

        So ten thousand answers go as fast as the server reads.
        """
        while connection.pending_data_size > UNSENT_BYTES and connection.is_connected:
            await asyncio.sleep(0.001)
        await self._publish(subject, data, connection)

    def dropped(self, subject: str) -> None:
        """Report a message that was dropped for lack of room; its subject names the client."""
        parts = subject.split(".")
        name = name_of(parts[-2]) if len(parts) > 2 and parts[-3] == "up" else None
        if self._hearing is not None:
            self._hearing.dropped(name)

    async def broadcast(self, data: bytes, receivers: Collection[str] | None = None) -> None:
        await self._publish(self.subjects.down, data)

    def _republish(self) -> api.RePublish:
        """Return the setting by which the server repeats each entry to those who follow."""
        return api.RePublish(src=self.subjects.log, dest=self.subjects.entries)

    async def _check_settings(self, config: api.StreamConfig) -> None:
        """Make the server repeat entries again if an operator's edit has ended it. Otherwise
        clients learn of a step only when they ask, seconds later.
        """
        wanted, current = self._republish(), config.republish
        troubles, stream = self.connection.troubles, self.subjects.stream
        if config.sealed or (current and (current.src, current.dest) == (wanted.src, wanted.dest)):
            return troubles.end(REPEATS, f"the stream {stream} repeats entries to clients again")
        troubles.report(
            REPEATS,
            f"the stream {stream} does not repeat entries to clients, so they learn of each step "
            f"seconds late; set its republish to {wanted.src} > {wanted.dest}",
            0.0,
        )
        with suppress(nats.errors.Error, TimeoutError):  # the next check tries it again
            await self.connection.jetstream(timeout=REQUEST_SECONDS).update_stream(
                config.evolve(republish=wanted)
            )

    async def writer(self, last: int | None, copies: int = 1) -> "NatsLogWriter":
        if last is None:
            last = 0
            settings = api.StreamConfig(
                name=self.subjects.stream,
                subjects=[self.subjects.log],
                storage=api.StorageType.FILE,
                num_replicas=copies,
                allow_direct=False,
                deny_delete=True,
                deny_purge=True,
                republish=self._republish(),
            )
            with network_errors(
                f"the log of run {self.subjects.run} can't be made", self.subjects.stream
            ):
                await self.connection.jetstream(timeout=REQUEST_SECONDS).add_stream(settings)

        chain = Chain(self.signatures, self.subjects.log)
        if chain.checks and last:
            if self._head[0] != last:
                await self.entries(last)
            chain.head = self._head[1]
        return NatsLogWriter(
            self.subjects.run,
            last,
            self.connection,
            self.subjects,
            chain,
            self._foreign,
        )

    def _foreign(self) -> None:
        self._rejected("somebody", "a message in the log that is not the coordinator's")

    async def put(self, name: str, data: bytes) -> None:
        try:
            await super().put(name, data)
        except NetworkError as error:
            no_store = isinstance(error.__cause__, (NoStreamResponseError, NotFoundError))
            with suppress(base.Interrupted):
                if no_store and await is_missing(self.connection, self.subjects.stream):
                    raise base.LogLostError(self.subjects.run) from error
            raise

    async def allow(self, owner: str | None, byte_limit: int | None) -> None:
        bucket = self.subjects.bucket(owner)
        size = "" if byte_limit is None else f" for {byte_limit:,} bytes"
        with network_errors(f"the object store {bucket}{size} can't be made"):
            try:
                await self._stream.object_store(bucket)
            except NotFoundError:
                settings = api.ObjectStoreConfig(
                    bucket=bucket, max_bytes=-1 if byte_limit is None else byte_limit
                )
                await self._stream.create_object_store(bucket, settings)

    async def delete(self) -> None:
        stream = self.connection.jetstream(timeout=REQUEST_SECONDS)
        buckets = f"OBJ_{self.subjects.stream}--"
        with network_errors(f"run {self.subjects.run} can't be deleted"):
            names: list[str] = []
            while page := await stream.streams_info(offset=len(names)):
                names += [str(info.config.name) for info in page]
            for name in names:
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


class NatsTransport(base.Transport):
    """A run on a NATS server.

    Args:
        access: how to reach the server.
        run: the run's name.
    """

    schemes: ClassVar[Sequence[str]] = tuple(DEFAULT_PORTS)

    def __init__(self, access: base.Access, run: str) -> None:
        self._access = access
        self._subjects = Subjects(run)

    async def coordinator(self, events: base.Events = base.QUIET) -> "NatsCoordinator":
        access, lines, troubles = self._access, list[Guarded](), Troubles(events.noted)
        try:
            for _ in range(3):
                lines.append(await connect(access, self._subjects, "coordinator", events, troubles))
        except FedseedError:
            for connection in lines:
                await connection.close()
            raise
        signatures = Signatures.from_key_file(access.key, coordinating=True)
        return NatsCoordinator(lines, self._subjects, signatures, events)

    async def client(self, name: str, events: base.Events = base.QUIET) -> NatsClient:
        connection = await connect(self._access, self._subjects, name, events)
        signatures = Signatures.from_key_file(self._access.key)
        return NatsClient(connection, self._subjects, name, signatures, events)

    async def watcher(self) -> NatsEnd:
        connection = await connect(self._access, self._subjects, "watcher")
        signatures = Signatures.from_key_file(self._access.key)
        return NatsEnd(connection, self._subjects, None, signatures, base.QUIET)
