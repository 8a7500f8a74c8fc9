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
FRAME = HEAD.size + DIGEST_BYTES + LINK_BYTES  # a record's bytes besides its payload
# steps in a record, and bytes of their payloads before packing
MOST_PACKED = 1 << 16


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a file has it: one step, or many packed.

    `Orbit.records` holds single steps only.
    """

    round: int  # the number of its (first) step, from 1
    # the method's step, encoded; or `pack` of many
    payload: bytes
    # hex digest of the trainable weights after the (last) step; zeros: not recorded
    digest: str = NO_DIGEST
    # how many; none in the record that ends a file
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
        """Raise MessageError if the payload can't be that many steps; none of them is made."""
        if self.steps == 1 or (self.steps == 0 and not self.payload):
            return
        if not 1 <= self.steps <= MOST_PACKED or not 0 < len(self.payload) <= MOST_PACKED:
            raise MessageError(f"{self.steps} steps in {len(self.payload)} bytes")
        check_pack(method, self.payload, self.steps)

    def unpack(self, method: Method) -> Iterator["Record"]:
        """Yield its steps. Raises MessageError if the payload can't be that many."""
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
    """The single steps of records, unpacked anew in each iteration, as a step may be a bit."""

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
    """Yield steps as a finished orbit holds them: those of a step-by-step method packed, others
    one by one.

    What comes out depends on the steps alone, so that an interrupted run ends in the same bytes.
    Neighbours with payloads of one length share a record until their payloads reach MOST_PACKED
    bytes; steps without content stay single. A packed record keeps the last one's digest only.
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
    """Yield the records, and the one that ends a file: no steps, and the last digest once more."""
    last = Record(0, b"")
    for last in parts:
        yield last
    yield Record(last.last + 1, b"", last.digest, steps=0)
