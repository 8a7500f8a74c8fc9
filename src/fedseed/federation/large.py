"""Messages that are too large for one piece: they travel as blobs, and a reference goes in their
place.
"""

import asyncio
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fedseed.errors import MessageError
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.protocol import SILENT, read_silent
from fedseed.transport.base import End

STORED = b"FO"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True)
class Stored:
    """A reference to a message that is a blob."""

    name: str  # the blob's name
    size: int  # bytes of the message
    frame: bytes  # the message's frame, so that what it is about is known before it is fetched

    def encode(self) -> bytes:
        """Return the bytes that stand in the message's place."""
        return STORED + struct.pack("<Q", self.size) + self.frame + self.name.encode()

    @classmethod
    def decode(cls, data: bytes) -> "Stored":
        """Return the inverse of `encode`. Raises MessageError: the bytes are not valid."""
        start = len(STORED) + 8
        name = data[start + FRAME_BYTES :].decode("ascii", errors="replace")
        if not _NAME.fullmatch(name):
            raise MessageError("a reference to an object without a valid name")
        (size,) = struct.unpack_from("<Q", data, len(STORED))
        return cls(name, size, bytes(data[start : start + FRAME_BYTES]))


def is_stored(carried: bytes) -> bool:
    """Return whether this is a reference to a message."""
    return carried[: len(STORED)] == STORED


async def carry(end: End, message: bytes, name: str) -> bytes:
    """Return the message itself, or, if it is large, a reference to it: it is stored as a blob
    `name` of this end.
    """
    if len(message) <= end.largest:
        return message
    await end.put(name, message)
    return Stored(name, len(message), message[:FRAME_BYTES]).encode()


async def fetch(end: End, carried: bytes, owner: str | None, most: int | None = None) -> bytes:
    """Return the message, wherever it is.

    Args:
        end: this side's.
        carried: the message or a reference.
        owner: whose blobs it refers to; None: the coordinator's.
        most: largest size that is accepted.

    Raises MessageError: not there, too large, or not what the reference says.
    """
    if not is_stored(carried):
        return carried
    reference = Stored.decode(carried)
    if most is not None and reference.size > most:
        raise MessageError(f"a message of {reference.size:,} bytes: at most {most:,} are accepted")
    message = await end.get(owner, reference.name, reference.size)
    if len(message) != reference.size or message[:FRAME_BYTES] != reference.frame:
        raise MessageError(f"the object {reference.name} is not what was announced")
    return message


def about_of(carried: bytes) -> tuple[int, int]:
    """Return the round and the attempt that a plan or an answer is about, wherever it is.

    They are not checked.

    Raises MessageError: it can't be read.
    """
    if carried[: len(SILENT)] == SILENT:
        return read_silent(carried)[:2]
    frame = Stored.decode(carried).frame if is_stored(carried) else carried
    return int.from_bytes(frame[8:12], "little"), int.from_bytes(frame[6:8], "little")


@dataclass
class Room:
    """Memory for what is fetched: whoever comes first has it first, and all together never have
    more than there is.
    """

    free: int  # bytes; nobody needs more alone than there are at first
    # who holds it is the first of those who wait
    _first: asyncio.Lock = field(default_factory=asyncio.Lock)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Wait until there is room for so many bytes, and hold it."""
        async with self._first:
            while self.free < size:
                self._freed.clear()
                await self._freed.wait()
            self.free -= size
        try:
            yield
        finally:
            self.free += size
            self._freed.set()
