"""Write an orbit during a run, and continue one after an interruption."""

from pathlib import Path

from fedseed.durable import Appender
from fedseed.errors import OrbitError
from fedseed.orbit.file import Orbit, begin, read_file, scan, write_orbit
from fedseed.orbit.header import Header
from fedseed.orbit.record import NO_DIGEST, Record, ending, link, pack_records


class OrbitWriter:
    """Appends records to an orbit file.

    Each is on disk before `append` returns. Records are not kept in memory.

    Args:
        path: the file.
        header: what replay needs.
        resume: whether the file exists and is continued after its last whole record. The rest of an
            interrupted write is cut off (`cut` describes it). If False, the file must not exist.

    Raises:
        OrbitError: the file exists; or it can't be continued, as it is damaged before its last
            record or belongs to another run.
        StorageError: it can't be written.
    """

    def __init__(self, path: Path, header: Header, resume: bool = False) -> None:
        self.path = path
        self.cut: str | None = None
        if not resume:
            if path.exists():
                raise OrbitError(f"{path}: the orbit exists already")
            write_orbit(path, begin(header), ())  # a file has a whole header, or does not exist
        orbit, damage = scan(read_file(path), str(path))
        differences = orbit.header.differences(header)
        if differences:
            raise OrbitError(f"{path} is the orbit of another run: {differences[0]} here")
        if damage is not None and not damage.torn:
            raise OrbitError(
                f"{damage.text}; an interrupted write can't be the cause, so nothing is cut off: "
                f"`fedseed orbit rollback --to {orbit.last}` saves the steps before it"
            )
        self._method = header.method
        self._link = orbit.end
        self._file = Appender(path)
        if damage is not None:
            self.cut = f"{damage.text}: cut back to step {orbit.last}"
            self._file.cut(orbit.size)
        self.orbit: Orbit | None = orbit if resume else None
        self.last = orbit.last
        self._digest = orbit.parts[-1].digest if orbit.parts else NO_DIGEST
        self._complete = orbit.complete

    def take(self) -> Orbit:
        """Return the orbit that the file had when it was opened, and forget it, to save memory."""
        assert self.orbit is not None
        orbit, self.orbit = self.orbit, None
        return orbit

    def append(self, record: Record, sync: bool = True) -> None:
        """Write one step.

        Raises OrbitError: it is not the next step; StorageError: it can't be written, and the file
        is unchanged.

        Without `sync` the step may not be on disk when this returns (call `sync()` for that). Runs
        that keep the step elsewhere, too, use this.
        """
        if self._complete:
            raise OrbitError(f"{self.path}: the orbit is complete, nothing can be added")
        if record.round != self.last + 1:
            raise OrbitError(f"{self.path}: step {record.round} can't follow step {self.last}")
        parts = record.encode_parts()
        next_link = link(self._link, *parts)
        self._file.append(*parts, next_link, sync=sync)
        self._link, self.last, self._digest = next_link, record.round, record.digest

    def sync(self) -> None:
        """Wait until all records are on disk."""
        self._file.sync()

    def close(self) -> None:
        """End the file, as the run is over. For a step-by-step method, the file is replaced by one
        with packed records.

        Raises:
            StorageError: it can't be written; the file is unchanged.
        """
        if not self._complete:
            if self._method.stepwise:
                orbit = Orbit.open(self.path)
                write_orbit(
                    self.path, orbit.start, ending(pack_records(self._method, orbit.steps()))
                )
            else:
                data = Record(self.last + 1, b"", self._digest, steps=0).encode()
                self._file.append(data, link(self._link, data))
            self._complete = True
        self.release()

    def release(self) -> None:
        """Close the file as it is."""
        self._file.close()
