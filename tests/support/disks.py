"""Small disks of their own, which a test fills up (tmpfs: only root may mount one)."""

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path


class SmallDisk:
    """A file system in memory.

    Args:
        folder: where it is mounted; made if it is missing.
        size: in bytes.

    Raises:
        subprocess.CalledProcessError: it can't be mounted.
    """

    def __init__(self, folder, size):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._filler = self.folder / "filler"
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self.folder)]
        subprocess.run(command, check=True, capture_output=True)

    def fill(self):
        """Fill it up to the last byte."""
        handle = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while True:
                        os.write(handle, bytes(size))
        finally:
            os.close(handle)

    def make_room(self):
        """Take the filling away."""
        self._filler.unlink(missing_ok=True)

    def remove(self):
        """Unmount it, also while a process has files there."""
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


@cache
def can_mount():
    """Return whether this process may mount a disk."""
    folder = tempfile.mkdtemp()
    try:
        SmallDisk(folder, 1 << 16).remove()
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        shutil.rmtree(folder)
    return True
