"""Stores that make a run's steps durable and let an interrupted run take them up again.

Free of torch.

Two questions decide what a store does. Does a step replace those before it (`Method.catch_up`)?
Then the folder has the newest weights (`WeightsStore`), otherwise all steps in an orbit
(`OrbitStore`). The files decide which rounds count, unless there is a lasting log on a server
(`StepLogContents`): then the files follow the log, and are brought in line with it when a
coordinator starts.
"""

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from fedseed.durable import finished_files, replacing
from fedseed.errors import FedseedError, OrbitError
from fedseed.federation.coordinator.coordinator import SIZES, Coordinator
from fedseed.federation.coordinator.step_log import StepLogContents
from fedseed.methods.payload import Content
from fedseed.orbit import NO_DIGEST, Header, OrbitWriter, Record
from fedseed.orbit.file import begin, scan
from fedseed.weights.layout import ITEM_BYTES

# its names of dtypes
SAFETENSORS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class StoredWeights:
    """The content of `model.safetensors` in a run's folder."""

    header: Header  # what the run is
    round: int  # the last round that counts
    changed: int  # the last round whose step was not empty
    # of the trained tensors, one after the other, in the layout's order
    data: bytes
    digest: str  # the weights', in hex


def _write_weights(path: Path, weights: StoredWeights) -> None:
    """Write the file in place of an older one; it is on disk when this returns."""
    header = base64.b64encode(begin(weights.header)).decode()
    description = {
        "round": weights.round,
        "changed": weights.changed,
        "digest": weights.digest,
        "header": header,
    }
    table: dict[str, Any] = {"__metadata__": {"format": "pt", "fedseed": json.dumps(description)}}
    position = 0
    for entry in weights.header.layout.tensors:
        end = position + entry.size * ITEM_BYTES[entry.dtype]
        table[entry.name] = {
            "dtype": SAFETENSORS[entry.dtype],
            "shape": entry.shape,
            "data_offsets": [position, end],
        }
        position = end
    table["__metadata__"]["check"] = _check(table)
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(weights.data)


def read_weights(path: Path) -> StoredWeights:
    """Read a file of weights.

    Raises OrbitError: it can't be read, is damaged, or is no such file.
    """
    try:
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        table = json.loads(data[8:start])
        if "check" not in table.get("__metadata__", {}):
            raise ValueError("it does not say which run it is of")
        if table["__metadata__"].pop("check") != _check(table):
            raise ValueError("what stands before the weights is not as it was written")
        description = json.loads(table["__metadata__"]["fedseed"])
        header = scan(base64.b64decode(description["header"]), str(path))[0].header
        weights = data[start:]
        if (
            len(weights) != header.layout.dense_bytes
            or header.digest_of(weights) != description["digest"]
        ):
            raise ValueError("the weights' digest differs from the one written with them")
        return StoredWeights(
            header,
            int(description["round"]),
            int(description["changed"]),
            weights,
            description["digest"],
        )
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise OrbitError(f"{path}: not the weights of a run, or damaged: {error}") from error


def _check(table: dict[str, Any]) -> str:
    """Return a hash of all that stands before the weights, which have a digest of their own."""
    return blake2b(json.dumps(table, sort_keys=True).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Restored:
    """The point that an interrupted run had reached."""

    round: int  # the last round that counts
    contents: list[Content]  # what each step to there holds
    records: Sequence[Record] = ()  # what takes a model at its base to there
    unlogged: Sequence[bytes] = ()  # payloads of the steps that the log lacks


class StepStore(ABC):
    """A file of a run's folder.

    Args:
        folder: the run's folder.
        header: what the run is.
        coordinator: is brought to the last step; what it remembers besides the steps is kept, too.
        logged: what the run's log holds; None: there is no log.
    """

    name: ClassVar[str]  # of the file

    def __init__(
        self,
        folder: Path,
        header: Header,
        coordinator: Coordinator,
        logged: StepLogContents | None = None,
    ) -> None:
        self.folder = folder
        self.path = folder / self.name
        self.header = header
        self.coordinator = coordinator
        self.logged = logged
        self.follows = logged is not None and logged.lasting  # whether the log decides
        self._held: Record | None = None  # the newest step, until its digest is known

    @abstractmethod
    def restore(self, has_rounds: bool, warn: Callable[[str], None]) -> Restored:
        """Bring file and coordinator to the last round that counts.

        Args:
            has_rounds: whether the folder has metrics of earlier rounds.
            warn: told what was mended.

        Raises:
            FedseedError: a file is missing, damaged, of another run, or holds other steps than the
                log.
        """

    def prepare(self, number: int) -> None:
        """Write the coordinator's state that is not part of the step that is about to count.

        The file of the round before stays.
        """
        arrays = self.coordinator.state_dict()
        if arrays:
            with (
                replacing(self.folder / f"kept-{number}.npz") as temporary,
                open(temporary, "wb") as file,
            ):
                np.savez(file, **arrays)  # type: ignore[arg-type]
            (self.folder / f"kept-{number - 2}.npz").unlink(missing_ok=True)

    def record(self, number: int, payload: bytes) -> None:
        """Take the step of a round that counts.

        It is written when the weights' digest is known (`confirm`).
        """
        self._held = Record(number, payload)

    def confirm(self, digest: str) -> None:
        """Write the newest step, whose weights have this digest (`NO_DIGEST`: nobody will know
        it).

        Where the files decide, the step is on disk when this returns.
        """
        if self._held is not None:
            record, self._held = self._held, None
            self._write(Record(record.round, record.payload, digest), digest == NO_DIGEST)

    @abstractmethod
    def _write(self, record: Record, lazily: bool) -> None:
        """Write a step.

        Where the log decides it need not be on disk yet if that may be done lazily.
        """

    def sync(self) -> None:  # noqa: B027
        """Bring everything to the disk."""

    @abstractmethod
    def complete(self, digest: str) -> int | None:
        """End the file, for weights of this digest.

        Returns the orbit's size in bytes, None without an orbit.
        """

    def release(self) -> None:  # noqa: B027
        """Close the file as it is."""

    def _elsewhere(self, logged: StepLogContents) -> FedseedError:
        """Return the error for a folder that has nothing of the run in the log."""
        return FedseedError(
            f"the server holds a run {logged.run} of {logged.last} steps, {self.folder} does not: "
            "go on in its folder (--out), choose another name (--run), or delete it from the "
            "server with --fresh"
        )

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

    def restore(self, has_rounds: bool, warn: Callable[[str], None]) -> Restored:
        """Read the orbit; it and the log are repaired from each other."""
        exists, logged = self.path.exists(), self.logged or StepLogContents("")
        if logged.last and not exists:
            raise self._elsewhere(logged)
        if has_rounds and not exists:
            raise FedseedError(
                f"{self.folder}: {self.name} is missing, and with it what the run has learnt"
            )
        self._writer = OrbitWriter(self.path, self.header, resume=exists)
        if self._writer.cut is not None:
            warn(self._writer.cut)
        records: list[Record] = []
        if exists:
            orbit = self._writer.take()
            if orbit.header.first > 1:
                raise OrbitError(f"{self.path} is compacted: a run can't go on from it")
            records += orbit.steps()
        common = min(logged.last, len(records))
        if list(logged.payloads[:common]) != [record.payload for record in records[:common]]:
            raise FedseedError(
                f"{self.path} and the server's run {logged.run} hold different steps"
            )
        unlogged = []
        if self.logged is not None:
            unlogged = [record.payload for record in records[common:]]
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
        """Take up what the aggregation rule remembers, if it remembers anything.

        Without a file it begins anew.
        """
        if not self.coordinator.keeps_outcomes:
            return
        if not number:
            self._forget_kept()  # an earlier run's
        elif (self.folder / f"kept-{number}.npz").exists():
            self._take_kept(number)
        else:
            rule = self.coordinator.aggregation.name
            warn(
                f"{self.folder}: kept-{number}.npz is not there: {rule} remembers nothing of the "
                "rounds before, and goes on so"
            )

    def prepare(self, number: int) -> None:
        """Write what the aggregation rule remembers."""
        if self.coordinator.keeps_outcomes:
            super().prepare(number)

    def _write(self, record: Record, lazily: bool) -> None:
        assert self._writer is not None
        self._writer.append(record, sync=not (self.follows and lazily))

    def sync(self) -> None:
        assert self._writer is not None
        self._writer.sync()

    def complete(self, digest: str) -> int | None:
        assert self._writer is not None
        self.confirm(digest)
        self._writer.close()
        return self.path.stat().st_size

    def release(self) -> None:
        if self._writer is not None:
            self._writer.release()


class WeightsStore(StepStore):
    """The newest weights, in a file that is replaced as a whole.

    Where a log has them, when the run is over.
    """

    name = "model.safetensors"
    _round = 0  # the last that counts
    _changed = 0  # the last whose step was not empty

    def restore(self, has_rounds: bool, warn: Callable[[str], None]) -> Restored:
        """Take the newest weights from the log if it has steps, otherwise from the file."""
        logged = self.logged
        if logged is not None and logged.last:
            metrics = self.folder / "metrics.jsonl"
            if not metrics.exists() or not metrics.stat().st_size:
                raise self._elsewhere(logged)
            number, changed, weights = logged.last, logged.changed, b"".join(logged.payloads)
            records = []
            if changed:
                records = [Record(changed, weights)]
            contents = self._take(number, changed, weights)
            self._match_kept(logged, warn)
            return Restored(number, contents, records)
        if not self.path.exists():
            if has_rounds:
                self._start_again(warn)
            return Restored(0, [])
        stored = read_weights(self.path)
        differences = stored.header.differences(self.header)
        if differences:
            raise OrbitError(f"{self.path} holds the weights of another run: {differences[0]} here")
        contents = self._take(stored.round, stored.changed, stored.data)
        if not stored.changed:
            return Restored(stored.round, contents)
        self._take_kept(stored.round)
        step = Record(stored.changed, stored.data, stored.digest)
        unlogged = [
            step.payload if number == step.round else b"" for number in range(1, stored.round + 1)
        ]
        return Restored(stored.round, contents, [step], () if logged is None else unlogged)

    def _match_kept(self, logged: StepLogContents, warn: Callable[[str], None]) -> None:
        """Take up what the coordinator has kept of the log's last round, or forget it.

        Raises FedseedError: the kept state belongs to a later round and can't be made again.
        """
        number = logged.last
        kept_files = finished_files(self.folder, "kept-*.npz")
        kept_round = max((int(path.stem[5:]) for path in kept_files), default=0)
        if kept_round > number + 1:  # a round that was about to count is one more
            if set(self.coordinator.state_dict()) - {SIZES}:
                raise FedseedError(
                    f"the server's log of run {logged.run} ends with round {number}, "
                    f"{self.folder} has kept what came of round {kept_round}, and of {number} "
                    "nothing any more: begin again with --fresh and another --out"
                )
            warn(
                f"the server's log ends with round {number}, {self.folder} with {kept_round}: the "
                "rest is done again"
            )
            self._forget_kept()
        elif kept_round:
            self._take_kept(number)

    def _start_again(self, warn: Callable[[str], None]) -> None:
        """Forget the rounds whose weights are lost.

        Raises FedseedError: the file decides which rounds count, or clients would disclose more
        than they have already.
        """
        if not self.follows:
            raise FedseedError(
                f"{self.folder}: {self.name} is missing, and with it what the run has learnt"
            )
        if self.coordinator.private or self.coordinator.sums:
            raise FedseedError(
                f"{self.folder}: the server has lost this run's weights; start again elsewhere"
            )
        warn(f"{self.folder}: the server has lost this run's weights: all rounds are done again")
        self._forget_kept()

    def _take(self, number: int, changed: int, weights: bytes) -> list[Content]:
        self._round, self._changed = number, changed
        contents = [Content()] * number
        if changed:
            (contents[changed - 1],) = self.coordinator.catch_up([weights])
        return contents

    def _write(self, record: Record, lazily: bool) -> None:
        self._round = record.round
        if record.payload:
            self._changed = record.round
        if not self.follows:
            self._save(record.digest)

    def _save(self, digest: str) -> None:
        weights = self.coordinator.weights
        if weights is not None:
            weights_digest = digest
            if digest == NO_DIGEST:
                weights_digest = self.header.digest_of(weights)
            _write_weights(
                self.path,
                StoredWeights(self.header, self._round, self._changed, weights, weights_digest),
            )

    def complete(self, digest: str) -> int | None:
        self.confirm(digest)
        if self.follows:
            self._save(digest)
        return None
