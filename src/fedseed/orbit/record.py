"""An orbit's records: steps, alone or packed, each checked and chained to the one before."""

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fedseed.errors import MessageError
from fedseed.methods import Method
from fedseed.methods.payload import check_pack, pack, unpack

LINK_BYTES = 16
DIGEST_BYTES = 16
NO_DIGEST = "00" * 16
HEAD = struct.Struct("<IIII")
FRAME = HEAD.size + DIGEST_BYTES + LINK_BYTES  # a record's bytes besides its payload
MOST_PACKED = 1 << 16  # steps in a record, and bytes of their payloads before packing


@dataclass(frozen=True, slots=True)
class Record:
    """One step.

    Args:
        round: its number, from 1.
        payload: the method's step, encoded.
        digest: hex digest of the trainable weights after the step; zeros: not recorded.
    """

    round: int
    payload: bytes
    digest: str = NO_DIGEST


@dataclass(frozen=True, slots=True)
class PackedRecord:
    """A record as the file has it: one step, or many packed.

    Args:
        first: the number of its first step.
        steps: how many; none in the record that ends a file.
        payload: the step's payload, or `method.pack` of many.
        digest: hex digest of the trainable weights after the last one; zeros: not recorded.
    """

    first: int
    steps: int
    payload: bytes
    digest: str = NO_DIGEST

    @property
    def last(self) -> int:
        """The number of its last step."""
        return self.first + self.steps - 1

    def encode(self) -> bytes:
        """The record's bytes, without the link."""
        head = struct.pack("<III", len(self.payload), self.first, self.steps)
        return head + struct.pack("<I", zlib.crc32(head)) + self.payload + bytes.fromhex(self.digest)

    def check(self, method: Method) -> None:
        """Whether the payload can be that many steps; none of them is made.

        Raises:
            MessageError: it can't.
        """
        if self.steps == 1 or (self.steps == 0 and not self.payload):
            return
        if not 1 <= self.steps <= MOST_PACKED or not 0 < len(self.payload) <= MOST_PACKED:
            raise MessageError(f"{self.steps} steps in {len(self.payload)} bytes")
        check_pack(method, self.payload, self.steps)

    def unpack(self, method: Method) -> Iterator[Record]:
        """Its steps.

        Raises:
            MessageError: the payload can't be that many steps.
        """
        self.check(method)
        if self.steps <= 1:
            if self.steps:
                yield Record(self.first, self.payload, self.digest)
            return
        payloads = unpack(method, self.payload, self.steps)
        for number, payload in enumerate(payloads, start=self.first):
            yield Record(number, payload, self.digest if number == self.last else NO_DIGEST)


@dataclass(frozen=True)
class Steps:
    """The steps of records, made one after the other each time they are gone through: a bit may be a step.

    Args:
        parts: the records.
        method: the method.
        upto: number of the last step; None: all.
    """

    parts: Sequence[PackedRecord]
    method: Method
    upto: int | None = None

    def __iter__(self) -> Iterator[Record]:
        for part in self.parts:
            if self.upto is not None and part.first > self.upto:
                return
            for record in part.unpack(self.method):
                if self.upto is not None and record.round > self.upto:
                    return
                yield record


def link(previous: bytes, data: bytes) -> bytes:
    """The hash that checks `data` and chains it to what comes before."""
    return hashlib.blake2b(previous + data, digest_size=LINK_BYTES).digest()


def packed(method: Method, records: Iterable[Record]) -> Iterator[PackedRecord]:
    """Steps as a finished orbit holds them: those of a step-by-step method packed, others one by one.

    What comes out depends on the steps alone, so that an interrupted run ends in the same bytes. Neighbours with
    payloads of one length share a record until their payloads reach MOST_PACKED bytes; steps without content stay
    single. A packed record keeps the last one's digest only.
    """
    together: list[Record] = []

    def join() -> PackedRecord:
        payload = pack(method, [r.payload for r in together]) if len(together) > 1 else together[0].payload
        return PackedRecord(together[0].round, len(together), payload, together[-1].digest)

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


def ending(parts: Iterable[PackedRecord]) -> Iterator[PackedRecord]:
    """The records, and the one that ends a file: no steps, and the last digest once more."""
    last = None
    for last in parts:
        yield last
    yield PackedRecord(1, 0, b"") if last is None else PackedRecord(last.last + 1, 0, b"", last.digest)
