"""NATS by hand: what a library would not send. One connection with a key, which comes back when the server ends it."""

import asyncio
from contextlib import suppress

import nats.errors

from fedseed.transport.base import Access, Events
from fedseed.transport.nats_connection import connect


class Wire:
    """A connection whose every byte can be chosen.

    Args:
        server: the address.
        subjects: the run's.
        name: whose key it is.
        key: its file.
        ca: the authority's.
    """

    def __init__(self, server, subjects, name, key, ca):
        self._how = Access(server, key, ca), subjects, name
        self.violations = []
        self.inbox = f"{subjects.inbox(name)}.x"
        self.came = []  # what others sent here
        self._connection = None

    async def connection(self):
        """The connection, a new one if the server has ended the last."""
        if self._connection is None or not self._connection.is_connected:
            await self.close()
            self._connection = await connect(*self._how, Events(self.violations.append))
            self._connection.options["allow_reconnect"] = False

            async def take(message):
                self.came.append(message)

            await self._connection.subscribe(f"{self.inbox}.>", cb=take)
        return self._connection

    async def publish(self, subject, data=b"", reply="", headers=None):
        """PUB or HPUB as it stands here: nothing is checked.

        Args:
            subject: text, or bytes of any kind without spaces and line breaks.
            data: the payload.
            reply: where answers go.
            headers: the bytes of a header block; None: no headers.
        """
        to = [part if isinstance(part, bytes) else part.encode() for part in (subject, reply) if part]
        if headers is None:
            command = b" ".join([b"PUB", *to, str(len(data)).encode()])
            block = command + b"\r\n" + data + b"\r\n"
        else:
            sizes = [str(len(headers)).encode(), str(len(headers) + len(data)).encode()]
            block = b" ".join([b"HPUB", *to, *sizes]) + b"\r\n" + headers + data + b"\r\n"
        connection = await self.connection()
        with suppress(nats.errors.Error, OSError):
            await connection._send_command(block)
            await connection._flush_pending()

    async def subscribe(self, subject):
        """SUB, whatever comes of it."""

        async def take(message):
            self.came.append(message)

        with suppress(nats.errors.Error, OSError):
            await (await self.connection()).subscribe(subject, cb=take)

    async def flush(self):
        """The server has read everything."""
        with suppress(nats.errors.Error, OSError, TimeoutError, asyncio.TimeoutError):
            await (await self.connection()).flush(timeout=60)

    async def close(self):
        """Let go."""
        if self._connection is not None:
            with suppress(nats.errors.Error, OSError, TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._connection.close(), 5)
        self._connection = None
