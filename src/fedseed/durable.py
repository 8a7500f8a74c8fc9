"""Files that survive a crash: a write is on disk before the call returns, and it is there as a whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedseed.errors import StorageError


class Appender:
    """A file that grows at its end.

    A write that fails (a full disk) is taken back, so that the file never ends in half of something unless the
    machine stops in the middle of it.

    Args:
        path: created if missing; what it holds stays.

    Raises:
        StorageError: it can't be opened for writing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _explained(path):
            new = not path.exists()
            self.handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            self.size = os.fstat(self.handle).st_size
            if new:
                sync_folder(path.parent)

    def append(self, data: bytes, sync: bool = True) -> None:
        """Write at the end, on disk before this returns.

        Args:
            data: what to write.
            sync: False: the system has it when this returns, so that it survives the process, but not a power cut.

        Raises:
            StorageError: it can't be written; the file is as before.
        """
        try:
            with _explained(self.path):
                at = self.size
                rest = memoryview(data)
                while rest:
                    written = os.pwrite(self.handle, rest, at)
                    at, rest = at + written, rest[written:]
                if sync:
                    os.fsync(self.handle)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self.handle, self.size)
            raise
        self.size = at

    def sync(self) -> None:
        """Bring everything to the disk."""
        with _explained(self.path):
            os.fsync(self.handle)

    def cut(self, size: int) -> None:
        """Drop everything after the first `size` bytes."""
        if size < self.size:
            with _explained(self.path):
                os.ftruncate(self.handle, size)
                os.fsync(self.handle)
            self.size = size

    def close(self) -> None:
        """Close the file; again is fine."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Hands out a temporary path beside `path`; what was written there takes its place when the block ends well.

    Raises:
        StorageError: it can't be written; what was at `path` is still there, and nothing else is left.
    """
    temporary = path.with_stem(path.stem + ".part")
    try:
        with _explained(path):
            yield temporary
            handle = os.open(temporary, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(temporary, path)
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is either whole, or as it was before."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def sync_folder(path: Path) -> None:
    """Bring a folder's list of files to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: can't be written: {error.strerror or error}") from error
