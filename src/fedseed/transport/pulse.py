"""A clock that stands still while a server is silent: nobody is late for what could not come."""

import asyncio
import time
from contextlib import suppress

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from fedseed.transport.base import end_task

BEAT_SECONDS = 0.25
DEAF_SECONDS = 1.0  # without a sign of the server, after which the clock stands
RETURN_SECONDS = 3.0  # for which it stands on when the server is back: the others have to come back, too


class Pulse:
    """Sends itself a message over the server all the time. The clock also stands while this process hears nothing.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: Client) -> None:
        self._connection = connection
        self._heard = self._at = time.monotonic()
        self._lost = 0.0  # seconds that do not count
        self._task: asyncio.Task[None] | None = None

    def now(self) -> float:
        """Seconds; never less than before."""
        if self._task is None:
            return time.monotonic()
        self._at = max(self._at, min(time.monotonic(), self._heard + DEAF_SECONDS) - self._lost)
        return self._at

    async def begin(self) -> None:
        """Begin to listen."""
        inbox = self._connection.new_inbox()
        await self._connection.subscribe(inbox, cb=self._hear)
        self._heard = self._at = time.monotonic()
        self._task = asyncio.create_task(self._beat(inbox))

    async def _beat(self, inbox: str) -> None:
        while True:
            with suppress(nats.errors.Error):
                await self._connection.publish(inbox)
            await asyncio.sleep(BEAT_SECONDS)

    async def _hear(self, message: Msg) -> None:
        real = time.monotonic()
        if real > self._heard + DEAF_SECONDS:
            self._lost = real + RETURN_SECONDS - self.now()
        self._heard = real

    async def stop(self) -> None:
        """Stop; again is fine."""
        if self._task is not None:
            await end_task(self._task)
