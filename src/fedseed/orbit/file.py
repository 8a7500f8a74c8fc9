"""The orbit file, format 3: a header, then one record per step, each checked and chained to the one
before.

    header   magic "fedorbit" | format u16 | stream version u16 | length u32 | zlib-compressed JSON
    | link
    record   length u32 | first step u32 | steps u32 | CRC-32 of these u32 | payload | digest | link

Little-endian throughout, digest and link 16 bytes; docs/orbit-format.md gives every byte. A link is
a BLAKE2b-128 hash of the link before it and of all bytes since. It is both a checksum and a chain.
The CRC protects the length, so that a file cut short can be distinguished from a damaged length.
The payload is the method's step, as it was sent, or many steps packed (FeedSign: one bit each). The
digest is that of the weights after the last step; zeros: not recorded. A record without steps marks
the end of the run, and of a whole file. Only `equip` and `replay` need torch.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from fedseed.durable import is_irregular, replacing
from fedseed.errors import MessageError, OrbitError
from fedseed.orbit.header import MAGIC, READABLE, START, Header
from fedseed.orbit.record import (
    DIGEST_BYTES,
    FRAME,
    HEAD,
    LINK_BYTES,
    NO_DIGEST,
    Record,
    Steps,
    link,
)
from fedseed.randomness.stream import STREAM_VERSION

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Damage:
    """The first damage in a file."""

    text: str  # what is wrong
    # whether only the last record is affected, as by an interrupted write: it may be cut off then
    torn: bool


@dataclass(frozen=True)
class Orbit:
    """An orbit in memory.

    Args:
        header: what replay needs.
        parts: the records, packed as in the file.
        start: the header's bytes with the link.
        end: the last link, to which the next record is chained.
        size: number of bytes of the file that were read.
        complete: whether the file ends with the record that marks the end of the run; False during
            the run, and if the end is cut off.
    """

    header: Header
    parts: tuple[Record, ...]
    start: bytes
    end: bytes
    size: int
    complete: bool

    def __len__(self) -> int:
        return sum(part.steps for part in self.parts)

    @property
    def last(self) -> int:
        """Return the number of the last step; `header.first` - 1 if there is none."""
        if self.parts:
            return self.parts[-1].last
        return self.header.first - 1

    @property
    def last_digest(self) -> str | None:
        """Return the digest of the weights after the last step; None: it is not recorded."""
        digest = self.parts[-1].digest if self.parts else NO_DIGEST
        if digest == NO_DIGEST:
            return None
        return digest

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """Return all steps, one record each."""
        return tuple(self.steps())

    def steps(self, upto: int | None = None) -> Steps:
        """Yield the steps up to and including number `upto`."""
        return Steps(self.parts, self.header.method, upto)

    @classmethod
    def open(cls, path: str | Path) -> "Orbit":
        """Read and check an orbit file.

        Raises:
            OrbitError: missing, another format or stream version, damaged or cut short; names the
                step.
        """
        return cls.parse(read_file(path), str(path))

    @classmethod
    def parse(cls, data: bytes, source: str = "orbit") -> "Orbit":
        """Read and check an orbit in memory, as `open` does.

        Args:
            data: the bytes.
            source: a name for the data, for errors.
        """
        orbit, damage = scan(data, source)
        if damage is not None:
            raise OrbitError(damage.text)
        return orbit

    def check_upto(self, upto: int | None) -> int:
        """Return `upto`, or the last step's number for None.

        Raises OrbitError: the orbit can't be replayed to this step.
        """
        count = self.last if upto is None else upto
        if self.header.first > 1 and 0 <= count < self.header.first:
            raise OrbitError(
                f"step {count}: this orbit is compacted, and its first step is {self.header.first}"
            )
        if not 0 <= count <= self.last:
            raise OrbitError(f"step {count}: the orbit has steps 0 to {self.last}")
        return count

    def check_steps(self) -> None:
        """Decode every step with the orbit's method; no model is needed.

        Raises OrbitError with the number of a step that is not valid.
        """
        method = self.header.method
        state = self.header.start()
        for record in self.steps():
            try:
                state = method.advance(state, method.decode_step(state, record.payload))
            except MessageError as error:
                raise OrbitError(f"step {record.round}: {error}") from error

    def equip(self, model: "torch.nn.Module") -> "torch.nn.Module":
        """Return the base with the orbit's adapter at its first weights, ready for `replay`.

        Args:
            model: the base, as loaded. Without an adapter it is returned as it is.

        Raises:
            OrbitError: it is another base, or the adapter's first weights are not those of the run.
        """
        from fedseed.orbit.replay import equip

        return equip(self.header, model)

    def replay(
        self,
        model: "torch.nn.Module",
        upto: int | None = None,
        progress: Callable[[int], None] | None = None,
        check_all: bool = False,
    ) -> str:
        """Apply the steps up to number `upto` (all by default) to the base, in place.

        Args:
            model: the base, as loaded; its digest must be the header's. Where the orbit tunes an
                adapter: what `equip` returned.
            upto: number of the last step to apply.
            progress: called with the number of each step applied.
            check_all: compare the weights with every digest that the run recorded, not with the
                last one only.

        Returns:
            The digest of the weights.

        Raises:
            OrbitError: it is another base, `upto` is out of range, or the weights differ from those
                of the run.
        """
        from fedseed.orbit.replay import replay  # imported here, as it needs torch

        return replay(self.header, self.steps(self.check_upto(upto)), model, progress, check_all)


def read_file(path: str | Path) -> bytes:
    """Return a file's bytes. Raises OrbitError."""
    if is_irregular(Path(path)):
        raise OrbitError(
            f"{path}: not a regular file but a pipe or a device, whose reading may "
            "never end: give a file"
        )
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OrbitError(f"{path}: can't be read: {error.strerror}") from error


def scan(data: bytes, source: str) -> tuple[Orbit, Damage | None]:
    """Return the orbit up to the first damage, and the damage; None if there is none.

    Raises OrbitError: the header is not usable.

    `source` is a name for the data, for errors.
    """
    if len(data) < START.size or data[: len(MAGIC)] != MAGIC:
        raise OrbitError(f"{source}: not an orbit file")
    _, fmt, stream, length = START.unpack_from(data)
    if fmt not in READABLE:
        formats = " and ".join(map(str, READABLE))
        raise OrbitError(
            f"{source}: orbit format {fmt}; this version of fedseed reads formats {formats}"
        )
    if stream != STREAM_VERSION:
        raise OrbitError(
            f"{source}: random stream version {stream}; this version of fedseed has "
            f"{STREAM_VERSION}"
        )
    end = START.size + length
    last = data[end : end + LINK_BYTES]
    if last != link(b"", data[:end]):
        raise OrbitError(f"{source}: the header is damaged or cut short")
    try:
        header = Header.decode(data[START.size : end], fmt)
    except OrbitError as error:
        raise OrbitError(f"{source}: {error}") from error
    parts: list[Record] = []
    position = end + LINK_BYTES
    damage = None
    complete = False
    while position < len(data):
        step = parts[-1].last + 1 if parts else header.first
        record = _record(header, data, position, step, last)
        if isinstance(record, Damage):
            damage = Damage(f"{source}: {record.text}, at byte {position:,}", record.torn)
            break
        position += FRAME + len(record.payload)
        last = data[position - LINK_BYTES : position]
        if record.steps == 0:
            complete = True
            if position < len(data):
                damage = Damage(
                    f"{source}: {len(data) - position:,} bytes after the end", torn=False
                )
            break
        parts.append(record)
    if header.first > 1:  # a compacted orbit has one step only
        complete = len(parts) == 1
        if not complete and damage is None:
            damage = Damage(f"{source}: step {header.first} is cut off", torn=False)
    return Orbit(header, tuple(parts), data[: end + LINK_BYTES], last, position, complete), damage


def _record(header: Header, data: bytes, position: int, step: int, last: bytes) -> Record | Damage:
    """Return the record at `position`, or the damage to it. Its first step should have number
    `step`.
    """

    def damage(text: str, torn: bool = False) -> Damage:
        # an interrupted write may also leave zeros: the file has grown, but its content was not
        # written
        return Damage(text, torn or not any(data[position:]))

    if position + HEAD.size > len(data):
        return damage(f"step {step} is cut short", torn=True)
    size, first, steps, check = HEAD.unpack_from(data, position)
    if crc32(data[position : position + HEAD.size - 4]) != check:
        return damage(f"step {step} is damaged: the checksum of its length and numbers differs")
    stop = position + FRAME + size
    if stop > len(data):
        return damage(
            f"step {step} is cut short: {stop - len(data):,} bytes are missing", torn=True
        )
    body = data[position : stop - LINK_BYTES]
    if first != step:
        return damage(f"step {first} is in the place of step {step}")
    if data[stop - LINK_BYTES : stop] != link(last, body):
        return damage(
            f"step {step} is damaged, or was moved: its link does not match the steps before it",
            torn=stop == len(data),
        )
    part = Record(first, body[HEAD.size : -DIGEST_BYTES], body[-DIGEST_BYTES:].hex(), steps)
    if header.first > 1 and (steps != 1 or step != header.first):
        return damage(f"step {step}: a compacted orbit holds one step")
    try:
        part.check(header.method)
    except MessageError as error:
        return damage(f"step {step}: {error}")
    return part


def write_orbit(path: Path, start: bytes, records: Iterable[Record]) -> None:
    """Write a whole orbit file, or replace one, in a single operation.

    `start` is the header's bytes with the link (`Orbit.start`, or `begin`). Raises StorageError: it
    can't be written; an earlier file is unchanged.
    """
    last = start[-LINK_BYTES:]
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(start)
        for record in records:
            parts = record.encode_parts()
            last = link(last, *parts)
            file.writelines([*parts, last])


def begin(header: Header) -> bytes:
    """Return the first bytes of an orbit file: the header and its link."""
    data = header.encode()
    return data + link(b"", data)
