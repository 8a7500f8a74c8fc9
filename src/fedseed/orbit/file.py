"""The orbit file, format 1: a header, then one record per step, each checked and chained to the one before.

    header   magic "fedorbit" | format u16 | stream version u16 | length u32 | zlib-compressed JSON | link (16 bytes)
    record   length u32 | first round u32 | steps u32 | payload | weights digest (16 bytes) | link (16 bytes)

Little-endian throughout. A link is a BLAKE2b-128 hash of the link before it and of everything since: it is the
checksum and the chain in one, so that a flipped bit, a swapped record and a cut tail are each found at their record.
The payload is the method's step, as it went over the wire. When a run of a step-by-step method ends, neighbouring
records are packed into one that holds many steps (FeedSign: a bit each); the digest is the last one's. A digest of
zeros: not recorded. Free of torch but for `replay`.
"""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from fedseed.errors import MessageError, OrbitError
from fedseed.layout import Layout
from fedseed.methods import METHODS, Method
from fedseed.randomness.stream import STREAM_VERSION

if TYPE_CHECKING:
    import torch

MAGIC = b"fedorbit"
FORMAT = 1
LINK_BYTES = 16
DIGEST_BYTES = 16
_HEAD = struct.Struct("<8sHHI")
_RECORD = struct.Struct("<III")
NO_DIGEST = "00" * 16
_MOST_HEADER = 1 << 26  # decompressed header: a million tensors would fit


@dataclass(frozen=True)
class Header:
    """What replay needs besides the steps.

    Args:
        base: the base's name or folder, as the recipe gave it.
        base_digest: digest of the base (`fedseed.parameters.base_digest`).
        dtype: the dtype the base was loaded in.
        layout: the trainable tensors and blocks.
        method: the method with all its settings.
        seed: the run's seed.
        trainable: name patterns of the trainable parameters, None for all.
    """

    base: str
    base_digest: str
    dtype: str
    layout: Layout
    method: Method
    seed: int
    trainable: tuple[str, ...] | None = None

    def encode(self) -> bytes:
        """The header's bytes, without the link."""
        data = {
            "base": self.base,
            "base_digest": self.base_digest,
            "dtype": self.dtype,
            "layout": self.layout.to_json(),
            "method": self.method.model_dump(),
            "seed": self.seed,
            "trainable": self.trainable,
        }
        packed = zlib.compress(json.dumps(data, sort_keys=True, separators=(",", ":")).encode(), 9)
        return _HEAD.pack(MAGIC, FORMAT, STREAM_VERSION, len(packed)) + packed

    @classmethod
    def decode(cls, packed: bytes) -> "Header":
        """The header from its compressed JSON.

        Raises:
            OrbitError: not valid.
        """
        try:
            inflate = zlib.decompressobj()
            text = inflate.decompress(packed, _MOST_HEADER)
            if not inflate.eof:
                raise OrbitError("orbit header: larger than 64 MiB or cut short")
            data: dict[str, Any] = json.loads(text)
            name = data["method"]["name"]
            kinds = {m.model_fields["name"].default: m for m in METHODS}
            if name not in kinds:
                raise OrbitError(f"orbit header: method {name!r} is unknown to this version of fedseed")
            return cls(
                base=str(data["base"]),
                base_digest=str(data["base_digest"]),
                dtype=str(data["dtype"]),
                layout=Layout.from_json(data["layout"]),
                method=TypeAdapter[Method](kinds[name]).validate_python(data["method"]),
                seed=int(data["seed"]),
                trainable=None if data["trainable"] is None else tuple(data["trainable"]),
            )
        except (zlib.error, KeyError, TypeError, ValueError, ValidationError) as error:
            raise OrbitError(f"orbit header is not valid: {error}") from error


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

    def encode(self, steps: int = 1) -> bytes:
        """The record's bytes, without the link; `payload` may be several steps, packed."""
        return _RECORD.pack(len(self.payload), self.round, steps) + self.payload + bytes.fromhex(self.digest)


def _link(previous: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(previous + data, digest_size=LINK_BYTES).digest()


def _unpack(method: Method, payload: bytes, steps: int) -> list[bytes]:
    """A record's steps; memory stays bounded by the file's size."""
    if not 1 <= steps <= max(1, 8 * len(payload)):
        raise MessageError(f"{steps} steps in {len(payload)} bytes")
    return method.unpack(payload, steps)


class OrbitWriter:
    """Appends records to a new orbit file; each is on disk before `append` returns.

    Args:
        path: the file; it must not exist.
        header: what replay needs.

    Raises:
        OrbitError: the file exists or can't be written.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self._header = header
        self._records: list[Record] = []  # of a step-by-step method, to be packed in the end
        try:
            self._file: IO[bytes] = open(path, "xb")  # noqa: SIM115 (lives as long as the run)
        except OSError as error:
            raise OrbitError(f"{path}: the orbit can't be created: {error.strerror}") from error
        head = header.encode()
        self._last = _link(b"", head)
        self._write(head + self._last)

    def append(self, record: Record) -> None:
        """Write one step."""
        data = record.encode()
        self._last = _link(self._last, data)
        self._write(data + self._last)
        if self._header.method.stepwise:
            self._records.append(record)

    def close(self) -> None:
        """Close the file; a step-by-step method's records are packed first, and replaced in one go."""
        self._file.close()
        if not self._records:
            return
        head = self._header.encode()
        link = _link(b"", head)
        out = head + link
        for size, run in groupby(self._records, key=lambda r: len(r.payload)):
            records = list(run)
            for part in [records] if size else [[r] for r in records]:  # steps without content stay single
                packed = self._header.method.pack([r.payload for r in part]) if size else b""
                data = Record(part[0].round, packed, part[-1].digest).encode(len(part))
                link = _link(link, data)
                out += data + link
        temporary = self.path.with_name(self.path.name + ".part")
        try:
            with open(temporary, "wb") as file:
                file.write(out)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except OSError as error:
            raise OrbitError(f"{self.path}: the packed orbit can't be written: {error.strerror}") from error

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OrbitError(f"{self.path}: the orbit can't be written: {error.strerror}") from error


@dataclass(frozen=True)
class Orbit:
    """An orbit in memory.

    Args:
        header: what replay needs.
        records: the steps in order.
        size: the file's size in bytes.
    """

    header: Header
    records: tuple[Record, ...]
    size: int

    def __len__(self) -> int:
        return len(self.records)

    @classmethod
    def open(cls, path: str | Path) -> "Orbit":
        """Read and check an orbit file.

        Raises:
            OrbitError: missing, another format or stream version, damaged or cut short; names the step.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise OrbitError(f"{path}: can't be read: {error.strerror}") from error
        if len(data) < _HEAD.size or data[: len(MAGIC)] != MAGIC:
            raise OrbitError(f"{path}: not an orbit file")
        _, fmt, stream, length = _HEAD.unpack_from(data)
        if fmt != FORMAT:
            raise OrbitError(f"{path}: orbit format {fmt}; this version of fedseed reads format {FORMAT}")
        if stream != STREAM_VERSION:
            raise OrbitError(f"{path}: random stream version {stream}; this version of fedseed has {STREAM_VERSION}")
        end = _HEAD.size + length
        link = data[end : end + LINK_BYTES]
        if link != _link(b"", data[:end]):
            raise OrbitError(f"{path}: the header is damaged or cut short")
        header = Header.decode(data[_HEAD.size : end])
        records: list[Record] = []
        position = end + LINK_BYTES
        while position < len(data):
            step = len(records) + 1
            stop, steps = position + _RECORD.size + DIGEST_BYTES, 0
            if position + _RECORD.size <= len(data):
                size, number, steps = _RECORD.unpack_from(data, position)
                stop += size
            if stop + LINK_BYTES > len(data):
                raise OrbitError(f"{path}: step {step} is cut short or its length is damaged, at byte {position}")
            found = data[stop : stop + LINK_BYTES]
            link = _link(link, data[position:stop])
            if found != link:
                raise OrbitError(f"{path}: step {step} is damaged or not in its place, at byte {position}")
            payload = data[position + _RECORD.size : stop - DIGEST_BYTES]
            try:
                payloads = [payload] if steps == 1 else _unpack(header.method, payload, steps)
            except MessageError as error:
                raise OrbitError(f"{path}: step {step}: {error}") from error
            records += [Record(number + i, p) for i, p in enumerate(payloads[:-1])]
            records.append(Record(number + steps - 1, payloads[-1], data[stop - DIGEST_BYTES : stop].hex()))
            position = stop + LINK_BYTES
        return cls(header, tuple(records), len(data))

    def replay(
        self,
        model: "torch.nn.Module",
        upto: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> str:
        """Apply the first `upto` steps (all by default) to the base, in place.

        Args:
            model: the base, as loaded; its digest must be the header's.
            upto: how many steps.
            progress: called with the number of each step applied.

        Returns:
            The digest of the weights, checked against the one recorded with the last step.

        Raises:
            OrbitError: another base, `upto` out of range, or the weights differ from those of the run.
        """
        from fedseed.models import choose_trainable  # the model's side: torch is there
        from fedseed.parameters import ParameterSpace, base_digest

        count = len(self) if upto is None else upto
        if not 0 <= count <= len(self):
            raise OrbitError(f"upto = {count}: the orbit has steps 0 to {len(self)}")
        found = base_digest(model)
        if found != self.header.base_digest:
            raise OrbitError(f"another base: its digest is {found}, the orbit's base has {self.header.base_digest}")
        choose_trainable(model, self.header.trainable)
        space = ParameterSpace(model, self.header.method.blocks)
        if space.layout != self.header.layout:
            raise OrbitError("the base's trainable tensors or blocks are not those of the orbit")
        method = self.header.method
        state = method.start(space.layout, self.header.seed)
        if method.from_base:
            space.keep_base()
        for position, record in enumerate(self.records[:count], start=1):
            try:
                step = method.decode_step(state, record.payload)
            except MessageError as error:
                raise OrbitError(f"step {position}: {error}") from error
            method.apply(state, step, space)
            state = method.advance(state, step)
            if progress is not None:
                progress(position)
        digest = space.digest()
        recorded = self.records[count - 1].digest if count else NO_DIGEST
        if recorded not in (NO_DIGEST, digest):
            raise OrbitError(f"after step {count} the weights' digest is {digest}, the run recorded {recorded}")
        return digest
