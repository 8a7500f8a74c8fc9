"""Reading a JetStream stream in order, whatever happens; and a run's log, which is one, and what appends to it."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from fedseed.errors import NetworkError
from fedseed.transport.base import Fenced, Interrupted, LogLostError, LogOlderError, LogWriter, Take, end_task
from fedseed.transport.signatures import Chain, signature_in
from fedseed.transport.subjects import Subjects

REQUEST_SECONDS = 5.0
HEARTBEAT_SECONDS = 2.0  # of a consumer
SILENCE_SECONDS = 2.5 * HEARTBEAT_SECONDS  # after which a consumer is taken for gone
MISSING_SECONDS = 1.0  # for which a stream must have been missing: `serve --fresh` makes it again at once
LOST_SECONDS = 3600.0  # for which one that was lost is waited for, as interruptions are
READING_SECONDS = 60.0  # for what stands in a log already
PENDING_BYTES = 32 * 1024 * 1024  # of messages that wait to be looked at; what a flood brings beyond is dropped
WRONG_LAST_SEQUENCE = 10071
OVER = "the run is over"  # the description of a stream that was ended
STORED = "$JS.ACK."  # what the reply subject of a stream's message begins with; of control messages it does not


async def is_missing(connection: Client, stream: str) -> bool:
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


class Reader:
    """What a stream's messages are given to."""

    overlaps = False  # whether its last message must still be there when it is read on after an interruption

    def take(self, sequence: int, message: Msg) -> None:
        """The next message."""

    def caught_up(self) -> None:
        """All that stood in the stream has been taken, at least once."""

    def missing(self) -> None:
        """There is no such stream."""

    def set_back(self) -> None:
        """The stream is an older one than it was, or another: it is read again from where it was begun."""


class NatsFollowing:
    """Reads a stream.

    An ephemeral consumer pushes messages to an inbox. A gap, or silence where heartbeats should be, makes a new one
    that begins with the next message; or with the last, to see whether a server came back with an older stream.

    Args:
        connection: to NATS.
        stream: the stream's name.
        reader: gets the messages.
        after: the last message that is known already.
        subject: of the messages; None: all.
        stopped: told when it has stopped.
    """

    def __init__(
        self,
        connection: Client,
        stream: str,
        reader: Reader,
        after: int = 0,
        subject: str | None = None,
        stopped: Callable[["NatsFollowing"], Any] = lambda following: None,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._reader = reader
        self.last = self._after = after
        self._known: Msg | None = None  # the last message, where it must still be there
        self._subject = subject
        self._stopped = stopped
        self._generation = 0
        self._heard = 0.0
        self._subscription: Any = None
        self._again = asyncio.Event()
        self._watch = asyncio.create_task(self._keep_going())

    def restart(self) -> None:
        """The connection was interrupted: whatever consumer there was may be gone."""
        self._again.set()

    async def stop(self) -> None:
        """End; again is fine."""
        if self._watch.done():
            return
        self._generation += 1  # what is on its way already is not handed out
        await end_task(self._watch)
        await self._drop()
        self._stopped(self)

    async def _keep_going(self) -> None:
        while True:
            self._again.clear()
            try:
                await self._begin()
            except NotFoundError:
                self._reader.missing()
                await asyncio.sleep(0.5)
                continue
            except (TimeoutError, nats.errors.Error, APIError, NoStreamResponseError):
                await asyncio.sleep(0.2)
                continue
            while not self._again.is_set() and time.monotonic() < self._heard + SILENCE_SECONDS:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._again.wait(), HEARTBEAT_SECONDS / 4)

    async def _begin(self) -> None:
        await self._drop()
        self._generation += 1
        generation, known = self._generation, self._known  # messages may come before the answer that says how many do
        inbox = self._connection.new_inbox()
        deliver = self._delivery(generation)
        self._subscription = await self._connection.subscribe(inbox, cb=deliver, pending_bytes_limit=PENDING_BYTES)
        self._heard = time.monotonic()
        made = await self._connection.jetstream(timeout=REQUEST_SECONDS).add_consumer(
            self._stream,
            api.ConsumerConfig(
                name=secrets.token_hex(8),
                deliver_subject=inbox,
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self.last + (known is None),
                filter_subject=self._subject,
                ack_policy=api.AckPolicy.NONE,
                max_deliver=1,
                mem_storage=True,
                num_replicas=1,
                flow_control=True,
                idle_heartbeat=HEARTBEAT_SECONDS,
            ),
        )
        self._heard = time.monotonic()
        if not made.num_pending:  # as it was before anything was delivered
            if known is None:
                self._reader.caught_up()
            elif generation == self._generation:
                self._set_back()

    def _set_back(self) -> None:
        self._generation += 1
        self.last, self._known = self._after, None
        self._reader.set_back()
        self._again.set()

    def _delivery(self, generation: int) -> Callable[[Msg], Awaitable[None]]:
        """What takes the messages of one consumer."""
        expected = 1

        async def deliver(message: Msg) -> None:
            nonlocal expected
            if generation != self._generation:
                return
            self._heard = time.monotonic()
            if not message.reply.startswith(STORED):  # a heartbeat, or a question whether we keep up; not one stored
                headers = message.headers or {}
                reply = message.reply or headers.get("Nats-Consumer-Stalled")
                if reply:
                    await self._connection.publish(reply)
                delivered = headers.get("Nats-Last-Consumer")
                if delivered is not None and int(delivered) >= expected:
                    self._again.set()
                return
            fields = message.reply.split(".")
            sequence, number, pending = int(fields[-4]), int(fields[-3]), int(fields[-1])
            if number != expected:
                self._again.set()
                return
            expected += 1
            if number == 1 and (known := self._known) is not None:
                there = sequence, message.data, signature_in(message.headers)
                if there != (self.last, known.data, signature_in(known.headers)):
                    self._set_back()
                    return
            else:
                self.last, self._known = sequence, message if self._reader.overlaps else None
                self._reader.take(sequence, message)
            if not pending:
                self._reader.caught_up()

        return deliver

    async def _drop(self) -> None:
        if self._subscription is not None:
            with suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
            self._subscription = None


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

    def take(self, sequence: int, message: Msg) -> None:
        if self._until is not None and sequence > self._until:
            return
        if not self.chain.take(message.data, message.headers):
            self._foreign()
        elif sequence > self._after:
            self._take(sequence, message.data)

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
        connection: Client,
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
