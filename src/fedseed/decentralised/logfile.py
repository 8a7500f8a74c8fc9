"""Keep a log on disk: the magic "fedmesh1", the run's fingerprint of 16 bytes, then entries as they
travel (`fedseed.decentralised.entry`).
"""

from pathlib import Path

from fedseed.decentralised.entry import HEAD, MOST_PAYLOAD, SIGNED, Entry
from fedseed.decentralised.entry import MAGIC as ENTRY_MAGIC
from fedseed.durable import Appender
from fedseed.errors import MessageError, StorageError
from fedseed.orbit.record import LINK_BYTES
from fedseed.transport.signatures import SIGNATURE_BYTES

MAGIC = b"fedmesh1"
START_BYTES = len(MAGIC) + LINK_BYTES


class LogFile:
    """The file of one node's log.

    An entry that an interrupted write has left unfinished at the end is cut off: no other node
    knows it, since a node's own entries are on disk before they are sent.

    Args:
        path: the file; made if it is missing.
        fingerprint: the run's.

    Raises:
        StorageError: it can't be written, is of another run, or is damaged before its last entry.
    """

    def __init__(self, path: Path, fingerprint: bytes) -> None:
        self.path = path
        self._file = Appender(path)
        start = MAGIC + fingerprint
        data = path.read_bytes()
        # the process was killed while it wrote the start of the file
        if len(data) < len(start) and start.startswith(data):
            self._file.cut(0)
            self._file.append(start)
            data = start
        if not data.startswith(MAGIC):
            raise StorageError(f"{path}: not a log of a mesh")
        if not data.startswith(start):
            raise StorageError(
                f"{path}: the log of another run (recipe, base, rounds or list of nodes differ): "
                "choose another folder with --out"
            )
        # bytes of an unfinished entry that was cut off
        self.lost_bytes = 0
        self.entries = self._read(data, len(start))

    def _read(self, data: bytes, position: int) -> list[Entry]:
        """Return the whole entries from a position on, and cut off an unfinished one."""
        entries: list[Entry] = []
        while position < len(data):
            try:
                entry = Entry.read(data, position)
            except MessageError as error:
                if not is_unfinished(data, position):
                    raise StorageError(
                        f"{self.path}: damaged at byte {position:,}: {error}; delete the file: "
                        "other nodes have its steps"
                    ) from error
                self.lost_bytes = len(data) - position
                self._file.cut(position)
                break
            entries.append(entry)
            position += entry.size
        return entries

    def append(self, entry: Entry, sync: bool) -> None:
        """Write an entry at the end.

        Args:
            entry: the entry.
            sync: whether it is on disk before this returns, as is needed for a node's own entries.

        Raises:
            StorageError: it can't be written; the file is unchanged.
        """
        self._file.append(entry.encode(), sync=sync)

    def cut(self, entries: list[Entry]) -> None:
        """Keep only these entries, which the file begins with."""
        self._file.cut(START_BYTES + sum(entry.size for entry in entries))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def is_unfinished(data: bytes, position: int) -> bool:
    """Return whether the bytes from a position on may come from an interrupted write. Such a write
    leaves the beginning of one entry, and perhaps zeros in place of its content.
    """
    rest = data[position:]
    if not any(rest) or len(rest) < HEAD.size:
        return True
    magic, _, flags, _, _, _, length = HEAD.unpack_from(rest)
    if magic != ENTRY_MAGIC or length > MOST_PAYLOAD:
        return False
    end = SIGNATURE_BYTES if flags & SIGNED else LINK_BYTES
    return HEAD.size + length + LINK_BYTES + end >= len(rest)
