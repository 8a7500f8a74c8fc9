"""Reading a JetStream stream in order, following a run's log, and appending to it."""

import asyncio
import base64
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from copy import copy
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import nats.errors
from nats.aio.msg import Msg
from nats.js.errors import (
    APIError,
    NoStreamResponseError,
    NotFoundError,
    ServiceUnavailableError,
)

from fedseed.errors import NetworkError
from fedseed.transport.base import (
    Fenced,
    Interrupted,
    LogCutError,
    LogLostError,
    LogOlderError,
    LogSealedError,
    LogWriter,
    Take,
    Working,
)
from fedseed.transport.nats_connection import REQUEST_SECONDS, RETRY_SECONDS, Guarded
from fedseed.transport.signatures import Chain, signature_in
from fedseed.transport.subjects import Subjects
from fedseed.transport.troubles import PATIENCE_SECONDS

ANSWER_SECONDS = 30.0  # seconds to wait for a requested message, behind others
MOST_ASKED = 256  # messages requested at a time
ASKED_BYTES = 2 << 20  # bytes of messages requested at a time
SILENCE_SECONDS = 5.0  # seconds after which a stream is checked for new messages
# a stream counts as missing after this time: `serve --fresh` makes it again at once
MISSING_SECONDS = 1.0
LOST_SECONDS = 3600.0  # seconds for a lost log to come back, as for interruptions
READING_SECONDS = 60.0  # seconds for reading the present entries of a log
# most bytes of messages that wait to be processed; further ones are dropped
PENDING_BYTES = 32 * 1024 * 1024
NO_MESSAGE, WRONG_LAST_SEQUENCE = 10037, 10071
# kinds of trouble (`Troubles`)
JETSTREAM, LOG, UNSTORED = "jetstream", "log", "unstored"
STORED_AGAIN = "the server stores messages again"
JETSTREAM_AGAIN = "the server has JetStream again"
OVER = "the run is over"  # the description of an ended stream


class JetStreamMissing(Interrupted):
    """The server is connected, but JetStream does not answer."""


NO_JETSTREAM = (
    "the server has no JetStream; start nats-server with JetStream (-js, or jetstream { } in its "
    "configuration); for a leaf node, also its hub"
)
# a server takes its limits from the disk when it starts, and one whose disk was full stores nothing
# until it is started again
SERVER_ROOM = "make room on the server's disk and start nats-server again, or raise its limits"
# remedies for an operator, by the number of JetStream's error
REMEDIES = {
    10023: SERVER_ROOM,
    10047: SERVER_ROOM,
    10077: "raise the limits of the stream {stream}, or make room on its disk",
    10054: "raise max_msg_size of the stream {stream}",
    10065: "another stream of the server, not {stream}, stores what is published below fedseed.: "
    "take these subjects out of it (`nats stream ls` lists all)",
}
SEALED = 10109


def is_without_jetstream(error: BaseException) -> bool:
    """Return whether an error means that the server has no JetStream."""
    if isinstance(error, nats.errors.NoRespondersError):
        return True
    return isinstance(error, ServiceUnavailableError) and error.err_code is None


def with_remedy(error: BaseException, stream: str) -> str:
    """Return the text of a library's error for people, with a remedy where there is one.

    Args:
        error: the error.
        stream: the name of the stream that it concerns.
    """
    if is_without_jetstream(error):
        return NO_JETSTREAM
    if isinstance(error, TimeoutError):
        return f"the server does not answer; if this continues, its disk may be full: {SERVER_ROOM}"
    if isinstance(error, APIError) and error.err_code in REMEDIES:
        remedy = REMEDIES[error.err_code].format(stream=stream)
        return f"{error.description}: {remedy}, then start this again"
    return str(error) or type(error).__name__


def report_unstored(connection: Guarded, stream: str, patience: float) -> None:
    """Report that the server does not confirm what is written to a stream.

    nats-server does not answer a writer when its disk is full; 2.9.10 answers nothing at all on
    that connection, and keeps it open.

    Args:
        connection: to NATS.
        stream: the name of the stream.
        patience: as for `Troubles.report`.
    """
    if connection.is_connected:
        connection.troubles.report(
            UNSTORED,
            f"the server does not store what is written to the stream {stream}; its disk may be "
            f"full: {SERVER_ROOM}",
            patience,
        )


async def is_missing(connection: Guarded, stream: str) -> bool:
    """Return whether the server has no such stream, and still has none a moment later.

    Raises:
        Interrupted: the server does not answer.
    """
    try:
        for wait in (MISSING_SECONDS, 0.0):
            try:
                await connection.jetstream(timeout=REQUEST_SECONDS).stream_info(stream)
                return False
            except NotFoundError:
                await asyncio.sleep(wait)
    except (TimeoutError, nats.errors.Error) as error:
        raise Interrupted(str(error)) from error
    return True


class StreamMessage(NamedTuple):
    """A message of a stream."""

    sequence: int
    data: bytes
    headers: dict[str, str] | None

    def is_same(self, other_message: "StreamMessage") -> bool:
        """Return whether both are one message, which may come with more headers when repeated."""
        signature = signature_in(self.headers)
        other_signature = signature_in(other_message.headers)
        return (self.sequence, self.data, signature) == (
            other_message.sequence,
            other_message.data,
            other_signature,
        )


async def read_stream(
    connection: Guarded, stream: str, first: int = 1, subject: str = ">"
) -> AsyncGenerator["StreamMessage"]:
    """Yield the messages of a stream in order, without a consumer on the server.

    They are requested by number, many at a time. `Guarded.unless_interrupted` ends the reading
    where an answer is lost.

    Args:
        connection: to NATS.
        stream: the stream's name.
        first: the number of the first message.
        subject: of the messages.

    Raises:
        NotFoundError: there is no such stream.
        Interrupted: the server's answer is not valid; `JetStreamMissing`: there is none.
    """
    requests: deque[asyncio.Task[StreamMessage | None]] = deque()
    ahead = largest = 1
    try:
        while True:
            while len(requests) < ahead:
                requests.append(asyncio.create_task(_get(connection, stream, first, subject)))
                first += 1
            await asyncio.wait({requests[0]})
            message = requests.popleft().result()
            if message is None:
                return
            yield message
            largest = max(largest, len(message.data))
            ahead = max(1, min(2 * ahead, MOST_ASKED, ASKED_BYTES // largest))
    except NotFoundError:
        raise
    except (TimeoutError, nats.errors.Error, ValueError, LookupError) as error:
        kind = JetStreamMissing if is_without_jetstream(error) else Interrupted
        raise kind(str(error)) from error
    finally:
        for task in requests:
            # retrieve the task's error, which is expected
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            task.cancel()


async def _get(
    connection: Guarded, stream: str, sequence: int, subject: str
) -> StreamMessage | None:
    """Return the message of this number, or the next one after it; None: there is none.

    Raises nats' errors.
    """
    request = json.dumps({"seq": sequence, "next_by_subj": subject}).encode()
    reply = await connection.request(
        f"$JS.API.STREAM.MSG.GET.{stream}", request, timeout=ANSWER_SECONDS
    )
    answer = json.loads(reply.data)
    if "error" in answer:
        if answer["error"].get("err_code") == NO_MESSAGE:
            return None
        APIError.from_error(answer["error"])  # raises the error
    message = answer["message"]
    headers = await connection.headers_in(base64.b64decode(message.get("hdrs", "")))
    return StreamMessage(int(message["seq"]), base64.b64decode(message.get("data", "")), headers)


@dataclass
class UnreadableLog:
    """Reports that a log can't be read: once, and again when it lasts too long."""

    lost: Callable[[NetworkError, bool], None]  # called with the error, and whether it is final
    _kind: type[NetworkError] | None = None
    _since: float = 0.0
    _is_reported: bool = False

    def note(self, error: NetworkError) -> None:
        """Record that the log can't be read now."""
        current_time = time.monotonic()
        if type(error) is not self._kind:
            self._kind, self._since, self._is_reported = type(error), current_time, False
        if not self._is_reported and current_time > self._since + MISSING_SECONDS:
            self._is_reported = True
            self.lost(error, False)
        elif self._is_reported and current_time > self._since + LOST_SECONDS:
            self._since = inf
            self.lost(error, True)

    def end(self) -> None:
        """Record that the log can be read."""
        self._kind = None


@dataclass(eq=False)
class LogFollower(Working):
    """Hands out a run's log: its present entries, and those that the server repeats later.

    A repeated message is taken if it is the next one. After any other message, silence, or an
    interruption, the log is read on from the last known message. That shows whether a server came
    back with an older log.
    """

    connection: Guarded
    subjects: Subjects
    chain: Chain  # recognises the coordinator's entries
    last_number: int  # the last entry that the caller has: later ones are handed out
    take: Take  # called with an entry's number and bytes
    foreign: Callable[[], None]  # called for each message that is not an entry
    # called when the log is lost, or its beginning; and again, with True, if it stays away
    lost: Callable[[NetworkError, bool], None]
    # the last known message, which must still be in the log
    _last_message: StreamMessage | None = None
    # number of interruptions at which the last message was known to be the log's
    _checked_at: int = -1
    _existed: bool = False  # whether there was a log
    _subscription: Any = None
    _read_again: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        # a chain is followed from its start
        self._first = self._last = 0 if self.chain.checks else self.last_number
        self._unusable = UnreadableLog(self.lost)
        self.work(self._keep_going())

    async def stop(self) -> None:
        self._checked_at = -1  # repeated messages are not handed out any more
        await super().stop()
        if self._subscription is not None:
            with suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
            self._subscription = None

    async def _keep_going(self) -> None:
        while True:
            self._read_again.clear()
            try:
                if self._subscription is None:
                    self._subscription = await self.connection.subscribe(
                        self.subjects.entries, cb=self._deliver, pending_bytes_limit=PENDING_BYTES
                    )
                await self.connection.unless_interrupted(self._catch_up())
                async with asyncio.timeout(SILENCE_SECONDS):
                    await self.connection.unless_interrupted(self._read_again.wait())
            except NotFoundError:
                self.connection.troubles.end(JETSTREAM, JETSTREAM_AGAIN)
                if self._existed:
                    self._unusable.note(LogLostError(self.subjects.run))
                await asyncio.sleep(0.5)
            except LogCutError as error:
                self.connection.troubles.end(JETSTREAM, JETSTREAM_AGAIN)
                self._unusable.note(error)
                await asyncio.sleep(0.5)
            except JetStreamMissing:
                self.connection.troubles.report(JETSTREAM, NO_JETSTREAM)
                await asyncio.sleep(RETRY_SECONDS)
            except (Interrupted, TimeoutError, nats.errors.Error):
                await asyncio.sleep(RETRY_SECONDS)

    async def _catch_up(self) -> None:
        """Take all entries of the log.

        Raises the errors of `read_stream`, and LogCutError: entries are missing.
        """
        last_known, interruptions = self._last_message, self.connection.stats["reconnects"]
        async with aclosing(
            read_stream(self.connection, self.subjects.stream, self._last + (last_known is None))
        ) as messages:
            async for message in messages:
                if last_known is not None and not message.is_same(last_known):
                    break
                last_known = None
                if message.sequence > self._last + 1:
                    raise LogCutError(self.subjects.run)
                if message.sequence > self._last:
                    self._hand_out(message)
                self._checked_at = interruptions
        # an older log, or another one: read it from where this follower began
        if last_known is not None:
            self._last, self._last_message, self._checked_at = self._first, None, -1
            self.chain.head = b""
            self._read_again.set()
            return
        self.connection.troubles.end(JETSTREAM, JETSTREAM_AGAIN)
        # a new log is empty for a moment; otherwise all of it has been cut off
        if self._last_message is None and self._last == 0:
            self._unusable.note(LogCutError(self.subjects.run))
        else:
            self._unusable.end()
        self._checked_at, self._existed = interruptions, True

    async def _deliver(self, message: Msg) -> None:
        """Hand out a message that the server repeats after storing it."""
        number = (message.headers or {}).get("Nats-Sequence", "")[:20]
        is_checked = self._checked_at == self.connection.stats["reconnects"]
        if is_checked and number == str(self._last + 1):
            self._hand_out(StreamMessage(self._last + 1, message.data, message.headers))
        else:
            self._read_again.set()

    def _hand_out(self, message: StreamMessage) -> None:
        self._last, self._last_message = message.sequence, message
        if not self.chain.take(message.data, message.headers):
            self.foreign()
        elif message.sequence > self.last_number:
            self.take(message.sequence, message.data)


@dataclass
class NatsLogWriter(LogWriter):
    """Publishes to a stream, which checks the number of its last message.

    Where entries are signed, messages of others in the stream do not count. They change the number
    of the last message, so the stream's own check is too strict then: the entry is published
    without it, and the log is read to its end. The entry counts if it is the first that is chained
    to the one before.
    """

    connection: Guarded
    subjects: Subjects
    chain: Chain  # up to the last entry
    foreign: Callable[[], None]  # called for each message that is not an entry
    # a published entry: number, sequence, signature
    _stored: tuple[int, int, bytes] | None = None

    def __post_init__(self) -> None:
        self._stream = self.connection.jetstream(timeout=REQUEST_SECONDS)
        self._sequence = self.last  # number of the last known message, an entry or not

    async def _store(self, entry: bytes) -> None:
        if self._stored is not None and self._stored[0] == self.last:  # that entry counts
            _, self._sequence, self.chain.head = self._stored
        headers, head = self.chain.sign(entry)
        try:
            sequence = await self._publish(entry, headers, self._sequence)
            self._stored = self.last + 1, sequence, head
        except Fenced:
            next_entry = await self._next(copy(self.chain))
            if next_entry is None:  # only messages of others follow
                await self._publish(entry, headers, None)
                next_entry = await self._next(copy(self.chain))
                if next_entry == entry:
                    return
            raise Fenced(next_entry) from None

    async def _publish(self, entry: bytes, headers: dict[str, str], last: int | None) -> int:
        """Publish after message `last` (None: after any); return the sequence number."""
        expected = {} if last is None else {"Nats-Expected-Last-Sequence": str(last)}
        try:
            receipt = await self._stream.publish(
                self.subjects.log, entry, headers={**expected, **headers}
            )
        except APIError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                if last is not None and await self._is_older(last):
                    raise LogOlderError(self.run) from error
                raise Fenced(None) from error
            if error.err_code == SEALED:
                raise LogSealedError(self.run) from error
            problem = with_remedy(error, self.subjects.stream)
            raise NetworkError(f"the log of run {self.run} can't be written: {problem}") from error
        except NoStreamResponseError as error:
            if await is_missing(self.connection, self.subjects.stream):
                raise LogLostError(self.run) from error
            # the stream exists, but does not take messages on its subject
            self.connection.troubles.report(
                LOG,
                f"the stream {self.subjects.stream} does not store {self.subjects.log}: add this "
                "to its subjects, or restore the stream",
            )
            raise Interrupted(str(error)) from error
        except (TimeoutError, nats.errors.Error) as error:
            if isinstance(error, TimeoutError):
                report_unstored(self.connection, self.subjects.stream, PATIENCE_SECONDS)
            raise Interrupted(str(error)) from error
        self.connection.troubles.end(UNSTORED, STORED_AGAIN)
        self.connection.troubles.end(LOG, f"the log of run {self.run} can be written again")
        return receipt.seq

    async def _is_older(self, last: int) -> bool:
        """Return whether the stream ends before a message that it had."""
        try:
            return bool(
                (await self._stream.stream_info(self.subjects.stream)).state.last_seq < last
            )
        except (TimeoutError, nats.errors.Error) as error:
            raise Interrupted(str(error)) from error

    async def _next(self, chain: Chain) -> bytes | None:
        """Return the next entry that counts; None: up to the log's end there is none."""
        try:
            async with asyncio.timeout(READING_SECONDS):
                return await self.connection.unless_interrupted(self._read_on(chain))
        except (TimeoutError, NotFoundError) as error:
            raise Interrupted("the log can't be read") from error

    async def _read_on(self, chain: Chain) -> bytes | None:
        sequence = self._sequence
        async with aclosing(
            read_stream(self.connection, self.subjects.stream, sequence + 1)
        ) as messages:
            async for message in messages:
                sequence = message.sequence
                if chain.take(message.data, message.headers):
                    self._stored = self.last + 1, sequence, chain.head
                    return message.data
                self.foreign()
        self._sequence = sequence
        return None

    async def finish(self) -> None:
        """Mark the stream as ended; the run is over even if that fails."""
        with suppress(nats.errors.Error, TimeoutError):
            info = await self._stream.stream_info(self.subjects.stream)
            await self._stream.update_stream(info.config.evolve(description=OVER))
