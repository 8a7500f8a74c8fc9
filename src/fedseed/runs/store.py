"""Stores that make a run's steps durable, so that an interrupted run can resume.

This module does not need torch.

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

# numpy's and safetensors' names of dtypes
SAFETENSORS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class StoredWeights:
    """The content of `model.safetensors` in a run's folder."""

    header: Header  # the run's header
    round: int  # the last round that counts
    changed: int  # the last round whose step was not empty
    # bytes of the trained tensors, one after the other, in the layout's order
    data: bytes
    digest: str  # of the weights, in hex


def _write_weights(path: Path, weights: StoredWeights) -> None:
    """Write the file, replacing an older one. It is on disk when this returns."""
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

    Raises OrbitError if the file can't be read, is damaged, or is not a file of weights.
    """
    try:
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        table = json.loads(data[8:start])
        if "check" not in table.get("__metadata__", {}):
            raise ValueError("the file does not name its run")
        if table["__metadata__"].pop("check") != _check(table):
            raise ValueError("the part before the weights has changed since it was written")
        description = json.loads(table["__metadata__"]["fedseed"])
        header = scan(base64.b64decode(description["header"]), str(path))[0].header
        weights = data[start:]
        if (
            len(weights) != header.layout.dense_bytes
            or header.digest_of(weights) != description["digest"]
        ):
            raise ValueError("the weights do not match the digest written with them")
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
    """Return a hash of the file's entries besides the weights, which have their own digest."""
    return blake2b(json.dumps(table, sort_keys=True).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Restored:
    """The state of an interrupted run."""

    round: int  # the last round that counts
    contents: list[Content]  # the content of each step up to that round
    records: Sequence[Record] = ()  # steps that bring the base model to that round
    unlogged: Sequence[bytes] = ()  # payloads of the steps that are missing in the log


class StepStore(ABC):
    """Keeps a run's steps in a file of the run's folder.

    Args:
        folder: the run's folder.
        header: the run's header.
        coordinator: the coordinator, which `restore` brings to the last step. Its state besides the
            steps is kept as well.
        logged: the content of the run's log; None: there is no log.
    """

    name: ClassVar[str]  # the file's name

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
        # whether the log decides which rounds count
        self.follows = logged is not None and logged.lasting
        self._held: Record | None = None  # the newest step, until its digest is known

    @abstractmethod
    def restore(self, has_rounds: bool, warn: Callable[[str], None]) -> Restored:
        """Bring the file and the coordinator to the last round that counts.

        Args:
            has_rounds: whether the folder has metrics of earlier rounds.
            warn: called with a message about each repair.

        Raises:
            FedseedError: a file is missing or damaged, belongs to another run, or has other steps
                than the log.
        """

    def prepare(self, number: int) -> None:
        """Write the part of the coordinator's state that steps do not hold, before the next step
        counts.

        The previous round's file is kept.
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
        """Take the step of a new round that counts.

        It is written when the weights' digest is known (`confirm`).
        """
        self._held = Record(number, payload)

    def confirm(self, digest: str) -> None:
        """Write the newest step with the digest of the weights after it (`NO_DIGEST`: it will not
        be known).

        If the files decide which rounds count, the step is on disk when this returns.
        """
        if self._held is not None:
            record, self._held = self._held, None
            self._write(Record(record.round, record.payload, digest), digest == NO_DIGEST)

    @abstractmethod
    def _write(self, record: Record, lazily: bool) -> None:
        """Write a step.

        If `lazily` is true and the log decides which rounds count, the step may reach the disk
        later.
        """

    def sync(self) -> None:  # noqa: B027
        """Bring everything to the disk."""

    @abstractmethod
    def complete(self, digest: str) -> int | None:
        """Finish the file; `digest` is that of the final weights.

        Returns the orbit's size in bytes; None without an orbit.
        """

    def release(self) -> None:  # noqa: B027
        """Close the file without finishing it."""

    def _elsewhere(self, logged: StepLogContents) -> FedseedError:
        """Return the error for a folder that does not hold the run of the log."""
        return FedseedError(
            f"the server holds a run {logged.run} of {logged.last} steps, but {self.folder} does "
            "not: continue in the run's folder (--out), choose another name (--run), or delete "
            "the run from the server with --fresh"
        )

    def _take_kept(self, number: int) -> None:
        """Restore the coordinator's state from the file of a round. Raises FedseedError if it can't
        be read.
        """
        path = self.folder / f"kept-{number}.npz"
        try:
            with ZipFile(path) as archive:
                if any(entry.compress_type != ZIP_STORED for entry in archive.infolist()):
                    raise ValueError("it is compressed, but fedseed never compresses it")
            with np.load(path, allow_pickle=False) as arrays:
                self.coordinator.load_state_dict({name: arrays[name] for name in arrays.files})
        except (OSError, LookupError, ValueError, BadZipFile, EOFError, MemoryError) as error:
            raise FedseedError(
                f"{path}: the coordinator's state of round {number} can't be read: {error}"
            ) from error

    def _forget_kept(self) -> None:
        for path in self.folder.glob("kept-*.npz"):
            path.unlink()


class OrbitStore(StepStore):
    """Keeps all steps, in an orbit."""

    name = "model.orbit"
    _writer: OrbitWriter | None = None

    def restore(self, has_rounds: bool, warn: Callable[[str], None]) -> Restored:
        """Read the orbit. Orbit and log are completed from each other."""
        exists, logged = self.path.exists(), self.logged or StepLogContents("")
        if logged.last and not exists:
            raise self._elsewhere(logged)
        if has_rounds and not exists:
            raise FedseedError(
                f"{self.folder}: {self.name} is missing, which held all that the run has learnt"
            )
        self._writer = OrbitWriter(self.path, self.header, resume=exists)
        if self._writer.cut is not None:
            warn(self._writer.cut)
        records: list[Record] = []
        if exists:
            orbit = self._writer.take()
            if orbit.header.first > 1:
                raise OrbitError(f"{self.path} is compacted: a run can't continue from it")
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
        """Restore the aggregation rule's state, if the rule has one.

        Without a file the rule starts afresh.
        """
        if not self.coordinator.keeps_outcomes:
            return
        if not number:
            self._forget_kept()  # files of an earlier run
        elif (self.folder / f"kept-{number}.npz").exists():
            self._take_kept(number)
        else:
            rule = self.coordinator.aggregation.name
            warn(
                f"{self.folder}: kept-{number}.npz is missing: {rule} continues without its "
                "memory of earlier rounds"
            )

    def prepare(self, number: int) -> None:
        """Write the aggregation rule's state."""
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
    """Keeps only the newest weights, in a file that is replaced as a whole.

    If a log has the weights, the file is written only when the run is over.
    """

    name = "model.safetensors"
    _round = 0  # the last round that counts
    _changed = 0  # the last round whose step was not empty

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

        Raises FedseedError if it belongs to a later round and can't be recomputed.
        """
        number = logged.last
        kept_files = finished_files(self.folder, "kept-*.npz")
        kept_round = max((int(path.stem[5:]) for path in kept_files), default=0)
        # the state may be one round ahead: it is written before the round counts
        if kept_round > number + 1:
            if set(self.coordinator.state_dict()) - {SIZES}:
                raise FedseedError(
                    f"the server's log of run {logged.run} ends with round {number}, but "
                    f"{self.folder} has the state of round {kept_round} and no longer that of "
                    f"{number}: begin again with --fresh and another --out"
                )
            warn(
                f"the server's log ends with round {number}, {self.folder} with {kept_round}: the "
                "later rounds are done again"
            )
            self._forget_kept()
        elif kept_round:
            self._take_kept(number)

    def _start_again(self, warn: Callable[[str], None]) -> None:
        """Start again at round 0, because the weights are lost.

        Raises FedseedError if the file decides which rounds count, or if repeated rounds would
        disclose more about the clients' data.
        """
        if not self.follows:
            raise FedseedError(
                f"{self.folder}: {self.name} is missing, which held all that the run has learnt"
            )
        if self.coordinator.private or self.coordinator.sums:
            raise FedseedError(
                f"{self.folder}: the server has lost this run's weights, and a private run "
                "must not repeat rounds; begin a new run with another --out"
            )
        warn(f"{self.folder}: the server has lost this run's weights: repeating all rounds")
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
