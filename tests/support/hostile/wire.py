"""NATS by hand: what a library would not send.

One connection with a key, which comes back when the server ends it.
"""

import asyncio
from contextlib import suppress

import nats.errors

from fedseed.transport.base import Access, Events
from fedseed.transport.nats_connection import connect

LOST = (nats.errors.Error, OSError, TimeoutError, asyncio.TimeoutError)


class Wire:
    """A connection with a client's key, whose every byte can be chosen."""

    def __init__(self, server, subjects, name, key, ca):
        self._how = Access(server, key, ca), subjects, name
        self.inbox = f"{subjects.inbox(name)}.x"
        self.came = []  # what others sent here
        self._connection = None

    async def connection(self):
        """The connection, a new one if the server has ended the last."""
        if self._connection is None or not self._connection.is_connected:
            await self.close()
            self._connection = await connect(*self._how, Events(lambda violation: None))
            self._connection.options["allow_reconnect"] = False
            await self._connection.subscribe(f"{self.inbox}.>", cb=self._take)
        return self._connection

    async def _take(self, message):
        self.came.append(message)

    async def publish(self, subject, data=b"", reply="", headers=None):
        """PUB or HPUB as it stands here: nothing is checked.

        Args:
            subject, reply: text, or bytes of any kind without spaces and line breaks.
            data: the payload.
            headers: the bytes of a header block; None: no headers.
        """
        words = [
            part if isinstance(part, bytes) else part.encode() for part in (subject, reply) if part
        ]
        sizes = [len(data)] if headers is None else [len(headers), len(headers) + len(data)]
        words = [
            b"PUB" if headers is None else b"HPUB",
            *words,
            *(str(size).encode() for size in sizes),
        ]
        connection = await self.connection()
        with suppress(*LOST):
            await connection._send_command(
                b" ".join(words) + b"\r\n" + (headers or b"") + data + b"\r\n"
            )
            await connection._flush_pending()

    async def subscribe(self, subject):
        """SUB, whatever comes of it."""
        with suppress(*LOST):
            await (await self.connection()).subscribe(subject, cb=self._take)

    async def close(self):
        """Let go."""
        if self._connection is not None:
            with suppress(*LOST):
                await asyncio.wait_for(self._connection.close(), 5)
        self._connection = None
