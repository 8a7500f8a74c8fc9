"""Tensors kept in a temporary file, for what would not fit into memory beside a model."""

import tempfile
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch


class Offloaded(Sequence[torch.Tensor]):
    """Copies of tensors in a temporary file (where `TMPDIR` says), read back one by one.

    Args:
        tensors: what to keep.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._like = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors]
        self._at = [0, *accumulate(like.numel() * like.element_size() for like in self._like)]
        self._last: tuple[int, torch.Tensor] | None = None
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the object)
        for t in tensors:
            self._file.write(t.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def __len__(self) -> int:
        return len(self._like)

    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]  # no slices
        """A copy on the CPU. The last one is kept until another is asked for, or `release`."""
        if self._last is not None and self._last[0] == index:
            return self._last[1]
        self._last = None  # its memory is free before the next one needs some
        like = self._like[index]
        if like.numel():
            data = bytearray(self._at[index + 1] - self._at[index])
            self._file.seek(self._at[index])
            if self._file.readinto(data) != len(data):
                raise OSError("the temporary file with weights is cut short")
            there = torch.frombuffer(data, dtype=like.dtype).view(like.shape)
        else:
            there = torch.empty_like(like, device="cpu")
        self._last = index, there
        return there

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(len(self)):
            yield self[index]
        self.release()

    def release(self) -> None:
        """Free the tensor read last."""
        self._last = None
