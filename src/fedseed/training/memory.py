"""What clients keep from round to round, such as what a compressor has left out: a vector for each client.

A round may be computed again: the process was killed before the round counted, or another worker computes it. So what a
client kept in the last rounds is there by round: a round finds what was kept before it, whatever came later.
"""

import zlib
from pathlib import Path

import numpy as np

from fedseed.durable import replacing
from fedseed.errors import FedseedError
from fedseed.weights.change import Floats

VERSIONS = 3  # of each client's: a round that is computed ahead, the one before it, and what that began with


class Memory:
    """Vectors of clients, in a folder or in this process' memory.

    Args:
        folder: where files are, one for each client and round; it is made when it is first needed. None: in memory, and
            gone with this object.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._held: dict[int, dict[int, Floats]] = {}

    def recall(self, client: int, round: int, size: int) -> Floats | None:
        """A copy of what a client kept last before a round; None: nothing.

        Args:
            client: its number.
            round: the round that it is at.
            size: how long the vector must be.

        Raises:
            FedseedError: a file is damaged, or of a model of another size.
        """
        before = [number for number in self._rounds(client) if number < round]
        if not before:
            return None
        return self._held[client][before[-1]].copy() if self.folder is None else self._read(client, before[-1], size)

    def keep(self, client: int, round: int, vector: Floats) -> None:
        """Keep a vector, on disk before this returns; what is older than needed is forgotten.

        Args:
            client: its number.
            round: the round that it was made in.
            vector: float32; it may change afterwards.

        Raises:
            StorageError: it can't be written.
        """
        if self.folder is None:
            self._held.setdefault(client, {})[round] = vector.copy()
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            data = vector.astype("<f4", copy=False).data.cast("B")
            with replacing(self._path(client, round)) as temporary, open(temporary, "wb") as file:
                file.write(zlib.crc32(data).to_bytes(4, "little"))
                file.write(data)
        rounds = self._rounds(client)
        for number in [n for n in rounds if n > round] + [n for n in rounds if n <= round][:-VERSIONS]:
            if self.folder is None:
                del self._held[client][number]
            else:
                self._path(client, number).unlink(missing_ok=True)

    def _rounds(self, client: int) -> list[int]:
        """Returns the rounds in which the client kept something that is still there, in ascending order."""
        if self.folder is None:
            return sorted(self._held.get(client, ()))
        names = (path.name.split(".") for path in self.folder.glob(f"client-{client}.*.f4"))
        return sorted(int(parts[1]) for parts in names if len(parts) == 3)

    def _path(self, client: int, round: int) -> Path:
        assert self.folder is not None
        return self.folder / f"client-{client}.{round}.f4"

    def _read(self, client: int, round: int, size: int) -> Floats:
        path = self._path(client, round)
        try:
            data = path.read_bytes() if path.stat().st_size == 4 + 4 * size else b""
        except OSError as error:
            raise FedseedError(f"{path}: can't be read: {error.strerror or error}") from error
        if not data or zlib.crc32(memoryview(data)[4:]) != int.from_bytes(data[:4], "little"):
            raise FedseedError(f"{path}: damaged: what the client had yet to send is lost, and the run can't go on")
        return np.frombuffer(data, dtype="<f4", offset=4).astype(np.float32)
