"""Writes an orbit while a run goes on, and takes up one that an interrupted run has left."""

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
        resume: the file exists: go on after its last whole record. What an interrupted write has
            left behind it is cut off (`cut` says what). Without it the file must not exist.

    Raises:
        OrbitError: the file exists, or can't be taken up: it is damaged before its last record, or
            of another run.
        StorageError: it can't be written.
    """

    def __init__(self, path: Path, header: Header, resume: bool = False) -> None:
        self.path = path
        self.cut: str | None = None
        if not resume:
            if path.exists():
                raise OrbitError(f"{path}: there is an orbit already")
            write_orbit(path, begin(header), ())  # the header is there as a whole or not at all
        orbit, damage = scan(read_file(path), str(path))
        differences = orbit.header.differences(header)
        if differences:
            raise OrbitError(f"{path} is the orbit of another run: {differences[0]} here")
        if damage is not None and not damage.torn:
            raise OrbitError(
                f"{damage.text}; this is no write that was interrupted, so nothing is cut off: "
                f"`fedseed orbit rollback --to {orbit.last}` saves what comes before"
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
        """Return, once, the orbit that the file held when it was taken up.

        It is not kept, to save memory.
        """
        assert self.orbit is not None
        orbit, self.orbit = self.orbit, None
        return orbit

    def append(self, record: Record, sync: bool = True) -> None:
        """Write one step.

        Raises OrbitError: not the next one; StorageError: can't be written, the file is as before.

        Without `sync` it is not on disk yet when this returns (`sync()` does that): for runs that
        have it elsewhere.
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
        """Brings everything to the disk."""
        self._file.sync()

    def close(self) -> None:
        """Ends the file, as the run is over; a step-by-step method's records are packed, in one go.

        Raises:
            StorageError: it can't be written; the file is as before.
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
        """Closes the file as it is."""
        self._file.close()
