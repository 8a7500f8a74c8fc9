"""The messages between neighbours.

    summary    what the sender has: for each node's log the number of entries, four bytes of the
               last one's link, and the highest beat that the sender knows of that node
    entries    steps, of the sender or other nodes
    forks      pairs of entries, each a proof that a node has made two different ones of one number

Each begins with magic "FN", the format and the kind. A summary also has the run's fingerprint and
the base's digest, so that messages of other runs can be distinguished from damaged ones. Every part
of a message is checked before use, and no message makes a node keep more than the entries in it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from fedseed.decentralised.entry import Entry, read_entries
from fedseed.errors import MessageError
from fedseed.orbit.record import DIGEST_BYTES, LINK_BYTES

MAGIC, FORMAT = b"FN", 1
HEAD = struct.Struct("<2sBB")
# sender's flags, number of nodes
SUMMARY = struct.Struct(f"<{LINK_BYTES}s{DIGEST_BYTES}sBH")
LINE = struct.Struct("<I4sI")
TAG_BYTES = 4
ENDS = 1  # a summary's flag: the sender ends, and needs no further entries
MOST_BEATS = (1 << 32) - 1
LARGEST = 256 * 1024  # most bytes of a message
# most bytes of entries in one message to a neighbour that lacks them
BATCH = 128 * 1024


class Kind(IntEnum):
    """The kind of a message."""

    SUMMARY = 1
    ENTRIES = 2
    FORKS = 3


@dataclass(frozen=True)
class Line:
    """The line of a summary about one node's log."""

    count: int  # number of entries that the sender has
    tag: bytes  # the first bytes of the last one's link
    beat: int  # the highest beat of that node that the sender knows


@dataclass(frozen=True)
class Summary:
    """A summary of the logs that a node has."""

    fingerprint: bytes
    base_digest: bytes
    lines: Sequence[Line]
    ends: bool = False  # the sender ends, and needs no further entries

    def encode(self) -> bytes:
        """Return the message."""
        flags = ENDS if self.ends else 0
        head = SUMMARY.pack(self.fingerprint, self.base_digest, flags, len(self.lines))
        lines = (LINE.pack(line.count, line.tag, line.beat) for line in self.lines)
        return HEAD.pack(MAGIC, FORMAT, Kind.SUMMARY) + head + b"".join(lines)

    @classmethod
    def decode(cls, data: bytes) -> "Summary":
        """Return the inverse of `encode`. Raises MessageError."""
        start = HEAD.size + SUMMARY.size
        if len(data) < start:
            raise MessageError("a summary is cut short")
        fingerprint, base_digest, flags, count = SUMMARY.unpack_from(data, HEAD.size)
        if len(data) != start + count * LINE.size:
            raise MessageError(f"a summary of {count} nodes in {len(data)} bytes")
        lines = [Line(*fields) for fields in LINE.iter_unpack(data[start:])]
        return cls(fingerprint, base_digest, lines, bool(flags & ENDS))


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Return a message of entries."""
    return HEAD.pack(MAGIC, FORMAT, Kind.ENTRIES) + b"".join(e.encode() for e in entries)


def encode_forks(forks: Sequence[tuple[Entry, Entry]]) -> bytes:
    """Return a message of proofs."""
    pairs = b"".join(first.encode() + second.encode() for first, second in forks)
    return HEAD.pack(MAGIC, FORMAT, Kind.FORKS) + pairs


def kind_of(data: bytes) -> Kind:
    """Return the kind of a message. Raises MessageError: it is not valid, or too large."""
    if len(data) > LARGEST:
        raise MessageError(f"a message of {len(data):,} bytes: at most {LARGEST:,}")
    if len(data) < HEAD.size:
        raise MessageError(f"a message of {len(data)} bytes")
    magic, version, kind = HEAD.unpack_from(data)
    if magic != MAGIC or version != FORMAT:
        raise MessageError(f"not a message of a mesh of format {FORMAT}")
    if kind not in frozenset(Kind):
        raise MessageError(f"message kind {kind} is unknown")
    return Kind(kind)


def decode_entries(data: bytes) -> list[Entry]:
    """Return the entries of a message. Raises MessageError."""
    return read_entries(data, HEAD.size)


def decode_forks(data: bytes) -> list[tuple[Entry, Entry]]:
    """Return the pairs of a message. Raises MessageError."""
    entries = read_entries(data, HEAD.size)
    if len(entries) % 2:
        raise MessageError("a proof has two entries")
    return list(zip(entries[::2], entries[1::2], strict=True))


def take_batch(entries: Sequence[Entry]) -> list[Entry]:
    """Return the first entries that fit into one message; at least one."""
    size = 0
    batch: list[Entry] = []
    for entry in entries:
        size += entry.size
        if batch and size > BATCH:
            break
        batch.append(entry)
    return batch
