"""Encodes log entries, calls, questions and wrapped messages: everything but plans, updates and
steps.

The coordinator broadcasts calls ("C"), plans ("P") and questions about the weights ("A"), which are
not stored. Clients send hellos (which get an answer), attaches, beats, updates and reports. An
entry of the log is a byte for its kind, and a body:

    H   header    length u32 | JSON (epoch: the log's incarnation; names) | the orbit's beginning,
                  as in its file
    S   session   8 random bytes: a coordinator has begun to write, so no earlier one may continue
    T   step      link | step message; link: a hash of the previous link and the message, so that
                  steps are chained
    M   mark      round u32 | digest of the weights after that round, as reported by the clients
    E   end       the run is over

The chain begins with the orbit header's link. A message that is too large to send directly becomes
a blob, and a reference takes its place. This module does not import torch or depend on the kind of
transport.
"""

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedseed.errors import MessageError
from fedseed.federation.control import Beginning, parse_control
from fedseed.orbit import Header
from fedseed.orbit.file import scan
from fedseed.orbit.record import DIGEST_BYTES, LINK_BYTES, link
from fedseed.text import show_text

_NUMBER = struct.Struct("<I")
_SILENT = struct.Struct("<2sIH")
ALL = 0xFFFFFFFF
SILENT = b"FN"
SAID = b"FK"  # a client's answer in a secure sum (`fedseed.federation.secure`)
_REASON_BYTES = 200
_NAME_CHARACTERS = 100  # the most characters of a name in a list


@dataclass(frozen=True)
class Entry:
    """An entry of the log: its kind and its body."""

    kind: str
    body: bytes

    def encode(self) -> bytes:
        """Return the entry as bytes, as in the log."""
        return self.kind.encode() + self.body

    @classmethod
    def decode(cls, data: bytes) -> "Entry":
        """Return the inverse of `encode`. Raises MessageError if the bytes are not an entry."""
        kind = chr(data[0]) if data else ""
        shortest = {"H": 4, "S": 8, "T": LINK_BYTES + 2, "M": _NUMBER.size + DIGEST_BYTES, "E": 0}
        if kind not in shortest:
            raise MessageError(f"an entry of unknown kind {kind!r}")
        if len(data) - 1 < shortest[kind]:
            raise MessageError(
                f"an entry {kind} with {len(data) - 1} bytes, but it needs at least "
                f"{shortest[kind]}"
            )
        return cls(kind, bytes(data[1:]))


def header_entry(beginning: Beginning, orbit_start: bytes) -> Entry:
    """Return the first entry of a log."""
    text = beginning.encode()
    return Entry("H", _NUMBER.pack(len(text)) + text + orbit_start)


def read_header(entry: Entry) -> tuple[Beginning, Header, bytes]:
    """Return a header entry's parts: its message, the orbit's header, the first step's link.

    Raises MessageError or OrbitError if the entry or the orbit's beginning is invalid.
    """
    size = int.from_bytes(entry.body[:4], "little")
    if entry.kind != "H" or len(entry.body) < 4 + size + LINK_BYTES:
        raise MessageError("the log does not begin with a header")
    start = entry.body[4 + size :]
    return (
        parse_control(Beginning, entry.body[4 : 4 + size]),
        scan(start, "the log's header")[0].header,
        start[-LINK_BYTES:],
    )


class LogContents(NamedTuple):
    """The contents of a whole log."""

    beginning: Beginning
    header: Header  # of the orbit
    link: bytes  # link that the first step follows
    steps: list[tuple[bytes, bytes]]  # for each step its link, and its message or reference
    marks: dict[int, str]  # digests by round
    sessions: int  # number of coordinators that have begun to write
    ended: bool  # whether the run is over

    @classmethod
    def from_entries(cls, data: Sequence[bytes]) -> "LogContents":
        """Parse a log's entries, of which the first must be a header.

        Raises MessageError or OrbitError if an entry is invalid.
        """
        entries = [Entry.decode(item) for item in data]
        kinds = [entry.kind for entry in entries]
        steps = [read_step(entry) for entry in entries if entry.kind == "T"]
        marks = dict(read_mark(entry) for entry in entries if entry.kind == "M")
        return cls(*read_header(entries[0]), steps, marks, kinds.count("S"), "E" in kinds)


def step_entry(previous: bytes, message: bytes, carried: bytes) -> tuple[Entry, bytes]:
    """Return a step's entry and its link.

    Args:
        previous: the link of the previous step.
        message: the step's message.
        carried: the message, or a reference to it.
    """
    new_link = link(previous, message)
    return Entry("T", new_link + carried), new_link


def read_step(entry: Entry) -> tuple[bytes, bytes]:
    """Return a step entry's link, and its message or reference."""
    return entry.body[:LINK_BYTES], entry.body[LINK_BYTES:]


def mark_entry(number: int, digest: str) -> Entry:
    """Return the entry with the digest of the weights after a round."""
    return Entry("M", _NUMBER.pack(number) + bytes.fromhex(digest))


def read_mark(entry: Entry) -> tuple[int, str]:
    """Return the round and the digest of a mark."""
    (number,) = _NUMBER.unpack_from(entry.body)
    return int(number), entry.body[_NUMBER.size : _NUMBER.size + DIGEST_BYTES].hex()


def plan_message(clients: Sequence[int], everybody: bool, carried: bytes) -> bytes:
    """Return the message of a plan for some clients, by their numbers, or for everybody."""
    if everybody:
        return b"P" + _NUMBER.pack(ALL) + carried
    return b"P" + struct.pack(f"<{1 + len(clients)}I", len(clients), *clients) + carried


def read_plan(body: bytes) -> tuple[frozenset[int] | None, bytes]:
    """Return the clients that a plan is for (None: all), and its message or a reference.

    Raises MessageError if the plan is invalid.
    """
    if len(body) < _NUMBER.size:
        raise MessageError("a plan without a list of clients")
    (count,) = _NUMBER.unpack_from(body)
    if count == ALL:
        return None, body[_NUMBER.size :]
    stop = _NUMBER.size * (1 + count)
    if len(body) < stop:
        raise MessageError(f"a cut-off plan for {count} clients")
    return frozenset(struct.unpack_from(f"<{count}I", body, _NUMBER.size)), body[stop:]


def silent_message(number: int, attempt: int, reason: str) -> bytes:
    """Return the message with which a client gives the reason for sending no update in this
    round.
    """
    return _SILENT.pack(SILENT, number, attempt) + reason.encode()[:_REASON_BYTES]


def read_silent(data: bytes) -> tuple[int, int, str]:
    """Return the round, the attempt and the reason of a `silent_message`.

    Raises MessageError if it is invalid.
    """
    if not _SILENT.size <= len(data) <= _SILENT.size + _REASON_BYTES:
        raise MessageError(f"a message about a missing update with only {len(data)} bytes")
    _, number, attempt = _SILENT.unpack_from(data)
    return number, attempt, show_text(data[_SILENT.size :].decode(errors="replace"))


def list_names(names: Collection[str], shown_count: int = 8) -> str:
    """Return sorted names as text: all of them, or the first few and the number of the others."""
    ordered = [show_text(name, _NAME_CHARACTERS) for name in sorted(names)]
    rest = f" and {len(ordered) - shown_count} more" if len(ordered) > shown_count else ""
    return ", ".join(ordered[:shown_count]) + rest
