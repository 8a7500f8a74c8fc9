"""Reading a JetStream stream in order, whatever happens.

And a run's log, which is one, and what appends to it.
"""

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

ANSWER_SECONDS = 30.0  # for a message that was asked for, behind others
MOST_ASKED = 256  # messages at a time
ASKED_BYTES = 2 << 20  # of messages that are asked for at a time
SILENCE_SECONDS = 5.0  # after which a stream is asked whether there is more
# for which a stream must have been missing: `serve --fresh` makes it again at once
MISSING_SECONDS = 1.0
LOST_SECONDS = 3600.0  # for which one that was lost is waited for, as interruptions are
READING_SECONDS = 60.0  # for what stands in a log already
# of messages that wait to be looked at; what a flood brings beyond is dropped
PENDING_BYTES = 32 * 1024 * 1024
NO_MESSAGE, WRONG_LAST_SEQUENCE = 10037, 10071
JETSTREAM, LOG = "jetstream", "log"  # kinds of trouble (`Troubles`)
JETSTREAM_AGAIN = "the server has JetStream again"
OVER = "the run is over"  # the description of a stream that was ended


class JetStreamMissing(Interrupted):
    """The server is there, but nobody answers for JetStream."""


NO_JETSTREAM = (
    "the server is there, but JetStream is not; start nats-server with JetStream (-js, or "
    "jetstream { } in its configuration), and where it is a leaf node, the hub"
)
# what an operator can do about an error of JetStream, by its number
REMEDIES = {
    10023: "make room on the server, or raise its limits",
    10047: "make room on the server, or raise its limits",
    10077: "raise the limits of the stream {stream}, or make room on its disk",
    10054: "raise max_msg_size of the stream {stream}",
}
SEALED = 10109


def is_without_jetstream(error: BaseException) -> bool:
    """Return whether the server says that nobody there answers for JetStream."""
    if isinstance(error, nats.errors.NoRespondersError):
        return True
    return isinstance(error, ServiceUnavailableError) and error.err_code is None


def with_remedy(error: BaseException, stream: str) -> str:
    """Return an error of the library as a person should read it: with what can be done.

    Args:
        error: the error.
        stream: the name of the stream that it is about.
    """
    if is_without_jetstream(error):
        return NO_JETSTREAM
    if isinstance(error, APIError) and error.err_code in REMEDIES:
        remedy = REMEDIES[error.err_code].format(stream=stream)
        return f"{error.description}: {remedy}, then start this again"
    return str(error) or type(error).__name__


async def is_missing(connection: Guarded, stream: str) -> bool:
    """Return whether the server has no such stream, and still has none a moment later.

    Raises:
        Interrupted: it does not say.
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


class Stored(NamedTuple):
    """A message of a stream."""

    sequence: int
    data: bytes
    headers: dict[str, str] | None

    def same(self, other: "Stored") -> bool:
        """Return whether it is this message, which may come with headers that the server adds
        where it repeats.
        """
        mine, others = (signature_in(message.headers) for message in (self, other))
        return (self.sequence, self.data, mine) == (other.sequence, other.data, others)


async def stored(
    connection: Guarded, stream: str, first: int = 1, subject: str = ">"
) -> AsyncGenerator["Stored"]:
    """Yield the messages that stand in a stream, in order, without a consumer on the server.

    They are asked for by number, many at a time. `Guarded.unless_interrupted` ends the reading
    where an answer is lost.

    Args:
        connection: to NATS.
        stream: the stream's name.
        first: the number of the first message.
        subject: of the messages.

    Raises:
        NotFoundError: there is no such stream.
        Interrupted: the server does not answer as it should; `JetStreamMissing`: not at all.
    """
    asked: deque[asyncio.Task[Stored | None]] = deque()
    ahead = largest = 1
    try:
        while True:
            while len(asked) < ahead:
                asked.append(asyncio.create_task(_get(connection, stream, first, subject)))
                first += 1
            await asyncio.wait({asked[0]})
            if (found := asked.popleft().result()) is None:
                return
            yield found
            largest = max(largest, len(found.data))
            ahead = max(1, min(2 * ahead, MOST_ASKED, ASKED_BYTES // largest))
    except NotFoundError:
        raise
    except (TimeoutError, nats.errors.Error, ValueError, LookupError) as error:
        kind = JetStreamMissing if is_without_jetstream(error) else Interrupted
        raise kind(str(error)) from error
    finally:
        for task in asked:
            # it is not asked for
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            task.cancel()


async def _get(connection: Guarded, stream: str, sequence: int, subject: str) -> Stored | None:
    """Return the message of this number, or the first after it; None: there is none.

    Raises nats' errors.
    """
    asked = json.dumps({"seq": sequence, "next_by_subj": subject}).encode()
    reply = await connection.request(
        f"$JS.API.STREAM.MSG.GET.{stream}", asked, timeout=ANSWER_SECONDS
    )
    answer = json.loads(reply.data)
    if "error" in answer:
        if answer["error"].get("err_code") == NO_MESSAGE:
            return None
        APIError.from_error(answer["error"])  # raises it
    message = answer["message"]
    headers = await connection.headers_in(base64.b64decode(message.get("hdrs", "")))
    return Stored(int(message["seq"]), base64.b64decode(message.get("data", "")), headers)


@dataclass
class Unusable:
    """Keeps since when a log can't be read, and says so: once, and again when it lasts too long."""

    lost: Callable[[NetworkError, bool], None]  # told why, and whether that is for good
    _why: type[NetworkError] | None = None
    _since: float = 0.0
    _said: bool = False

    def note(self, error: NetworkError) -> None:
        """Take notice that it can't be read now."""
        now = time.monotonic()
        if type(error) is not self._why:
            self._why, self._since, self._said = type(error), now, False
        if not self._said and now > self._since + MISSING_SECONDS:
            self._said = True
            self.lost(error, False)
        elif self._said and now > self._since + LOST_SECONDS:
            self._since = inf
            self.lost(error, True)

    def end(self) -> None:
        """Take notice that it can be read."""
        self._why = None


@dataclass(eq=False)
class LogFollower(Working):
    """Hands out a run's log: what stands there, and what the server repeats of all that it stores
    later.

    A repeated message is taken if it is the next. Anything else, silence, or an interruption has
    the log asked again, from the last message on: so it is seen whether a server came back with an
    older log.
    """

    connection: Guarded
    subjects: Subjects
    chain: Chain  # tells the coordinator's entries from others'
    after: int  # the last entry that is known already: up to there nothing is handed out
    take: Take  # called with an entry's number and bytes
    foreign: Callable[[], None]  # told of each message that is not an entry
    # told when the log is lost, or its beginning; and again, with True, when it does not come back
    lost: Callable[[NetworkError, bool], None]
    _known: Stored | None = None  # the last message, which must still be there
    _sure: int = -1  # after how many interruptions it was seen to follow what was known
    _seen: bool = False  # whether there was a log
    _subscription: Any = None
    _again: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        # after which message to begin: a chain is followed from its start
        self._first = self._last = 0 if self.chain.checks else self.after
        self._unusable = Unusable(self.lost)
        self.work(self._keep_going())

    async def stop(self) -> None:
        self._sure = -1  # what is on its way already is not handed out
        await super().stop()
        if self._subscription is not None:
            with suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
            self._subscription = None

    async def _keep_going(self) -> None:
        while True:
            self._again.clear()
            try:
                if self._subscription is None:
                    self._subscription = await self.connection.subscribe(
                        self.subjects.entries, cb=self._deliver, pending_bytes_limit=PENDING_BYTES
                    )
                await self.connection.unless_interrupted(self._catch_up())
                async with asyncio.timeout(SILENCE_SECONDS):
                    await self.connection.unless_interrupted(self._again.wait())
            except NotFoundError:
                self.connection.troubles.end(JETSTREAM, JETSTREAM_AGAIN)
                if self._seen:
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
        """Take all that stands there.

        Raises as `stored`, and LogCutError: entries are missing.
        """
        known, interruptions = self._known, self.connection.stats["reconnects"]
        async with aclosing(
            stored(self.connection, self.subjects.stream, self._last + (known is None))
        ) as messages:
            async for message in messages:
                if known is not None and not message.same(known):
                    break
                known = None
                if message.sequence > self._last + 1:
                    raise LogCutError(self.subjects.run)
                if message.sequence > self._last:
                    self._hand_out(message)
                self._sure = interruptions
        # it is an older log, or another: it is read again from where it was begun
        if known is not None:
            self._last, self._known, self._sure, self.chain.head = self._first, None, -1, b""
            self._again.set()
            return
        self.connection.troubles.end(JETSTREAM, JETSTREAM_AGAIN)
        # a log is empty for a moment when it is made; otherwise all of it has been cut off
        if self._known is None and self._last == 0:
            self._unusable.note(LogCutError(self.subjects.run))
        else:
            self._unusable.end()
        self._sure, self._seen = interruptions, True

    async def _deliver(self, message: Msg) -> None:
        """Hand out what the server repeats of what it has stored."""
        number = (message.headers or {}).get("Nats-Sequence", "")[:20]
        if self._sure == self.connection.stats["reconnects"] and number == str(self._last + 1):
            self._hand_out(Stored(self._last + 1, message.data, message.headers))
        else:
            self._again.set()

    def _hand_out(self, message: Stored) -> None:
        self._last, self._known = message.sequence, message
        if not self.chain.take(message.data, message.headers):
            self.foreign()
        elif message.sequence > self.after:
            self.take(message.sequence, message.data)


@dataclass
class NatsLogWriter(LogWriter):
    """Publishes to a stream, which checks which message was the last.

    Where entries are signed, messages of others in the stream do not count. They change what is the
    last message, so the stream's own check says too much then: an entry is published without, and
    the log is read to where it stands. It counts if it is the first that is chained to the one
    before.
    """

    connection: Guarded
    subjects: Subjects
    chain: Chain  # up to the last entry
    foreign: Callable[[], None]  # told of each message that is not an entry
    # entry that was stored: number, sequence, signature
    _stored: tuple[int, int, bytes] | None = None

    def __post_init__(self) -> None:
        self._stream = self.connection.jetstream(timeout=REQUEST_SECONDS)
        self._sequence = self.last  # of the last message that is known, an entry or not

    async def _store(self, entry: bytes) -> None:
        if self._stored is not None and self._stored[0] == self.last:  # that one counts
            _, self._sequence, self.chain.head = self._stored
        headers, head = self.chain.sign(entry)
        try:
            sequence = await self._publish(entry, headers, self._sequence)
            self._stored = self.last + 1, sequence, head
        except Fenced:
            found = await self._next(copy(self.chain))
            if found is None:  # nothing but messages of others
                await self._publish(entry, headers, None)
                found = await self._next(copy(self.chain))
                if found == entry:
                    return
            raise Fenced(found) from None

    async def _publish(self, entry: bytes, headers: dict[str, str], last: int | None) -> int:
        """Publish after a message, or after whatever there is; return the sequence number."""
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
            why = with_remedy(error, self.subjects.stream)
            raise NetworkError(f"the log of run {self.run} can't be written: {why}") from error
        except NoStreamResponseError as error:
            if await is_missing(self.connection, self.subjects.stream):
                raise LogLostError(self.run) from error
            # the stream is there: it does not take what is sent to its subject
            self.connection.troubles.report(
                LOG,
                f"the stream {self.subjects.stream} does not take {self.subjects.log}; set its "
                "subjects so that it does, or put it back as it was",
            )
            raise Interrupted(str(error)) from error
        except (TimeoutError, nats.errors.Error) as error:
            raise Interrupted(str(error)) from error
        self.connection.troubles.end(LOG, f"the log of run {self.run} can be written again")
        return receipt.seq

    async def _is_older(self, last: int) -> bool:
        """Return whether the stream ends before a message that stood in it."""
        try:
            return bool(
                (await self._stream.stream_info(self.subjects.stream)).state.last_seq < last
            )
        except (TimeoutError, nats.errors.Error) as error:
            raise Interrupted(str(error)) from error

    async def _next(self, chain: Chain) -> bytes | None:
        """Return the next entry that counts.

        None: there are only others' messages, up to where the log stands now.
        """
        try:
            async with asyncio.timeout(READING_SECONDS):
                return await self.connection.unless_interrupted(self._read_on(chain))
        except (TimeoutError, NotFoundError) as error:
            raise Interrupted("the log can't be read") from error

    async def _read_on(self, chain: Chain) -> bytes | None:
        seen = self._sequence
        async with aclosing(stored(self.connection, self.subjects.stream, seen + 1)) as messages:
            async for message in messages:
                seen = message.sequence
                if chain.take(message.data, message.headers):
                    self._stored = self.last + 1, seen, chain.head
                    return message.data
                self.foreign()
        self._sequence = seen
        return None

    async def finish(self) -> None:
        """Describe the stream so; a run is no less over if that fails."""
        with suppress(nats.errors.Error, TimeoutError):
            info = await self._stream.stream_info(self.subjects.stream)
            await self._stream.update_stream(info.config.evolve(description=OVER))
