"""An orbit made of a run's log, for a client that wants to keep it. The bytes are those of the coordinator's file."""

import asyncio
from pathlib import Path

from fedseed.errors import MessageError, NetworkError, OrbitError
from fedseed.federation.large import fetch
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.protocol import Entry, read_header, read_mark, read_step
from fedseed.orbit import NO_DIGEST, OrbitWriter, Record
from fedseed.orbit.file import scan
from fedseed.orbit.record import LINK_BYTES, link
from fedseed.transport.base import End

PATIENCE_SECONDS = 60.0  # for the next entry of a log that has ended


async def write_log(end: End, run: str, path: Path) -> None:
    """Write the orbit of a run that is over.

    Args:
        end: the transport.
        run: the run's name.
        path: the file; must not exist.

    Raises:
        NetworkError: the log, or a part of it, can't be had any more.
        OrbitError: the steps do not follow each other, or there is a file.
    """
    entries: asyncio.Queue[bytes] = asyncio.Queue()
    stop = await end.follow(0, lambda number, data: entries.put_nowait(data))
    making = _Making(path)
    try:
        while not making.complete:
            data = await asyncio.wait_for(entries.get(), PATIENCE_SECONDS)
            await making.take(Entry.decode(data), end)
    except (TimeoutError, MessageError) as error:
        raise NetworkError(
            f"the log of run {run} can't be read again for its orbit: {error or 'it is gone'}"
        ) from error
    finally:
        await stop()
        making.release()


class _Making:
    """The file while it is written. A step waits for the mark that may follow it: the digest of its weights."""

    def __init__(self, path: Path) -> None:
        self.complete = False
        self._path = path
        self._writer: OrbitWriter | None = None
        self._link = b""
        self._held: Record | None = None

    async def take(self, entry: Entry, end: End) -> None:
        """The next entry of the log."""
        if entry.kind == "H":
            start = read_header(entry)[1]
            self._writer = OrbitWriter(self._path, scan(start, "the log's header")[0].header)
            self._link = start[-LINK_BYTES:]
        elif entry.kind == "T":
            self._write()
            self._link, message = await self._step(entry, end)
            number = self._writer.last + 1 if self._writer is not None else 1
            self._held = Record(number, message[FRAME_BYTES:], NO_DIGEST)
        elif entry.kind == "M":
            number, digest = read_mark(entry)
            if self._held is not None and number == self._held.round:
                self._held = Record(number, self._held.payload, digest)
        elif entry.kind == "E":
            self._write()
            if self._writer is not None:
                self._writer.sync()
                self._writer.close()
            self.complete = True

    async def _step(self, entry: Entry, end: End) -> tuple[bytes, bytes]:
        after, carried = read_step(entry)
        message = await fetch(end, carried, None)
        if link(self._link, message) != after:
            raise OrbitError(f"{self._path}: a step of the log does not follow the one before it")
        return after, message

    def _write(self) -> None:
        if self._held is not None and self._writer is not None:
            self._writer.append(self._held, sync=False)
        self._held = None

    def release(self) -> None:
        """Close the file as it is."""
        if self._writer is not None and not self.complete:
            self._writer.release()
