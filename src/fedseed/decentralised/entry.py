"""An entry of a node's log: one step, chained to the entry before it.

    head       magic "FM" | format u8 | kind u8 | node u16 | number u32 | round u32 | length u32
    payload    the method's update, as a client sends it
    previous   link of the entry before it, 16 bytes
    end        link of this entry, 16 bytes; or the node's signature, 64 bytes

Little-endian. `number` counts the entries of one log from 1, `round` is the step's number; rounds
ascend, and may leave gaps where a node was away. The kind's highest bit marks a signed entry. A
link is a BLAKE2b-128 hash of the link before it and of head and payload. The first entry follows
the run's fingerprint, so that an entry of another recipe, base or list of nodes is refused. An
entry can be checked alone, whichever node passes it on.
"""

import base64
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from fedseed.errors import MessageError
from fedseed.orbit.header import Header
from fedseed.orbit.record import LINK_BYTES, link
from fedseed.transport.signatures import HEADER, SIGNATURE_BYTES, Signatures, signature_in
from fedseed.transport.subjects import token

MAGIC, FORMAT = b"FM", 1
HEAD = struct.Struct("<2sBBHIII")
SIGNED = 0x80  # among the flags, whose other bits are the entry's kind
MOST_PAYLOAD = 200_000  # bytes; an entry with its frame fits into a message of 256 KiB


def fingerprint_of(header: Header, run: str, names: Sequence[str], rounds: int) -> bytes:
    """Return the hash of all that the nodes of a run must have in common, 16 bytes.

    Values that may differ between machines, such as the base's folder, are left out.

    Args:
        header: of the run's orbit.
        run: the run's name.
        names: names of all nodes, in the order of their numbers.
        rounds: the number of rounds.
    """
    common = replace(header, base="", base_folder="", libraries="")
    settings = {"run": run, "nodes": list(names), "rounds": rounds}
    return link(b"fedseed mesh", common.encode() + json.dumps(settings).encode())


class EntryKind(IntEnum):
    """The kind of an entry."""

    STEP = 0
    ABSTENTION = 1  # the node has no update for this round: no loss was usable
    END = 2  # the node makes no more steps


@dataclass(frozen=True)
class Identity:
    """The keys of a node: they sign its entries, and check those of others."""

    run: str
    names: Sequence[str]  # names of all nodes, in the order of their numbers
    signatures: Signatures = field(default_factory=Signatures)

    @property
    def checks(self) -> bool:
        """Return whether entries must be signed: the nodes' public keys are known."""
        return self.signatures.clients is not None

    def sign(self, entry: "Entry") -> "Entry":
        """Return an entry of this node with its signature; unchanged if there is no key."""
        headers = self.signatures.headers(self._subject(entry), entry.signed_bytes)
        signature = signature_in(headers)
        if signature is None:
            return entry
        return replace(entry, signature=signature)

    def check(self, entry: "Entry") -> None:
        """Raise MessageError if keys are known and an entry is not signed by its node."""
        if not self.checks:
            return
        headers = {HEADER: base64.b64encode(entry.signature).decode()}
        name = self.names[entry.node]
        subject = self._subject(entry)
        if not self.signatures.of_client(name, subject, entry.signed_bytes, headers):
            raise MessageError(f"entry {entry.number} of {name} is not signed by its key")

    def _subject(self, entry: "Entry") -> str:
        return f"fedseed.{self.run}.node.{token(self.names[entry.node])}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a log."""

    node: int  # the number of the node that wrote it
    number: int  # of the entry in its log, from 1
    round: int  # the step's number, from 1
    payload: bytes  # the method's update
    previous: bytes  # link of the entry before it
    kind: EntryKind = EntryKind.STEP
    signature: bytes = b""

    @property
    def body(self) -> bytes:
        """Return head and payload."""
        flags = self.kind | (SIGNED if self.signature else 0)
        fields = (flags, self.node, self.number, self.round, len(self.payload))
        return HEAD.pack(MAGIC, FORMAT, *fields) + self.payload

    @property
    def signed_bytes(self) -> bytes:
        """Return what a signature covers."""
        return self.previous + replace(self, signature=b"").body

    @property
    def link(self) -> bytes:
        """Return the hash that the next entry is chained to."""
        return link(self.previous, replace(self, signature=b"").body)

    def encode(self) -> bytes:
        """Return the entry's bytes."""
        return self.body + self.previous + (self.signature or self.link)

    @property
    def size(self) -> int:
        """Return the number of its bytes."""
        end = SIGNATURE_BYTES if self.signature else LINK_BYTES
        return HEAD.size + len(self.payload) + LINK_BYTES + end

    @classmethod
    def read(cls, data: bytes, start: int = 0) -> "Entry":
        """Return the entry that begins at `start`; more may follow.

        Raises:
            MessageError: it is cut short, damaged, too large or of another format.
        """
        if start + HEAD.size > len(data):
            raise MessageError("an entry is cut short")
        magic, version, flags, node, number, round_number, length = HEAD.unpack_from(data, start)
        kind = flags & ~SIGNED
        if magic != MAGIC or version != FORMAT or kind not in frozenset(EntryKind):
            raise MessageError(f"not an entry of format {FORMAT}")
        if length > MOST_PAYLOAD:
            raise MessageError(f"an entry of {length:,} bytes: at most {MOST_PAYLOAD:,}")
        payload_end = start + HEAD.size + length
        previous_end = payload_end + LINK_BYTES
        stop = previous_end + (SIGNATURE_BYTES if flags & SIGNED else LINK_BYTES)
        if stop > len(data):
            raise MessageError("an entry is cut short")
        if not number or not round_number:
            raise MessageError("an entry's number and round count from 1")
        end = data[previous_end:stop]
        entry = cls(
            node,
            number,
            round_number,
            data[start + HEAD.size : payload_end],
            data[payload_end:previous_end],
            EntryKind(kind),
            end if flags & SIGNED else b"",
        )
        if entry.kind is not EntryKind.STEP and entry.payload:
            raise MessageError(
                f"entry {number} of node {node} has an update, but is marked as having none"
            )
        if not entry.signature and entry.link != end:
            raise MessageError(f"entry {number} of node {node} was damaged on the way")
        return entry


def read_entries(data: bytes, start: int = 0) -> list[Entry]:
    """Return the entries in the data, up to its end.

    Raises MessageError: one is not valid.
    """
    entries: list[Entry] = []
    while start < len(data):
        entry = Entry.read(data, start)
        entries.append(entry)
        start += entry.size
    return entries
