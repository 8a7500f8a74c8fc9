"""The orbit file, format 2: a header, then one record per step, each checked and chained to the one before.

    header   magic "fedorbit" | format u16 | stream version u16 | length u32 | zlib-compressed JSON | link
    record   length u32 | first step u32 | steps u32 | CRC-32 of these u32 | payload | digest | link

Little-endian throughout, digest and link 16 bytes; docs/orbit-format.md has it to the byte. A link is a BLAKE2b-128
hash of the link before it and of everything since: checksum and chain in one. The CRC guards the length, so that a cut
tail and a damaged length are told apart. The payload is the method's step, as it went over the wire, or many of them
packed (FeedSign: a bit each); the digest is that of the weights after the last one, zeros: not recorded. A record of no
steps says that the run is over and the file whole. Free of torch but for `replay`.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from fedseed.durable import replacing
from fedseed.errors import MessageError, OrbitError
from fedseed.methods import REGISTRY, Method
from fedseed.methods.base import State
from fedseed.methods.payload import pack, unpack
from fedseed.models.adapters import Adapter, AnyAdapter
from fedseed.randomness.stream import STREAM_VERSION
from fedseed.renaming import orbit_dump, quietly
from fedseed.weights.layout import ITEM_BYTES, Layout

if TYPE_CHECKING:
    import torch

MAGIC = b"fedorbit"
FORMAT = 2
LINK_BYTES = 16
DIGEST_BYTES = 16
NO_DIGEST = "00" * 16
_START = struct.Struct("<8sHHI")
_HEAD = struct.Struct("<IIII")
_FRAME = _HEAD.size + DIGEST_BYTES + LINK_BYTES  # a record's bytes besides its payload
_INFLATION = 256  # a header's JSON is at most this many times longer than it is compressed
MOST_PACKED = 1 << 16  # steps in a record, and bytes of their payloads before packing


@dataclass(frozen=True)
class AdapterStart:
    """What an adapter's run starts from besides the base.

    Args:
        settings: the adapter; with the run's seed they give its first weights.
        digest: hex digest of the trainable tensors before the first step.
    """

    settings: Adapter
    digest: str


@dataclass(frozen=True)
class Header:
    """What replay needs besides the steps.

    Args:
        base: the base's name or folder, as the recipe gave it.
        base_digest: digest of the base (`weights.space.base_digest`).
        dtype: the dtype the base was loaded in.
        layout: the trainable tensors and blocks.
        method: the method with all its settings.
        seed: the run's seed.
        trainable: name patterns of the trainable parameters, None for all.
        first: number of the first step that is held; above 1 only in a compacted orbit.
        classes: names of the classes that an image classifier tells apart, in the order of its outputs; none: the base
            is no classifier, or was loaded with the head it has. With the seed they give a new head (`models.heads`).
        adapter: the adapter that is tuned in place of the model, None for none.
    """

    base: str
    base_digest: str
    dtype: str
    layout: Layout
    method: Method
    seed: int
    trainable: tuple[str, ...] | None = None
    first: int = 1
    classes: tuple[str, ...] = ()
    adapter: AdapterStart | None = None

    def encode(self) -> bytes:
        """The header's bytes, without the link."""
        data: dict[str, Any] = {
            "base": self.base,
            "base_digest": self.base_digest,
            "dtype": self.dtype,
            "first": self.first,
            "layout": self.layout.to_json(),
            "method": orbit_dump(self.method),
            "seed": self.seed,
            "trainable": self.trainable,
        }
        if self.classes:
            data["classes"] = self.classes
        if self.adapter is not None:
            data["adapter"] = {"settings": orbit_dump(self.adapter.settings), "digest": self.adapter.digest}
        packed = zlib.compress(json.dumps(data, sort_keys=True, separators=(",", ":")).encode(), 9)
        return _START.pack(MAGIC, FORMAT, STREAM_VERSION, len(packed)) + packed

    @classmethod
    def decode(cls, packed: bytes) -> "Header":
        """The header from its compressed JSON.

        Raises:
            OrbitError: not valid.
        """
        try:
            inflate = zlib.decompressobj()
            text = inflate.decompress(packed, _INFLATION * len(packed) + 1)
            if not inflate.eof:
                raise OrbitError(f"orbit header: cut short, or more than {_INFLATION} times its compressed length")
            data: dict[str, Any] = json.loads(text)
            name = data["method"]["name"]
            kind = REGISTRY.find(name)
            if kind is None:
                raise OrbitError(_unknown_method(name))
            with quietly():
                method = kind.model_validate(data["method"])
            header = cls(
                base=str(data["base"]),
                base_digest=str(data["base_digest"]),
                dtype=str(data["dtype"]),
                layout=Layout.from_json(data["layout"]),
                method=method,
                seed=int(data["seed"]),
                trainable=None if data["trainable"] is None else tuple(map(str, data["trainable"])),
                first=int(data["first"]),
                classes=tuple(map(str, data.get("classes", ()))),
                adapter=_adapter(data.get("adapter")),
            )
            header.check()
            return header
        except (zlib.error, LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError,
                ValidationError) as error:  # fmt: skip
            raise OrbitError(f"orbit header is not valid: {error}") from error

    def check(self) -> None:
        """Check what the types do not say.

        Raises:
            ValueError: what is wrong.
        """
        unknown = {t.dtype for t in self.layout.tensors} - set(ITEM_BYTES)
        if unknown:
            raise ValueError(f"tensors of unknown dtype: {', '.join(sorted(unknown))}")
        if any(side < 0 for t in self.layout.tensors for side in t.shape):
            raise ValueError("a tensor with a negative side")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed {self.seed}: from 0 to 2**64 - 1")
        if self.first < 1 or (self.first > 1 and self.method.catch_up != "plan"):
            raise ValueError(f"a first step of {self.first}: {self.method.name} needs all steps from 1")

    def start(self) -> State:
        """The method's state before the first step.

        Raises:
            OrbitError: the settings do not fit the layout.
        """
        try:
            return self.method.start(self.layout, self.seed)
        except ValueError as error:
            raise OrbitError(f"orbit header is not valid: {error}") from error

    def differences(self, other: "Header") -> list[str]:
        """What differs, one line each, such as "method.rate: 0.1, 0.2"; the base counts by its digest."""
        lines = []
        for field in fields(self):
            a, b = getattr(self, field.name), getattr(other, field.name)
            if a == b or field.name in ("base", "first"):
                continue
            if field.name == "method":
                mine, yours = flat(a.model_dump()), flat(b.model_dump())
                for key in [*mine, *(k for k in yours if k not in mine)]:
                    if key not in mine or key not in yours or mine[key] != yours[key]:
                        lines.append(f"method.{key}: {mine.get(key, 'not there')}, {yours.get(key, 'not there')}")
            elif field.name == "layout":
                lines.append(f"layout: {_layout(a)}, {_layout(b)}")
            else:
                lines.append(f"{field.name}: {a}, {b}")
        return lines


def _unknown_method(name: object) -> str:
    if REGISTRY.is_broken(name):
        return f"the orbit's method is {name!r}: {REGISTRY.unknown(name)}"
    return (
        f"the orbit's method {name!r} is unknown here (there are {', '.join(REGISTRY.names())}): "
        "give the file that has it with --plugin, or install its package"
    )


def _adapter(data: dict[str, Any] | None) -> AdapterStart | None:
    if data is None:
        return None
    settings: Adapter = TypeAdapter[Adapter](AnyAdapter).validate_python(data["settings"])
    return AdapterStart(settings, str(data["digest"]))


def _layout(layout: Layout) -> str:
    return f"{layout.size:,} parameters in {len(layout.tensors)} tensors and {len(layout.block_sizes)} blocks"


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    out = {}
    for key, value in table.items():
        out.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return out


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Part:
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

    def unpack(self, method: Method) -> Iterator[Record]:
        """Its steps.

        Raises:
            MessageError: the payload can't be that many steps.
        """
        if self.steps == 0 and not self.payload:
            return
        if self.steps == 1:
            yield Record(self.first, self.payload, self.digest)
            return
        if not 1 <= self.steps <= MOST_PACKED or not self.payload:
            raise MessageError(f"{self.steps} steps in {len(self.payload)} bytes")
        payloads = unpack(method, self.payload, self.steps)
        for number, payload in enumerate(payloads, start=self.first):
            yield Record(number, payload, self.digest if number == self.last else NO_DIGEST)


def link(previous: bytes, data: bytes) -> bytes:
    """The hash that checks `data` and chains it to what comes before."""
    return hashlib.blake2b(previous + data, digest_size=LINK_BYTES).digest()


@dataclass(frozen=True)
class Damage:
    """The first thing that is wrong in a file.

    Args:
        position: where the record begins.
        text: what is wrong.
        torn: only the file's last record is affected, as when a write was interrupted: it may be cut off.
    """

    position: int
    text: str
    torn: bool


@dataclass(frozen=True)
class Orbit:
    """An orbit in memory.

    Args:
        header: what replay needs.
        parts: the records as the file has them.
        start: the header's bytes with the link.
        end: the last link, which the next record is chained to.
        size: how many bytes of the file were read.
        complete: whether the file says that the run is over; False while it goes on, and where the end is cut off.
    """

    header: Header
    parts: tuple[Part, ...]
    start: bytes
    end: bytes
    size: int
    complete: bool

    def __len__(self) -> int:
        return sum(part.steps for part in self.parts)

    @property
    def last(self) -> int:
        """The number of the last step; `header.first` - 1 if there is none."""
        return self.parts[-1].last if self.parts else self.header.first - 1

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """All steps."""
        return tuple(self.steps())

    def steps(self, upto: int | None = None) -> Iterator[Record]:
        """The steps one after the other, up to and with number `upto`."""
        for part in self.parts:
            for record in part.unpack(self.header.method):
                if upto is not None and record.round > upto:
                    return
                yield record

    @classmethod
    def open(cls, path: str | Path) -> "Orbit":
        """Read and check an orbit file.

        Raises:
            OrbitError: missing, another format or stream version, damaged or cut short; names the step.
        """
        return cls.parse(read(path), str(path))

    @classmethod
    def parse(cls, data: bytes, source: str = "orbit") -> "Orbit":
        """The same from a file's bytes.

        Args:
            data: the bytes.
            source: what errors call it.
        """
        orbit, damage = scan(data, source)
        if damage is not None:
            raise OrbitError(damage.text)
        return orbit

    def check_upto(self, upto: int | None) -> int:
        """`upto`, or the last step's number for None.

        Raises:
            OrbitError: the orbit can't be replayed to there.
        """
        count = self.last if upto is None else upto
        if self.header.first > 1 and 0 <= count < self.header.first:
            raise OrbitError(f"step {count}: this orbit is compacted, it holds nothing before step {self.header.first}")
        if not 0 <= count <= self.last:
            raise OrbitError(f"step {count}: the orbit has steps 0 to {self.last}")
        return count

    def check_steps(self) -> None:
        """Read every step as its method does; no model is needed.

        Raises:
            OrbitError: a step is not valid; names it.
        """
        method = self.header.method
        state = self.header.start()
        for record in self.steps():
            try:
                state = method.advance(state, method.decode_step(state, record.payload))
            except MessageError as error:
                raise OrbitError(f"step {record.round}: {error}") from error

    def equip(self, model: "torch.nn.Module") -> "torch.nn.Module":
        """The base with the adapter that the orbit tunes, at its first weights: what `replay` then goes on from.

        Args:
            model: the base, as loaded. Without an adapter it is returned as it is.

        Raises:
            OrbitError: another base, or the adapter does not start as the run's did.
        """
        from fedseed.orbit.replay import equip

        return equip(self, model)

    def replay(
        self,
        model: "torch.nn.Module",
        upto: int | None = None,
        progress: Callable[[int], None] | None = None,
        check_all: bool = False,
    ) -> str:
        """Apply the steps up to number `upto` (all by default) to the base, in place.

        Args:
            model: the base, as loaded; its digest must be the header's. Where the orbit tunes an adapter: what `equip`
                returned.
            upto: number of the last step to apply.
            progress: called with the number of each step applied.
            check_all: compare the weights with every digest that the run recorded, not with the last one only.

        Returns:
            The digest of the weights.

        Raises:
            OrbitError: another base, `upto` out of range, or the weights differ from those of the run.
        """
        from fedseed.orbit.replay import replay  # the model's side: torch is there

        return replay(self, model, upto, progress, check_all)


def read(path: str | Path) -> bytes:
    """A file's bytes. Raises OrbitError."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OrbitError(f"{path}: can't be read: {error.strerror}") from error


def scan(data: bytes, source: str) -> tuple[Orbit, Damage | None]:
    """Everything up to the first damage, and the damage.

    Args:
        data: a file's bytes.
        source: what errors call it.

    Raises:
        OrbitError: the header is not usable.
    """
    if len(data) < _START.size or data[: len(MAGIC)] != MAGIC:
        raise OrbitError(f"{source}: not an orbit file")
    _, fmt, stream, length = _START.unpack_from(data)
    if fmt != FORMAT:
        raise OrbitError(f"{source}: orbit format {fmt}; this version of fedseed reads format {FORMAT}")
    if stream != STREAM_VERSION:
        raise OrbitError(f"{source}: random stream version {stream}; this version of fedseed has {STREAM_VERSION}")
    end = _START.size + length
    last = data[end : end + LINK_BYTES]
    if last != link(b"", data[:end]):
        raise OrbitError(f"{source}: the header is damaged or cut short")
    try:
        header = Header.decode(data[_START.size : end])
    except OrbitError as error:
        raise OrbitError(f"{source}: {error}") from error
    parts: list[Part] = []
    position = end + LINK_BYTES
    damage = None
    complete = False
    while position < len(data):
        step = parts[-1].last + 1 if parts else header.first
        found = _record(header, data, position, step, last)
        if isinstance(found, Damage):
            damage = Damage(position, f"{source}: {found.text}, at byte {position:,}", found.torn)
            break
        position += _FRAME + len(found.payload)
        last = data[position - LINK_BYTES : position]
        if found.steps == 0:
            complete = True
            if position < len(data):
                damage = Damage(position, f"{source}: {len(data) - position:,} bytes after the end", torn=False)
            break
        parts.append(found)
    if header.first > 1:  # a compacted orbit is its one step
        complete = len(parts) == 1
        if not complete and damage is None:
            damage = Damage(position, f"{source}: step {header.first} is cut off", torn=False)
    return Orbit(header, tuple(parts), data[: end + LINK_BYTES], last, position, complete), damage


def _record(header: Header, data: bytes, position: int, step: int, last: bytes) -> Part | Damage:
    """The record at `position`, which should begin with number `step`, or what is wrong with it."""

    def damage(text: str, torn: bool = False) -> Damage:
        # a write that was interrupted may also leave zeros: the file had grown, its content had not arrived
        return Damage(position, text, torn or not any(data[position:]))

    if position + _HEAD.size > len(data):
        return damage(f"step {step} is cut short", torn=True)
    size, first, steps, check = _HEAD.unpack_from(data, position)
    if zlib.crc32(data[position : position + _HEAD.size - 4]) != check:
        return damage(f"step {step} is damaged: its head's checksum differs")
    stop = position + _FRAME + size
    if stop > len(data):
        return damage(f"step {step} is cut short: {stop - len(data):,} bytes are missing", torn=True)
    body = data[position : stop - LINK_BYTES]
    if first != step:
        return damage(f"step {first} stands where step {step} belongs")
    if data[stop - LINK_BYTES : stop] != link(last, body):
        return damage(f"step {step} is damaged, or follows other steps", torn=stop == len(data))
    part = Part(first, steps, body[_HEAD.size : -DIGEST_BYTES], body[-DIGEST_BYTES:].hex())
    if header.first > 1 and (steps != 1 or step != header.first):
        return damage(f"step {step}: a compacted orbit holds one step")
    try:
        for _ in part.unpack(header.method):
            break
    except MessageError as error:
        return damage(f"step {step}: {error}")
    return part


def packed(method: Method, records: Iterable[Record]) -> Iterator[Part]:
    """Steps as a finished orbit holds them: those of a step-by-step method packed, others one by one.

    What comes out depends on the steps alone, so that an interrupted run ends in the same bytes. Neighbours with
    payloads of one length share a record until their payloads reach MOST_PACKED bytes; steps without content stay
    single. A packed record keeps the last one's digest only.
    """
    together: list[Record] = []

    def join() -> Part:
        payload = pack(method, [r.payload for r in together]) if len(together) > 1 else together[0].payload
        return Part(together[0].round, len(together), payload, together[-1].digest)

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


def ending(parts: Iterable[Part]) -> Iterator[Part]:
    """The records, and the one that ends a file: no steps, and the last digest once more."""
    last = None
    for last in parts:
        yield last
    yield Part(1, 0, b"") if last is None else Part(last.last + 1, 0, b"", last.digest)


def write_orbit(path: Path, start: bytes, parts: Iterable[Part]) -> None:
    """Write a whole orbit file, or replace one, in one go.

    Args:
        path: the file.
        start: the header's bytes with the link (`Orbit.start`, or `begin`).
        parts: the records.

    Raises:
        StorageError: it can't be written; what was there before still is.
    """
    last = start[-LINK_BYTES:]
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(start)
        for part in parts:
            data = part.encode()
            last = link(last, data)
            file.write(data + last)


def begin(header: Header) -> bytes:
    """The bytes an orbit file begins with: the header and its link."""
    data = header.encode()
    return data + link(b"", data)
