"""Messages that are too large to send directly: they are stored as blobs, and references to them
are sent.
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
    """A reference to a message that is stored as a blob."""

    name: str  # the blob's name
    size: int  # bytes of the message
    frame: bytes  # the message's frame, which describes the message before it is fetched

    def encode(self) -> bytes:
        """Return the bytes that are sent in place of the message."""
        return STORED + struct.pack("<Q", self.size) + self.frame + self.name.encode()

    @classmethod
    def decode(cls, data: bytes) -> "Stored":
        """Return the inverse of `encode`. Raises MessageError if the bytes are invalid."""
        start = len(STORED) + 8
        name = data[start + FRAME_BYTES :].decode("ascii", errors="replace")
        if not _NAME.fullmatch(name):
            raise MessageError("a reference to an object without a valid name")
        (size,) = struct.unpack_from("<Q", data, len(STORED))
        return cls(name, size, bytes(data[start : start + FRAME_BYTES]))


def is_stored(carried: bytes) -> bool:
    """Return whether these bytes are a reference to a message."""
    return carried[: len(STORED)] == STORED


async def carry(end: End, message: bytes, name: str) -> bytes:
    """Return the message. If it is large, store it as blob `name` and return a reference to it."""
    if len(message) <= end.largest:
        return message
    await end.put(name, message)
    return Stored(name, len(message), message[:FRAME_BYTES]).encode()


async def fetch(
    end: End, carried: bytes, owner: str | None, size_limit: int | None = None
) -> bytes:
    """Return a message, fetched if these bytes are a reference to it.

    Args:
        end: this side's end of the transport.
        carried: the message or a reference.
        owner: the owner of the blob; None: the coordinator.
        size_limit: the largest size that is accepted; None: no limit.

    Raises MessageError if the message is missing, too large, or different from what the reference
    announced.
    """
    if not is_stored(carried):
        return carried
    reference = Stored.decode(carried)
    if size_limit is not None and reference.size > size_limit:
        raise MessageError(
            f"a message of {reference.size:,} bytes, but at most {size_limit:,} are accepted"
        )
    message = await end.get(owner, reference.name, reference.size)
    if len(message) != reference.size or message[:FRAME_BYTES] != reference.frame:
        raise MessageError(f"the object {reference.name} differs from what was announced")
    return message


def round_and_attempt(carried: bytes) -> tuple[int, int]:
    """Return the round and the attempt of a plan or an answer, without checking it.

    Args:
        carried: the message or a reference.

    Raises MessageError if it can't be read.
    """
    if carried[: len(SILENT)] == SILENT:
        return read_silent(carried)[:2]
    frame = Stored.decode(carried).frame if is_stored(carried) else carried
    return int.from_bytes(frame[8:12], "little"), int.from_bytes(frame[6:8], "little")


@dataclass
class Room:
    """Limits the memory for fetched messages. Requests get memory in order, and never more than
    `free`.
    """

    free: int  # free bytes; no request is larger than the initial value
    # held by the request that is waiting for memory
    _first: asyncio.Lock = field(default_factory=asyncio.Lock)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Wait until `size` bytes are free, and hold them."""
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
