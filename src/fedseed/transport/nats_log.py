"""Reading a JetStream stream in order, whatever happens; and a run's log, which is one, and what appends to it."""

import asyncio
import base64
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy
from typing import Any, NamedTuple

import nats.errors
from nats.aio.msg import Msg
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from fedseed.errors import NetworkError
from fedseed.transport.base import Fenced, Interrupted, LogLostError, LogOlderError, LogWriter, Take, end_task
from fedseed.transport.nats_connection import Guarded
from fedseed.transport.signatures import Chain, signature_in
from fedseed.transport.subjects import Subjects

REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 30.0  # for a message that was asked for, behind others
MOST_ASKED = 256  # messages at a time
ASKED_BYTES = 2 << 20  # of messages that are asked for at a time
SILENCE_SECONDS = 5.0  # after which a stream is asked whether there is more
MISSING_SECONDS = 1.0  # for which a stream must have been missing: `serve --fresh` makes it again at once
LOST_SECONDS = 3600.0  # for which one that was lost is waited for, as interruptions are
READING_SECONDS = 60.0  # for what stands in a log already
PENDING_BYTES = 32 * 1024 * 1024  # of messages that wait to be looked at; what a flood brings beyond is dropped
NO_MESSAGE, WRONG_LAST_SEQUENCE = 10037, 10071
OVER = "the run is over"  # the description of a stream that was ended


async def is_missing(connection: Guarded, stream: str) -> bool:
    """Whether the server has no such stream, and still has none a moment later.

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
        """Whether it is this message, which may have come in another way: the server adds headers where it repeats."""
        mine, others = (signature_in(message.headers) for message in (self, other))
        return (self.sequence, self.data, mine) == (other.sequence, other.data, others)


class Reader:
    """What a stream's messages are given to."""

    overlaps = False  # whether its last message must still be there when it is read on after an interruption

    def take(self, message: "Stored") -> None:
        """The next message."""

    def caught_up(self) -> None:
        """All that stood in the stream has been taken, at least once."""

    def missing(self) -> None:
        """There is no such stream."""

    def set_back(self) -> None:
        """The stream is an older one than it was, or another: it is read again from where it was begun."""


class NatsFollowing:
    """Reads a stream, without a consumer on the server.

    Messages are asked for by number, many at a time. What is stored later the server repeats under a subject (`live`):
    it is taken if it is the next. Anything else, silence, or an interruption has the stream asked again, from the last
    message on where that must still be there: so it is seen whether a server came back with an older stream.

    Args:
        connection: to NATS.
        stream: the stream's name.
        reader: gets the messages.
        after: the last message that is known already.
        subject: of the messages.
        live: the subject under which the server repeats what it stores; None: nowhere.
        stopped: told when it has stopped.
    """

    def __init__(
        self, connection: Guarded, stream: str, reader: Reader, after: int = 0, subject: str = ">",
        live: str | None = None, stopped: Callable[["NatsFollowing"], Any] = lambda following: None,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._stream = stream
        self._reader = reader
        self.last = self._after = after
        self._known: Stored | None = None  # the last message, where it must still be there
        self._sure = -1  # after how many interruptions it was seen to follow what was known
        self._subject = subject
        self._live = live
        self._stopped = stopped
        self._subscription: Any = None
        self._again = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._watch = asyncio.create_task(self._keep_going())

    def restart(self) -> None:
        """The connection was interrupted: answers may be lost, and the stream may be another."""
        self._again.set()
        if self._asking is not None:
            self._asking.cancel()

    async def stop(self) -> None:
        """End; again is fine."""
        if self._watch.done():
            return
        self._sure = -1  # what is on its way already is not handed out
        await end_task(self._watch)
        if self._asking is not None:
            await end_task(self._asking)
        if self._subscription is not None:
            with suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
        self._stopped(self)

    async def _keep_going(self) -> None:
        while True:
            self._again.clear()
            try:
                if self._live is not None and self._subscription is None:
                    self._subscription = await self._connection.subscribe(
                        self._live, cb=self._deliver, pending_bytes_limit=PENDING_BYTES
                    )
                self._asking = asyncio.create_task(self._catch_up())
                await asyncio.wait({self._asking})
                if self._asking.cancelled():
                    continue
                self._asking.result()
            except NotFoundError:
                self._reader.missing()
                await asyncio.sleep(0.5)
                continue
            except (TimeoutError, nats.errors.Error, APIError, NoStreamResponseError, ValueError, LookupError):
                await asyncio.sleep(0.2)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(SILENCE_SECONDS):
                    await self._again.wait()

    async def _catch_up(self) -> None:
        """Ask for all that stands there. Raises NotFoundError where there is no such stream."""
        asked: deque[asyncio.Task[Stored | None]] = deque()
        known, interruptions = self._known, self._interruptions
        ahead, largest, following = 1, 1, self.last + (known is None)
        try:
            while True:
                while len(asked) < ahead:
                    asked.append(asyncio.create_task(self._get(following)))
                    following += 1
                await asyncio.wait({asked[0]})
                found = asked.popleft().result()
                if known is not None:
                    if found is None or not found.same(known):
                        self._set_back()
                        return
                    known = None
                elif found is None:
                    break
                elif found.sequence > self.last:
                    self._hand_out(found)
                self._sure = interruptions
                largest = max(largest, len(found.data))
                ahead = max(1, min(2 * ahead, MOST_ASKED, ASKED_BYTES // largest))
        finally:
            for task in asked:
                task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is not asked for
                task.cancel()
        self._sure = interruptions
        self._reader.caught_up()

    @property
    def _interruptions(self) -> int:
        return self._connection.stats["reconnects"]

    async def _get(self, sequence: int) -> "Stored | None":
        """The message of this number, or the first after it; None: there is none. Raises nats' errors."""
        asked = json.dumps({"seq": sequence, "next_by_subj": self._subject}).encode()
        subject = f"$JS.API.STREAM.MSG.GET.{self._stream}"
        answer = json.loads((await self._connection.request(subject, asked, timeout=ANSWER_SECONDS)).data)
        if "error" in answer:
            if answer["error"].get("err_code") == NO_MESSAGE:
                return None
            APIError.from_error(answer["error"])  # raises it
        message = answer["message"]
        headers = await self._connection.headers_in(base64.b64decode(message.get("hdrs", "")))
        return Stored(int(message["seq"]), base64.b64decode(message.get("data", "")), headers)

    async def _deliver(self, message: Msg) -> None:
        """What the server repeats of what it has stored."""
        number = (message.headers or {}).get("Nats-Sequence", "")[:20]
        if self._sure == self._interruptions and number == str(self.last + 1):
            self._hand_out(Stored(self.last + 1, message.data, message.headers))
        else:
            self._again.set()

    def _hand_out(self, message: "Stored") -> None:
        self.last, self._known = message.sequence, message if self._reader.overlaps else None
        self._reader.take(message)

    def _set_back(self) -> None:
        self.last, self._known, self._sure = self._after, None, -1
        self._reader.set_back()
        self._again.set()


class LogReader(Reader):
    """Tells the coordinator's entries from others', and hands them out.

    Args:
        run: the run's name.
        chain: tells them apart.
        after: the last entry that is known already: up to there nothing is handed out.
        take: called with an entry's number and bytes.
        foreign: told of each message that is not an entry.
        lost: told when there was a log, and is none any more; and again, with True, when it does not come back.
        until: the last message that is looked at; None: there is no last.
    """

    overlaps = True

    def __init__(
        self, run: str, chain: Chain, after: int, take: Take, foreign: Callable[[], None], lost: Callable[[bool], None],
        until: int | None = None,
    ) -> None:  # fmt: skip
        self.run = run
        self.chain = chain
        self._begins = chain.head
        self.first = 0 if chain.checks else after  # after which message to begin: a chain is followed from its start
        self.complete = asyncio.Event()  # all that stood there when it was first looked at has been taken
        self._after = after
        self._take = take
        self._foreign = foreign
        self._lost = lost
        self._until = until
        self._missing: float | None = None  # since when
        self._lost_since: float | None = None  # when it was said to be lost

    def take(self, message: Stored) -> None:
        if self._until is not None and message.sequence > self._until:
            return
        if not self.chain.take(message.data, message.headers):
            self._foreign()
        elif message.sequence > self._after:
            self._take(message.sequence, message.data)

    def set_back(self) -> None:
        self.chain.head = self._begins

    def caught_up(self) -> None:
        self.complete.set()
        self._missing = self._lost_since = None

    def missing(self) -> None:
        now = time.monotonic()
        if self._missing is None:
            self._missing = now
        elif self.complete.is_set() and now > self._missing + MISSING_SECONDS:
            self.complete.clear()  # it is said once
            self._lost_since = now
            self._lost(False)
        elif self._lost_since is not None and now > self._lost_since + LOST_SECONDS:
            self._lost_since = None
            self._lost(True)


class NatsLogWriter(LogWriter):
    """Publishes to a stream, which checks which message was the last.

    Where entries are signed, messages of others in the stream do not count. They change what is the last message, so
    the stream's own check says too much then: an entry is published without, and the log is read to where it stands.
    It counts if it is the first that is chained to the one before.

    Args:
        connection: to NATS.
        subjects: the run's.
        last: the sequence number of the last entry.
        chained: the chain up to there.
        foreign: told of each message that is not an entry.
    """

    def __init__(
        self,
        connection: Guarded,
        subjects: Subjects,
        last: int,
        chained: Callable[[], Awaitable[Chain]],
        foreign: Callable[[], None],
    ) -> None:
        super().__init__(subjects.run, last)
        self._connection = connection
        self._stream = connection.jetstream(timeout=REQUEST_SECONDS)
        self._subjects = subjects
        self._sequence = last  # of the last message that is known, an entry or not; where entries are signed
        self._chained = chained
        self._chain: Chain | None = None
        self._foreign = foreign
        self._stored: tuple[int, int, bytes] | None = None  # entry that was stored: number, sequence, signature
        self._found: bytes | None = None  # the entry that stands where ours should: ours, perhaps

    async def _store(self, entry: bytes) -> None:
        if self._chain is None:
            self._chain = await self._chained()
        if not self._chain.checks:
            await self._publish(entry, None, self.last)
            return
        if self._stored is not None and self._stored[0] == self.last:  # that one counts
            _, self._sequence, self._chain.head = self._stored
        headers, head = self._chain.sign(entry)
        try:
            sequence = await self._publish(entry, headers, self._sequence)
            self._stored = self.last + 1, sequence, head
        except Fenced:
            found = await self._next()
            if found is None:  # nothing but messages of others
                await self._publish(entry, headers, None)
                found = await self._next()
                if found == entry:
                    return
            self._found = found
            raise

    async def _publish(self, entry: bytes, headers: dict[str, str] | None, last: int | None) -> int:
        """Publish after a message, or after whatever there is; returns the sequence number."""
        expected = {} if last is None else {"Nats-Expected-Last-Sequence": str(last)}
        try:
            receipt = await self._stream.publish(self._subjects.log, entry, headers={**expected, **(headers or {})})
        except APIError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                if last is not None and await self._is_older(last):
                    raise LogOlderError(self.run) from error
                raise Fenced from error
            raise NetworkError(f"the log of run {self.run} can't be written: {error}") from error
        except NoStreamResponseError as error:
            if await is_missing(self._connection, self._subjects.stream):
                raise LogLostError(self.run) from error
            raise Interrupted(str(error)) from error
        except (TimeoutError, nats.errors.Error) as error:
            raise Interrupted(str(error)) from error
        return receipt.seq

    async def _is_older(self, last: int) -> bool:
        """Whether the stream ends before a message that stood in it."""
        try:
            return bool((await self._stream.stream_info(self._subjects.stream)).state.last_seq < last)
        except (TimeoutError, nats.errors.Error) as error:
            raise Interrupted(str(error)) from error

    async def _next(self) -> bytes | None:
        """The next entry that counts; None: there are only others' messages, up to where the log stands now."""
        chain, found = copy(self._chain), list[tuple[int, bytes, bytes]]()
        assert chain is not None

        def take(sequence: int, data: bytes) -> None:
            found.append((sequence, chain.head, data))
            ahead.complete.set()

        ahead = LogReader(self.run, chain, 0, take, self._foreign, lambda for_good: None)
        following = NatsFollowing(self._connection, self._subjects.stream, ahead, self._sequence)
        try:
            await asyncio.wait_for(ahead.complete.wait(), READING_SECONDS)
        except TimeoutError as error:
            raise Interrupted("the log can't be read") from error
        finally:
            await following.stop()
        if not found:
            self._sequence = max(self._sequence, following.last)
            return None
        sequence, head, entry = found[0]
        self._stored = self.last + 1, sequence, head
        return entry

    async def _read(self, number: int) -> bytes | None:
        if self._chain is not None and self._chain.checks:
            return self._found
        try:
            return (await self._stream.get_msg(self._subjects.stream, number)).data
        except NotFoundError:
            return None
        except (TimeoutError, nats.errors.Error) as error:
            raise Interrupted(str(error)) from error

    async def finish(self) -> None:
        """Describe the stream so; a run is no less over if that fails."""
        with suppress(nats.errors.Error, TimeoutError):
            info = await self._stream.stream_info(self._subjects.stream)
            await self._stream.update_stream(info.config.evolve(description=OVER))
