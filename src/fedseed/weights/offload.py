"""Keeps copies of tensors out of the way: of weights on a CPU in a temporary file, of a GPU's in its host.

A file costs no memory of its own: the system's cache has it, and pieces of it are read as they are needed. A GPU's host
keeps pinned memory, from which pieces are copied without waiting.
"""

import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from shutil import disk_usage
from typing import Literal

import torch

from fedseed.weights.digest import tensor_bytes

PIECE = 1 << 20  # elements that are read at a time, 4 MiB: they are in a cache when they are used
WORTH = 1 << 26  # bytes of a copy from which on "auto" keeps it out of the way
Offload = bool | Literal["auto"]


class Offloaded(Sequence[torch.Tensor]):
    """Holds copies of tensors that lie elsewhere; hands them out as tensors of a CPU, which nobody may write to."""

    @abstractmethod
    def part(self, index: int, lo: int, hi: int) -> torch.Tensor:
        """Returns elements lo..hi of a tensor, flat."""

    def pieces(self, index: int, first: int, last: int) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yields (lo, hi, elements) for pieces of elements first..last of a tensor, flat.

        Args:
            index: which tensor.
            first: where to begin.
            last: where to end.
        """
        for lo in range(first, last, PIECE):
            yield lo, min(lo + PIECE, last), self.part(index, lo, min(lo + PIECE, last))


class InFile(Offloaded):
    """Keeps copies in a temporary file (where `TMPDIR` says).

    Args:
        tensors: what to keep.

    Raises:
        OSError: the file can't be written.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._like = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors]
        self._at = list(accumulate((t.numel() * t.element_size() for t in tensors), initial=0))
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (it is there as long as this is)
        for t in tensors:
            self._file.write(tensor_bytes(t))
        self._file.flush()

    def __len__(self) -> int:
        return len(self._like)

    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]  # no slices
        """Returns a tensor, read as a whole."""
        return self.part(index, 0, self._like[index].numel()).view(self._like[index].shape)

    def part(self, index: int, lo: int, hi: int) -> torch.Tensor:
        """Reads some elements."""
        like = self._like[index]
        out = torch.empty(hi - lo, dtype=like.dtype, device="cpu")
        if hi > lo:
            self._file.seek(self._at[index] + lo * like.element_size())
            self._file.readinto(out.view(torch.uint8).numpy().data)
        return out


class InHostMemory(Offloaded):
    """Keeps copies in the memory of a GPU's host, pinned where there is a GPU.

    Args:
        tensors: what to keep.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._kept = []
        for t in tensors:
            pinned = t.device.type == "cuda"
            room = torch.empty(t.shape, dtype=t.dtype, device="cpu", pin_memory=pinned)
            self._kept.append(room.copy_(t.detach(), non_blocking=pinned))
        if any(t.device.type == "cuda" for t in tensors):
            torch.cuda.synchronize()

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]  # no slices
        """Returns a tensor of the host."""
        return self._kept[index]

    def part(self, index: int, lo: int, hi: int) -> torch.Tensor:
        """Returns a view."""
        return self._kept[index].view(-1)[lo:hi]


def offloaded(tensors: Sequence[torch.Tensor]) -> Offloaded:
    """Returns copies of tensors, kept where that suits their device."""
    on_cpu = all(t.device.type == "cpu" for t in tensors)
    return InFile(tensors) if on_cpu else InHostMemory(tensors)


def copies(tensors: Sequence[torch.Tensor], offload: Offload, often: bool = False) -> Sequence[torch.Tensor]:
    """Returns copies of tensors for later, kept beside them or out of the way.

    Args:
        tensors: what to keep.
        offload: whether to keep them out of the way; "auto": where that costs next to nothing (`out_of_the_way`).
        often: whether they will be read at every local step, not only a few times a round.
    """
    if offload is True or (offload == "auto" and out_of_the_way(tensors, often)):
        try:
            return offloaded(tensors)
        except OSError:  # no room for a file
            if offload is True:
                raise
    return [t.detach().clone() for t in tensors]


def out_of_the_way(tensors: Sequence[torch.Tensor], often: bool = False) -> bool:
    """Returns what "auto" decides: whether copies are kept out of the way.

    A CPU's copy goes to a file if it is large and the file would lie on a disk with room for it: the system's cache has
    it, so reading it costs little more than memory does. A GPU's goes to the host unless it is read often.
    """
    size = sum(t.numel() * t.element_size() for t in tensors)
    if size < WORTH:
        return False
    if any(t.device.type != "cpu" for t in tensors):
        return not often
    return has_disk(size)


def has_disk(size: int) -> bool:
    """Returns whether temporary files lie on a disk (not in memory) with room for `size` bytes, twice."""
    folder = tempfile.gettempdir()
    if disk_usage(folder).free <= 2 * size:
        return False
    with suppress(OSError):
        found = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=False)
        return found.stdout.strip() not in ("tmpfs", "ramfs")
    return True
