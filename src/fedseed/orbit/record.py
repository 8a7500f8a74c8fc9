"""An orbit's records: steps, alone or packed, each checked and chained to the one before."""

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from math import inf

from fedseed.errors import MessageError
from fedseed.methods import Method
from fedseed.methods.payload import check_pack, pack, unpack

LINK_BYTES = 16
DIGEST_BYTES = 16
NO_DIGEST = "00" * 16
HEAD = struct.Struct("<IIII")
FRAME = HEAD.size + DIGEST_BYTES + LINK_BYTES  # bytes of a record without its payload
# most steps in a record, and most bytes of their payloads before packing
MOST_PACKED = 1 << 16


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a file has it: one step, or many packed.

    `Orbit.records` holds single steps only.
    """

    round: int  # the number of its (first) step, from 1
    # the method's encoded step, or several steps packed by `pack`
    payload: bytes
    # hex digest of the trainable weights after the (last) step; zeros: not recorded
    digest: str = NO_DIGEST
    # number of steps; 0 in the record that ends a file
    steps: int = 1

    @property
    def last(self) -> int:
        """Return the number of its last step."""
        return self.round + self.steps - 1

    def encode(self) -> bytes:
        """Return the record's bytes, without the link."""
        return b"".join(self.encode_parts())

    def encode_parts(self) -> tuple[bytes, bytes, bytes]:
        """Return the record's bytes, without the link, in three parts: head, payload, digest.

        A payload of whole weights is not copied.
        """
        head = struct.pack("<III", len(self.payload), self.round, self.steps)
        check = struct.pack("<I", zlib.crc32(head))
        return head + check, self.payload, bytes.fromhex(self.digest)

    def check(self, method: Method) -> None:
        """Raise MessageError if the payload can't be that many steps. No step is decoded."""
        if self.steps == 1 or (self.steps == 0 and not self.payload):
            return
        if not 1 <= self.steps <= MOST_PACKED or not 0 < len(self.payload) <= MOST_PACKED:
            raise MessageError(f"{self.steps} steps in {len(self.payload)} bytes")
        check_pack(method, self.payload, self.steps)

    def unpack(self, method: Method) -> Iterator["Record"]:
        """Yield single steps. Raises MessageError if the payload can't be that many."""
        self.check(method)
        if self.steps == 1:
            yield self
        elif self.steps:
            for number, payload in enumerate(
                unpack(method, self.payload, self.steps), start=self.round
            ):
                yield Record(number, payload, self.digest if number == self.last else NO_DIGEST)


@dataclass(frozen=True)
class Steps:
    """The single steps of records. They are unpacked in each iteration: packed steps may be one bit
    each.
    """

    parts: Sequence[Record]
    method: Method
    upto: int | None = None  # number of the last step; None: all

    def __iter__(self) -> Iterator[Record]:
        last = inf if self.upto is None else self.upto
        parts = (part.unpack(self.method) for part in self.parts if part.round <= last)
        return takewhile(lambda step: step.round <= last, chain.from_iterable(parts))


def link(previous: bytes, *parts: bytes | memoryview) -> bytes:
    """Return the hash that checks some bytes, given in parts, and chains them to what comes
    before.
    """
    chain = hashlib.blake2b(previous, digest_size=LINK_BYTES)
    for part in parts:
        chain.update(part)
    return chain.digest()


def pack_records(method: Method, records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records of a finished orbit: packed steps for a step-by-step method, single steps
    for others.

    The records depend on the steps alone, so that an interrupted run ends with the same bytes.
    Consecutive steps with payloads of equal length share a record until their payloads reach
    MOST_PACKED bytes. Steps without content have a record each. A packed record has only the digest
    after its last step.
    """
    together: list[Record] = []

    def join() -> Record:
        if len(together) > 1:
            payload = pack(method, [r.payload for r in together])
        else:
            payload = together[0].payload
        return Record(together[0].round, payload, together[-1].digest, len(together))

    for record in records:
        if together:
            size = len(together[0].payload)
            fits = size == len(record.payload) and 0 < size * (len(together) + 1) <= MOST_PACKED
            if not (method.stepwise and fits):
                yield join()
                together = []
        together.append(record)
    if together:
        yield join()


def ending(parts: Iterable[Record]) -> Iterator[Record]:
    """Yield the records, then the one that ends a file: it has no steps, and repeats the last
    digest.
    """
    last = Record(0, b"")
    for last in parts:
        yield last
    yield Record(last.last + 1, b"", last.digest, steps=0)
