"""A run's log as a JetStream stream: following it, and appending to it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from fedseed.errors import NetworkError
from fedseed.transport.base import Fenced, Following, Interrupted, LogWriter, Take, end_task
from fedseed.transport.subjects import Subjects

REQUEST_SECONDS = 5.0
HEARTBEAT_SECONDS = 2.0  # of a consumer
PENDING_BYTES = 32 * 1024 * 1024  # of messages that wait to be looked at; what a flood brings beyond is dropped
WRONG_LAST_SEQUENCE = 10071


class NatsFollowing(Following):
    """Follows a stream.

    An ephemeral consumer pushes entries to an inbox. A gap, or silence where heartbeats should be, makes a new one that
    begins with the next entry.

    Args:
        connection: to NATS.
        subjects: the run's.
        take: called with each entry's sequence number and bytes.
        after: the last entry that is known already.
        stopped: told when it has stopped.
    """

    def __init__(
        self,
        connection: Client,
        subjects: Subjects,
        take: Take,
        after: int,
        stopped: Callable[["NatsFollowing"], Any],
    ) -> None:
        self._connection = connection
        self._subjects = subjects
        self._take = take
        self._last = after
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
            except (TimeoutError, nats.errors.Error, APIError, NoStreamResponseError):
                await asyncio.sleep(0.2)
                continue
            while not self._again.is_set() and time.monotonic() < self._heard + 3 * HEARTBEAT_SECONDS:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._again.wait(), HEARTBEAT_SECONDS)

    async def _begin(self) -> None:
        await self._drop()
        self._generation += 1
        inbox = self._connection.new_inbox()
        deliver = self._delivery(self._generation)
        self._subscription = await self._connection.subscribe(inbox, cb=deliver, pending_bytes_limit=PENDING_BYTES)
        self._heard = time.monotonic()
        await self._connection.jetstream(timeout=REQUEST_SECONDS).add_consumer(
            self._subjects.stream,
            api.ConsumerConfig(
                deliver_subject=inbox,
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._last + 1,
                ack_policy=api.AckPolicy.NONE,
                max_deliver=1,
                mem_storage=True,
                num_replicas=1,
                flow_control=True,
                idle_heartbeat=HEARTBEAT_SECONDS,
            ),
        )
        self._heard = time.monotonic()

    def _delivery(self, generation: int) -> Callable[[Msg], Awaitable[None]]:
        """What takes the messages of one consumer."""
        expected = 1

        async def deliver(message: Msg) -> None:
            nonlocal expected
            if generation != self._generation:
                return
            self._heard = time.monotonic()
            if message.headers and message.headers.get("Status"):  # a heartbeat, or a question whether we keep up
                reply = message.reply or message.headers.get("Nats-Consumer-Stalled")
                if reply:
                    await self._connection.publish(reply)
                delivered = message.headers.get("Nats-Last-Consumer")
                if delivered is not None and int(delivered) >= expected:
                    self._again.set()
                return
            fields = message.reply.split(".")
            sequence, number = int(fields[-4]), int(fields[-3])
            if number != expected:
                self._again.set()
                return
            expected += 1
            self._last = sequence
            self._take(sequence, message.data)

        return deliver

    async def _drop(self) -> None:
        if self._subscription is not None:
            with suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
            self._subscription = None


class NatsLogWriter(LogWriter):
    """Publishes to a stream that checks which entry was the last.

    Args:
        connection: to NATS.
        subjects: the run's.
        last: the sequence number of the last entry.
    """

    def __init__(self, connection: Client, subjects: Subjects, last: int) -> None:
        super().__init__(subjects.run, last)
        self._stream = connection.jetstream(timeout=REQUEST_SECONDS)
        self._subjects = subjects

    async def _store(self, entry: bytes) -> None:
        try:
            expected = {"Nats-Expected-Last-Sequence": str(self.last)}
            await self._stream.publish(self._subjects.log, entry, headers=expected)
        except APIError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                raise Fenced from error
            raise NetworkError(f"the log of run {self.run} can't be written: {error}") from error
        except (TimeoutError, nats.errors.Error) as error:
            raise Interrupted(str(error)) from error

    async def _read(self, number: int) -> bytes | None:
        try:
            return (await self._stream.get_msg(self._subjects.stream, number)).data
        except NotFoundError:
            return None
        except (TimeoutError, nats.errors.Error) as error:
            raise Interrupted(str(error)) from error
