"""What clients keep from round to round, such as what a compressor has left out: a vector for each
client.

A round may be computed again: the process was killed before the round counted, or another worker
computes it. So what a
client kept in the last rounds is there by round: a round finds what was kept before it, whatever
came later.
"""

import shutil
import weakref
import zlib
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from fedseed.durable import finished_files, replacing
from fedseed.errors import FedseedError
from fedseed.weights.change import Floats

# versions kept for each client: the round computed ahead, the one before it, and that one's start
VERSIONS = 3


class Memory:
    """Vectors of clients in a folder.

    Args:
        folder: where files are, one for each client and round; it is made when it is first needed.
            None: a temporary folder, which goes with this object.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder

    @cached_property
    def folder(self) -> Path:
        """Return the folder of the files, which other processes may use, too."""
        if self._given is not None:
            return self._given
        folder = mkdtemp(prefix="fedseed-memory-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    def recall(self, client: int, round: int, size: int) -> Floats | None:
        """Return a copy of what a client kept last before a round, `size` numbers; None: nothing.

        Raises FedseedError if a file is damaged, or of a model of another size.
        """
        path = next(
            (path for number, path in reversed(self._files_of(client)) if number < round), None
        )
        if path is None:
            return None
        try:
            data = path.read_bytes() if path.stat().st_size == 4 + 4 * size else b""
        except OSError as error:
            raise FedseedError(f"{path}: can't be read: {error.strerror or error}") from error
        if not data or zlib.crc32(memoryview(data)[4:]) != int.from_bytes(data[:4], "little"):
            raise FedseedError(
                f"{path}: damaged: what the client had yet to send is lost, and the run can't go on"
            )
        return np.frombuffer(data, dtype="<f4", offset=4).astype(np.float32)

    def keep(self, client: int, round: int, vector: Floats) -> None:
        """Keep a client's vector of a round, on disk before this returns.

        What is older than needed is forgotten.

        The vector, float32, may change afterwards. Raises StorageError if it can't be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        data = vector.astype("<f4", copy=False).data.cast("B")
        with (
            replacing(self.folder / f"client-{client}.{round}.f4") as temporary,
            open(temporary, "wb") as file,
        ):
            file.write(zlib.crc32(data).to_bytes(4, "little"))
            file.write(data)
        files = self._files_of(client)
        old = [path for number, path in files if number <= round][:-VERSIONS]
        for path in [path for number, path in files if number > round] + old:
            path.unlink(missing_ok=True)

    def _files_of(self, client: int) -> list[tuple[int, Path]]:
        """Return the client's files by round, in ascending order."""
        paths = finished_files(self.folder, f"client-{client}.*.f4")
        return sorted((int(path.name.split(".")[1]), path) for path in paths)
