"""Keeps copies of tensors out of the way: of weights on a CPU in a mapped temporary file, of a GPU's in its host.

A mapped file costs no memory of its own: its pages are read where they lie in the system's cache, piece by piece, and
given back right after. A GPU's host keeps pinned memory, from which pieces are copied without waiting.
"""

import mmap
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from shutil import disk_usage
from typing import Literal

import torch

from fedseed.weights.digest import tensor_bytes

PIECE = 1 << 22  # elements that are read at a time; this bounds what is mapped, or copied to a GPU, by 16 MiB
WORTH = 1 << 26  # bytes of a copy from which on "auto" keeps it out of the way
ALIGNED = 64  # a tensor's bytes begin at a multiple of this
Offload = bool | Literal["auto"]


class Offloaded(Sequence[torch.Tensor]):
    """Holds copies of tensors that lie elsewhere; hands them out as tensors of a CPU, which nobody may write to."""

    @abstractmethod
    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]  # no slices
        """Returns one of the tensors."""

    def pieces(self, index: int, first: int, last: int) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yields (lo, hi, elements) for pieces of elements first..last of a tensor, flat; each is valid until the next.

        Args:
            index: which tensor.
            first: where to begin.
            last: where to end.
        """
        for lo in range(first, last, PIECE):
            hi = min(lo + PIECE, last)
            yield lo, hi, self[index].reshape(-1)[lo:hi]
            self.release(index, lo, hi)

    def release(self, index: int, lo: int, hi: int) -> None:
        """Tells that some elements of a tensor are not needed for now."""

    def restore(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies all into tensors of the same shapes and dtypes."""
        with torch.no_grad():
            for index, tensor in enumerate(tensors):
                out = tensor.detach()
                if not out.is_contiguous():
                    out.copy_(self[index])
                    self.release(index, 0, out.numel())
                    continue
                for lo, hi, part in self.pieces(index, 0, out.numel()):
                    out.view(-1)[lo:hi].copy_(part, non_blocking=True)


class InFile(Offloaded):
    """Keeps copies in a temporary file (where `TMPDIR` says) that is mapped.

    Args:
        tensors: what to keep.

    Raises:
        OSError: the file can't be written.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._like = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors]
        self._at: list[int] = []
        self._map: mmap.mmap | None = None
        with tempfile.TemporaryFile() as file:
            end = 0
            for t in tensors:
                file.write(bytes(-end % ALIGNED))
                self._at.append(end + -end % ALIGNED)
                data = tensor_bytes(t)
                file.write(data)
                end = self._at[-1] + data.nbytes
            file.flush()
            if end:  # a private mapping may be written to as far as torch knows; the file stays as it is
                self._map = mmap.mmap(file.fileno(), end, access=mmap.ACCESS_COPY)

    def __len__(self) -> int:
        return len(self._like)

    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
        """Returns a tensor on the file's pages."""
        like = self._like[index]
        if self._map is None or not like.numel():
            return torch.empty_like(like, device="cpu")
        whole = torch.frombuffer(self._map, dtype=like.dtype, count=like.numel(), offset=self._at[index])
        return whole.view(like.shape)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index, like in enumerate(self._like):
            yield self[index]
            self.release(index, 0, like.numel())

    def release(self, index: int, lo: int, hi: int) -> None:
        """Takes the pages out of this process; the system's cache, or the file, still has them."""
        item = self._like[index].element_size()
        begin = (self._at[index] + lo * item) // mmap.PAGESIZE * mmap.PAGESIZE
        length = self._at[index] + hi * item - begin
        if self._map is not None and length > 0 and hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED, begin, length)


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

    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
        """Returns a tensor of the host."""
        return self._kept[index]


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
