"""Files that survive a crash: a write is on disk before the call returns, and it is there as a
whole or not at all.

Nothing is written through a link that somebody has put in a file's place: a folder may come from
somebody else.
"""

import errno
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from fedseed.errors import StorageError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:
    # Windows
    fcntl = None

# Windows has neither flag: there links need rights of their own, and there are no pipes in folders.
# It has one of its own, without which it would write a line's end as two bytes
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
TOKEN_BYTES = 8  # of a temporary file's name
_TEMPORARY = re.compile(rf"\.[0-9a-f]{{{2 * TOKEN_BYTES}}}\.part(\.[^.]*)?$")
LOCKED_BYTE = 1 << 40
# remedies where a file can't be written, by the number of the system's error
REMEDIES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there, or raise the quota",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
}
RUST_ERROR = re.compile(r"\(os error (\d+)\)")
LOCK_PAUSE_SECONDS = 0.01  # before a lock that is held is tried again


def lock_file(handle: int, wait: bool = False) -> None:
    """Lock an open file until it is closed, or its process is gone.

    Args:
        handle: the file's descriptor.
        wait: wait for another process that has locked it.

    Raises:
        BlockingIOError: another process has locked it.
    """
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    # Windows
    msvcrt: Any = import_module("msvcrt")
    # a byte far beyond the end, so that everybody can still read the file
    position = os.lseek(handle, 0, os.SEEK_CUR)
    os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
    except OSError as error:
        raise BlockingIOError(error.errno, str(error)) from error
    finally:
        os.lseek(handle, position, os.SEEK_SET)


class Appender:
    """A file that grows at its end.

    A write that fails (a full disk) is taken back, so that the file never ends in half of something
    unless the machine stops in the middle of it.

    Args:
        path: created if missing; what it holds stays.

    Raises:
        StorageError: it can't be opened for writing, or is a link.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _explained(path):
            new = not path.exists()
            self.handle = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o666)
            self.size = os.fstat(self.handle).st_size
            if new:
                sync_path(path.parent)

    def is_in_place(self) -> bool:
        """Return whether the path still leads to this file: nobody has deleted or replaced it."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return False
        return os.path.samestat(status, os.fstat(self.handle))

    def append(self, *parts: bytes, sync: bool = True) -> None:
        """Write at the end, on disk before this returns.

        Args:
            parts: what to write, one part after the other.
            sync: False: the system has it when this returns, so that it survives the process, but
                not a power cut.

        Raises:
            StorageError: it can't be written; the file is as before.
        """
        try:
            with _explained(self.path):
                position = self.size
                for part in parts:
                    rest = memoryview(part)
                    while rest:
                        count = os.pwrite(self.handle, rest, position)
                        position, rest = position + count, rest[count:]
                if sync:
                    os.fsync(self.handle)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self.handle, self.size)
            raise
        self.size = position

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
        """Close the file; may be called more than once."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Hand out a temporary path beside `path`.

    What was written there takes its place when the block ends well.

    The temporary file is new and nobody can know its name beforehand. One that a killed process has
    left is removed when the same path is next written.

    Raises:
        StorageError: it can't be written; what was at `path` is still there, and nothing else is
            left.
    """
    temporary = path.with_name(f"{path.stem}.{secrets.token_hex(TOKEN_BYTES)}.part{path.suffix}")
    handle = -1
    try:
        with _explained(path):
            _remove_left(path)
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666)
            lock_file(handle, wait=True)  # until this process is gone: it is not left over
            yield temporary
            sync_path(temporary, NO_LINK)
            if os.name == "nt":
                # an open file can't be moved there
                os.close(handle)
                handle = -1
            os.replace(temporary, path)
            sync_path(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        if handle >= 0:
            os.close(handle)


def _remove_left(path: Path) -> None:
    """Remove temporary files of processes that were killed while they wrote `path`."""
    with os.scandir(path.parent) as entries:
        beginning, end = f"{path.stem}.", f".part{path.suffix}"
        length = len(beginning) + 2 * TOKEN_BYTES + len(end)
        leftovers = [
            e.path
            for e in entries
            if e.name.startswith(beginning) and e.name.endswith(end) and len(e.name) == length
        ]
    for name in leftovers:
        with suppress(OSError):
            handle = os.open(name, os.O_RDONLY | NO_LINK | NO_WAIT)
            try:
                lock_file(handle)
                Path(name).unlink()
            finally:
                os.close(handle)


def finished_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder that match a pattern, sorted by name.

    Temporary files of `replacing`, which a killed process may have left, are not among them.

    Args:
        folder: the folder; it need not exist.
        pattern: as for `Path.glob`.
    """
    return sorted(path for path in folder.glob(pattern) if not _TEMPORARY.search(path.name))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is either whole, or as it was before."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def is_irregular(path: Path) -> bool:
    """Whether a path is a pipe, a socket or a device, or a link to one, which may be read without
    end.
    """
    return path.exists() and not path.is_file() and not path.is_dir()


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those that it is in, so that they survive a power cut.

    Args:
        path: the folder; it may be there already.
        mode: its permissions if it is made; those above it get the usual ones.

    Raises:
        StorageError: it can't be made.
    """
    with _explained(path):
        if path.is_dir():
            return
        make_folder(path.parent)
        path.mkdir(mode, exist_ok=True)
        sync_path(path.parent)


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold a lock file as long as the block lasts; it is free again when the process is gone.

    Args:
        path: the lock file; made if it is missing, and never removed.
        seconds: how long to wait for another process.

    Raises:
        StorageError: it can't be opened.
        TimeoutError: another process holds it all the time.
    """
    with _explained(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK | NO_WAIT, 0o600)
    try:
        end = time.monotonic() + seconds
        while True:
            try:
                lock_file(handle)
                break
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise TimeoutError(f"{path}: another process holds this lock") from error
                time.sleep(LOCK_PAUSE_SECONDS)
        yield
    finally:
        os.close(handle)


def append_to(path: str, flags: int) -> int:
    """Open a file for `open`, as its `opener`, and follows no link."""
    return os.open(path, flags | NO_LINK, 0o666)


def sync_path(path: Path, flags: int = 0) -> None:
    """Bring a file, or a folder's list of files, to the disk; `flags`: how else it is opened."""
    if os.name == "nt":
        # folders can't be opened there, and a file that is open for reading can't be flushed
        return
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an error of the system into a StorageError, with a remedy where there is one."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: can't be written: {explain_failed_write(error)}") from error


def explain_failed_write(error: OSError) -> str:
    """Return what kept a file from being written, with a remedy where there is one."""
    problem = error.strerror or str(error)
    if error.errno == errno.ELOOP:
        return "it is a link, and nothing is written through one"
    if error.errno in REMEDIES:
        return f"{problem}: {REMEDIES[error.errno]}, then start this again"
    return problem


def find_system_error(error: BaseException) -> OSError | None:
    """Return the system's error that an error is, or that its text quotes; None: neither.

    safetensors and tokenizers, which are written in Rust, raise errors of their own kinds, such as
    "... I/O error: No space left on device (os error 28)".
    """
    if isinstance(error, OSError):
        return error
    quoted = RUST_ERROR.search(str(error))
    if quoted is None:
        return None
    number = int(quoted[1])
    return OSError(number, os.strerror(number))
