"""Messages: plan (coordinator to client), update (client to coordinator) and step (coordinator to
all clients).

A message is a frame of 28 bytes and a payload. The frame has the kind of message and a checksum.
The payload belongs to the method, and all reported byte counts are of payload bytes. Everything in
a message is checked before it is used.
"""

import struct
import zlib
from dataclasses import dataclass, replace
from enum import IntEnum

from fedseed.errors import MessageError
from fedseed.randomness.stream import STREAM_VERSION

MAGIC = b"FS"
FORMAT = 1
# fields: magic, format, stream version, kind, method, attempt, round, client, payload length,
# CRC-32
_FRAME = struct.Struct("<2sBBBBHIIQI")
FRAME_BYTES = _FRAME.size
EVERYBODY = 0xFFFFFFFF  # the client field of a message to all clients


class MessageKind(IntEnum):
    """The kind of a message."""

    PLAN = 1
    UPDATE = 2
    STEP = 3


_KINDS = frozenset(MessageKind)


@dataclass(frozen=True)
class Message:
    """One message."""

    kind: MessageKind  # plan, update or step
    method: int  # the method's code (`Method.code`)
    round: int  # round or step number, from 1
    client: int  # sender of an update, receiver of a plan, or EVERYBODY
    payload: bytes  # bytes of the method
    attempt: int = 0  # how often the round began before

    def encode(self) -> bytes:
        """Return the bytes of frame and payload."""
        fields = (self.kind, self.method, self.attempt, self.round, self.client, len(self.payload))
        head = (MAGIC, FORMAT, STREAM_VERSION, *fields)
        check = zlib.crc32(self.payload, zlib.crc32(_FRAME.pack(*head, 0)))
        return _FRAME.pack(*head, check) + self.payload

    @classmethod
    def decode(cls, data: bytes) -> "Message":
        """Return the inverse of `encode`.

        Raises MessageError if the message has another version, is cut off, too long or damaged.
        """
        message, payload = cls.decode_view(data)
        return replace(message, payload=bytes(payload))

    @classmethod
    def decode_view(cls, data: bytes) -> tuple["Message", memoryview]:
        """Return a message without its payload, and the payload as a view of `data`.

        A copy of whole weights would take more time than all checks.

        Raises MessageError if the message has another version, is cut off, too long or damaged.
        """
        if len(data) < FRAME_BYTES:
            raise MessageError(
                f"a message has at least {FRAME_BYTES} bytes, but this one has {len(data)}"
            )
        magic, message_format, stream, kind, method, attempt, number, client, length, check = (
            _FRAME.unpack_from(data)
        )
        if magic != MAGIC:
            raise MessageError(f"not a fedseed message: it begins with {magic!r}")
        if message_format != FORMAT:
            raise MessageError(
                f"message format {message_format}, but this version of fedseed reads format "
                f"{FORMAT}"
            )
        if stream != STREAM_VERSION:
            raise MessageError(
                f"random stream version {stream}, but this version of fedseed has {STREAM_VERSION}"
            )
        if kind not in _KINDS:
            raise MessageError(f"message kind {kind} is unknown")
        if length != len(data) - FRAME_BYTES:
            raise MessageError(
                f"the frame announces {length} payload bytes, but {len(data) - FRAME_BYTES} came"
            )
        payload = memoryview(data)[FRAME_BYTES:]
        # the checksum was computed with zeros in its own field
        if zlib.crc32(payload, zlib.crc32(data[: FRAME_BYTES - 4] + bytes(4))) != check:
            raise MessageError("the checksum differs: the message was damaged on the way")
        return cls(MessageKind(kind), method, number, client, b"", attempt), payload

    def expect(self, kind: MessageKind, method: int, number: int) -> "Message":
        """Check the message's kind, method and round, and return it.

        Raises MessageError if one of them differs.
        """
        if self.kind != kind:
            raise MessageError(f"expected a {kind.name.lower()}, got a {self.kind.name.lower()}")
        if self.method != method:
            raise MessageError(f"expected method code {method}, got {self.method}")
        if self.round != number:
            raise MessageError(f"expected round {number}, got round {self.round}")
        return self
