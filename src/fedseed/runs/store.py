"""Where a run's steps become durable, and where an interrupted run takes them up again. Free of torch.

Two questions decide what a store does. Does a step replace those before it (`Method.catch_up`)? Then the folder has the
newest weights (`WeightsStore`), otherwise all steps in an orbit (`OrbitStore`). And who decides which rounds count? The
files do, unless there is a lasting log on a server (`Logged`): then the files follow the log, and are brought in line
with it when a coordinator starts.
"""

import base64
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from fedseed.durable import replacing
from fedseed.errors import FedseedError, OrbitError
from fedseed.federation.coordinator import SIZES, Coordinator
from fedseed.federation.step_log import Logged
from fedseed.methods.payload import Content
from fedseed.orbit import NO_DIGEST, Header, OrbitWriter, Record
from fedseed.orbit.file import begin, scan
from fedseed.weights.layout import ITEM_BYTES

KEPT = "coordinator."  # the names of a coordinator's arrays begin so
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_NAMES = {short: name for name, short in _DTYPES.items()}


@dataclass(frozen=True)
class Weights:
    """What the file holds.

    Args:
        header: what the run is.
        round: the last round that counts.
        changed: the last round whose step was not empty.
        data: the trained tensors' bytes, one after the other, in the layout's order.
        digest: the weights' hex digest.
        kept: what the coordinator remembers besides the weights, as arrays by name.
    """

    header: Header
    round: int
    changed: int
    data: bytes
    digest: str = NO_DIGEST
    kept: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def write_weights(path: Path, weights: Weights) -> None:
    """Write the file in place of an older one; it is on disk when this returns.

    Raises:
        StorageError: it can't be written; the older one is still there.
    """
    layout, kept = weights.header.layout, {n: np.ascontiguousarray(a) for n, a in weights.kept.items() if n != SIZES}
    parts = [(e.name, e.dtype, e.shape, e.size * ITEM_BYTES[e.dtype]) for e in layout.tensors]
    parts += [(KEPT + name, array.dtype.name, array.shape, array.nbytes) for name, array in kept.items()]
    digest = weights.digest if weights.digest != NO_DIGEST else weights.header.digest_of(weights.data)
    about: dict[str, Any] = {
        "round": weights.round, "changed": weights.changed, "digest": digest,
        "sizes": [float(size) for size in weights.kept.get(SIZES, ())],
        "header": base64.b64encode(begin(weights.header)).decode(),
    }  # fmt: skip
    table: dict[str, Any] = {}
    position = 0
    for name, dtype, shape, size in parts:
        offsets = [position, position + size]
        table[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": offsets}
        position += size
    about["check"] = _check(about, table, [array.tobytes() for array in kept.values()])
    table = {"__metadata__": {"format": "pt", "fedseed": json.dumps(about)}, **table}
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(weights.data)
        for array in kept.values():
            file.write(array.data)


def read_weights(path: Path) -> Weights:
    """Reads what `write_weights` wrote. Raises OrbitError: it can't be read, is damaged, or is no such file."""
    try:
        data = memoryview(path.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        table = json.loads(bytes(data[8:start]))
        said = table.pop("__metadata__", {}).get("fedseed")
        if said is None:
            raise ValueError("it does not say which run it is of")
        about = json.loads(said)
        header = scan(base64.b64decode(about["header"]), str(path))[0].header
        found = {name: _part(data[start:], part) for name, part in table.items()}
        tensors = [found[entry.name] for entry in header.layout.tensors]
        if any(len(t) != e.size * ITEM_BYTES[e.dtype] for t, e in zip(tensors, header.layout.tensors, strict=True)):
            raise ValueError("a tensor of another size")
        weights = b"".join(tensors)
        kept = {
            name.removeprefix(KEPT): np.frombuffer(found[name], np.dtype(_NAMES[part["dtype"]])).reshape(part["shape"])
            for name, part in table.items()
            if name.startswith(KEPT)
        }
        kept[SIZES] = np.array(about["sizes"], dtype=np.float64)
        number, changed, digest = int(about["round"]), int(about["changed"]), str(about["digest"])
        if about.pop("check") != _check(about, table, [found[name] for name in table if name.startswith(KEPT)]):
            raise ValueError("what stands beside the weights is not as it was written")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise OrbitError(f"{path}: not the weights of a run, or damaged: {error}") from error
    if header.digest_of(weights) != digest:
        raise OrbitError(f"{path}: the weights' digest differs from the one written with them")
    return Weights(header, number, changed, weights, digest, kept)


def _check(about: Mapping[str, Any], table: Mapping[str, Any], kept: Sequence[bytes | memoryview]) -> str:
    """Returns a hash of all that the file has besides the weights, which have a digest of their own."""
    hashed = blake2b(json.dumps([about, table], sort_keys=True).encode(), digest_size=16)
    for data in kept:
        hashed.update(data)
    return hashed.hexdigest()


def _part(data: memoryview, about: Mapping[str, Any]) -> memoryview:
    first, last = about["data_offsets"]
    if not 0 <= first <= last <= len(data):
        raise ValueError("it is cut short")
    return data[first:last]


SYNC_SECONDS = 1.0  # between writes to the disk of files that follow a log


@dataclass(frozen=True)
class Restored:
    """Where an interrupted run was.

    Args:
        round: the last round that counts.
        contents: what each step to there holds.
        records: what takes a model at its base to there.
        unlogged: payloads of the steps that the log lacks.
    """

    round: int
    contents: list[Content]
    records: Sequence[Record] = ()
    unlogged: Sequence[bytes] = ()


class StepStore(ABC):
    """A file of a run's folder.

    Args:
        folder: the run's folder.
        header: what the run is.
        coordinator: is brought to the last step; what it remembers besides the steps is kept, too.
        logged: what the run's log holds; None: there is no log.
    """

    name: ClassVar[str]  # of the file

    def __init__(self, folder: Path, header: Header, coordinator: Coordinator, logged: Logged | None = None) -> None:
        self.folder = folder
        self.path = folder / self.name
        self.header = header
        self.coordinator = coordinator
        self.logged = logged
        self.follows = logged is not None and logged.lasting  # whether the log decides
        self._held: Record | None = None  # the newest step, until its digest is known

    @abstractmethod
    def restore(self, begun: bool, warn: Callable[[str], None]) -> Restored:
        """Bring file and coordinator to the last round that counts.

        Args:
            begun: whether the folder says that the run has had rounds.
            warn: told what was mended.

        Raises:
            FedseedError: a file is missing, damaged, of another run, or holds other steps than the log.
        """

    def prepare(self, number: int) -> None:  # noqa: B027
        """Writes what a step that is about to count does not say."""

    def record(self, number: int, payload: bytes) -> None:
        """Takes a step that counts; it is written when the weights' digest is known (`confirm`).

        Args:
            number: the round.
            payload: the step's.
        """
        self._held = Record(number, payload)

    def confirm(self, digest: str) -> None:
        """Writes the newest step, whose weights have this digest (`NO_DIGEST`: nobody will know it).

        Where the files decide, the step is on disk when this returns.
        """
        if self._held is not None:
            held, self._held = self._held, None
            self._write(Record(held.round, held.payload, digest), digest == NO_DIGEST)

    @abstractmethod
    def _write(self, record: Record, lazily: bool) -> None:
        """Write a step; where the log decides it need not be on disk yet if that may be done lazily."""

    @property
    def due(self) -> bool:
        """Returns whether it is time for `sync`."""
        return False

    def sync(self) -> None:  # noqa: B027
        """Bring everything to the disk."""

    @abstractmethod
    def complete(self, digest: str) -> int | None:
        """Ends the file, for weights of this digest; returns the orbit's bytes, None where there is none."""

    def release(self) -> None:  # noqa: B027
        """Close the file as it is."""

    # -- what the coordinator remembers and no step says -----------------------------------------------------------

    def _keep(self, number: int) -> None:
        """Write it, before the round counts; that of the round before stays."""
        if kept := self.coordinator.state_dict():
            with replacing(self.folder / f"kept-{number}.npz") as temporary, open(temporary, "wb") as file:
                np.savez(file, **kept)  # type: ignore[arg-type]
            (self.folder / f"kept-{number - 2}.npz").unlink(missing_ok=True)

    def _take_kept(self, number: int) -> None:
        """Take up what was kept after a round. Raises FedseedError."""
        path = self.folder / f"kept-{number}.npz"
        try:
            with ZipFile(path) as archive:
                if any(entry.compress_type != ZIP_STORED for entry in archive.infolist()):
                    raise ValueError("it is compressed, which it never is")
            with np.load(path, allow_pickle=False) as arrays:
                self.coordinator.load_state_dict({name: arrays[name] for name in arrays.files})
        except (OSError, LookupError, ValueError, BadZipFile, EOFError, MemoryError) as error:
            raise FedseedError(
                f"{path}: what the coordinator has kept of round {number} can't be read: {error}"
            ) from error

    def _forget_kept(self) -> None:
        for path in self.folder.glob("kept-*.npz"):
            path.unlink()


class OrbitStore(StepStore):
    """All steps, in an orbit."""

    name = "model.orbit"
    _writer: OrbitWriter | None = None
    _synced = 0.0

    def restore(self, begun: bool, warn: Callable[[str], None]) -> Restored:
        """Read the orbit; it and the log are repaired from each other."""
        there, logged = self.path.exists(), self.logged or Logged("")
        if logged.last and not there:
            raise FedseedError(
                f"the server holds a run {logged.run} of {logged.last} steps, {self.folder} does not: "
                "go on in its folder (--out), choose another name (--run), or delete it from the server with --fresh"
            )
        if begun and not there:
            raise FedseedError(f"{self.folder}: {self.name} is missing, and with it what the run has learnt")
        self._writer = OrbitWriter(self.path, self.header, resume=there)
        if self._writer.cut is not None:
            warn(self._writer.cut)
        records: list[Record] = []
        if there:
            orbit = self._writer.take()
            if orbit.header.first > 1:
                raise OrbitError(f"{self.path} is compacted: a run can't go on from it")
            records += orbit.steps()
        common = min(logged.last, len(records))
        if list(logged.payloads[:common]) != [record.payload for record in records[:common]]:
            raise FedseedError(f"{self.path} and the server's run {logged.run} hold different steps")
        unlogged = [] if self.logged is None else [record.payload for record in records[common:]]
        for number, payload in enumerate(logged.payloads[common:], start=common + 1):
            records.append(Record(number, payload, logged.digests.get(number, NO_DIGEST)))
            if number == logged.last and logged.waits and number not in logged.digests:
                self._held = records[-1]
            else:
                self._writer.append(records[-1])
        contents = self.coordinator.catch_up(record.payload for record in records)
        self._take_outcome(len(records), warn)
        return Restored(len(records), contents, records, unlogged)

    def _take_outcome(self, number: int, warn: Callable[[str], None]) -> None:
        """Take up what the aggregation rule remembers, if it remembers anything; without a file it begins anew."""
        if not self.coordinator.keeps_outcomes:
            return
        if not number:
            self._forget_kept()  # an earlier run's
        elif (self.folder / f"kept-{number}.npz").exists():
            self._take_kept(number)
        else:
            rule = self.coordinator.aggregation.name
            warn(
                f"{self.folder}: kept-{number}.npz is not there: {rule} remembers nothing of the rounds before, and "
                "goes on so"
            )

    def prepare(self, number: int) -> None:
        """Write what the aggregation rule remembers."""
        if self.coordinator.keeps_outcomes:
            self._keep(number)

    def _write(self, record: Record, lazily: bool) -> None:
        assert self._writer is not None
        self._writer.append(record, sync=not (self.follows and lazily))

    @property
    def due(self) -> bool:
        return self.follows and time.monotonic() > self._synced + SYNC_SECONDS

    def sync(self) -> None:
        assert self._writer is not None
        self._writer.sync()
        self._synced = time.monotonic()

    def complete(self, digest: str) -> int | None:
        assert self._writer is not None
        self.confirm(digest)
        self._writer.close()
        return self.path.stat().st_size

    def release(self) -> None:
        if self._writer is not None:
            self._writer.release()


class WeightsStore(StepStore):
    """The newest weights, in a file that is replaced as a whole; where a log has them, when the run is over."""

    name = "model.safetensors"
    _round = 0  # the last that counts
    _changed = 0  # the last whose step was not empty

    def restore(self, begun: bool, warn: Callable[[str], None]) -> Restored:
        """Take the newest weights from the log if it has steps, otherwise from the file."""
        logged = self.logged
        if logged is not None and logged.last:
            number, changed, weights = logged.last, logged.changed, b"".join(logged.payloads)
            records = [Record(changed, weights)] if changed else []
            contents = self._take(number, changed, weights)
            kept = max((int(path.stem[5:]) for path in self.folder.glob("kept-*.npz")), default=0)
            if kept > number + 1:  # a round that was about to count is one more
                if set(self.coordinator.state_dict()) - {SIZES}:
                    raise FedseedError(
                        f"the server's log of run {logged.run} ends with round {number}, {self.folder} has kept what "
                        f"came of round {kept}, and of {number} nothing any more: begin again with --fresh and another "
                        "--out"
                    )
                warn(f"the server's log ends with round {number}, {self.folder} with {kept}: the rest is done again")
                self._forget_kept()
            elif kept:
                self._take_kept(number)
            return Restored(number, contents, records)
        if not self.path.exists():
            if begun and self.follows:
                if self.coordinator.private or self.coordinator.sums:  # clients would say more than they have said
                    raise FedseedError(f"{self.folder}: the server has lost this run's weights; start again elsewhere")
                warn(f"{self.folder}: the server has lost this run's weights: all rounds are done again")
                self._forget_kept()
                return Restored(0, [])
            if begun:
                raise FedseedError(f"{self.folder}: {self.name} is missing, and with it what the run has learnt")
            return Restored(0, [])
        found = read_weights(self.path)
        if differences := found.header.differences(self.header):
            raise OrbitError(f"{self.path} holds the weights of another run: {differences[0]} here")
        contents = self._take(found.round, found.changed, found.data)
        if not found.changed:
            return Restored(found.round, contents)
        self.coordinator.load_state_dict(found.kept)
        step = Record(found.changed, found.data, found.digest)
        unlogged = [step.payload if number == step.round else b"" for number in range(1, found.round + 1)]
        return Restored(found.round, contents, [step], () if logged is None else unlogged)

    def _take(self, number: int, changed: int, weights: bytes) -> list[Content]:
        self._round, self._changed = number, changed
        contents = [Content()] * number
        if changed:
            (contents[changed - 1],) = self.coordinator.catch_up([weights])
        return contents

    def prepare(self, number: int) -> None:
        """Write what the coordinator remembers besides the weights, which the log has."""
        if self.follows:
            self._keep(number)

    def _write(self, record: Record, lazily: bool) -> None:
        self._round = record.round
        if record.payload:
            self._changed = record.round
        if not self.follows:
            self._save(record.digest, self.coordinator.state_dict())

    def _save(self, digest: str, kept: Mapping[str, NDArray[Any]]) -> None:
        weights = self.coordinator.weights
        if weights is not None:
            write_weights(self.path, Weights(self.header, self._round, self._changed, weights, digest, kept))

    def complete(self, digest: str) -> int | None:
        self.confirm(digest)
        if self.follows:
            self._save(digest, {})
            self._forget_kept()
        return None
