"""Read the base's weights from its safetensors files, piece by piece, when weights are rebuilt, so
that no copy of the base is kept in memory.

A piece is read into the weights themselves where the file has their dtype, else into a buffer of a
few megabytes. Reads go through the system's page cache, which is not memory of this process: files
are not mapped.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from fedseed.errors import FedseedError
from fedseed.weights.layout import Layout
from fedseed.weights.vector import Vector, flat, write_back

# names of dtypes in the header of a safetensors file
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
# bytes of a file that are read at a time
PIECE_BYTES = 4 << 20
# most bytes of a header: safetensors itself refuses longer ones
MOST_HEADER_BYTES = 100_000_000


class _File:
    """A safetensors file, open for reading.

    It stays readable if its name is removed or given to another file. `check` notices that its
    bytes were overwritten, by its size and the time of the last change.

    Args:
        path: the file.

    Raises:
        OSError: it can't be read.
        ValueError: its header is not that of a safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = open(path, "rb", buffering=0)  # noqa: SIM115 (open while this lives)
        self._version = self._read_version()
        length = int.from_bytes(self._file.read(8), "little")
        if not 2 <= length <= MOST_HEADER_BYTES:
            raise ValueError(f"{path}: no safetensors file")
        header = json.loads(self._file.read(length))
        if not isinstance(header, dict):
            raise ValueError(f"{path}: no safetensors file")
        self.entries: Mapping[str, Any] = header
        self._start = 8 + length

    def _read_version(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def check(self) -> None:
        """Raise FedseedError if the file was overwritten since it was opened."""
        if self._read_version() != self._version:
            raise FedseedError(
                f"{self.path}: the base's file was overwritten while the run used it, so its "
                "weights can't be rebuilt: restore the file, and resume the run"
            )

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill memory with the file's bytes from an offset on, counted after its header.

        Raises FedseedError if they can't be read.
        """
        self._file.seek(self._start + offset)
        done = 0
        while done < len(target):
            try:
                count = self._file.readinto(target[done : done + PIECE_BYTES])  # type: ignore[attr-defined]
            except OSError as error:
                raise FedseedError(
                    f"{self.path}: the base's file can't be read: {error.strerror or error}"
                ) from error
            if not count:
                raise FedseedError(
                    f"{self.path}: the base's file ends too early: download it again"
                )
            done += count


class _Place(NamedTuple):
    """The place of a tensor in a file."""

    file: _File
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int  # position of the first byte, counted after the header


@dataclass
class StoredBase:
    """A base that is read from its files; a copy is kept of the tensors that no file has.

    `open_base` makes one.
    """

    vector: Vector
    places: Mapping[int, _Place]  # places, by the tensor's number
    copies: Mapping[int, torch.Tensor]  # copies of the other tensors

    @property
    def copied_bytes(self) -> int:
        """Return the bytes of the copies."""
        return sum(copy.nbytes for copy in self.copies.values())

    @torch.no_grad()
    def restore(self) -> None:
        """Set all weights to the base's.

        Raises FedseedError if a file was overwritten or can't be read.
        """
        for file in dict.fromkeys(place.file for place in self.places.values()):
            file.check()
        for index, p in enumerate(self.vector.parameters):
            if index in self.copies:
                p.copy_(self.copies[index])
                continue
            place = self.places[index]
            if p.is_cpu and p.is_contiguous() and p.dtype == place.dtype:
                width = place.dtype.itemsize
                target = flat(p).view(torch.uint8).numpy().data
                place.file.read_into(target, place.offset + width * self._first(index))
                continue
            elements = flat(p)
            for lo, values in self._pieces(index, place):
                elements[lo : lo + len(values)].copy_(values)
            write_back(p, elements)

    def _first(self, index: int) -> int:
        """Return the index, in the whole tensor, of the first element in this process."""
        return self.vector.start_of(self.vector.parameters[index]) - self.vector.tensor_start(index)

    def _pieces(self, index: int, place: _Place) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (first element, values) for each piece of a tensor, in the file's dtype.

        The values are overwritten by the next piece.
        """
        width = place.dtype.itemsize
        count, begin = self.vector.parameters[index].numel(), self._first(index)
        step = PIECE_BYTES // width
        buffer = torch.empty(min(step, count), dtype=place.dtype, device="cpu")
        for lo in range(0, count, step):
            values = buffer[: min(step, count - lo)]
            target = values.view(torch.uint8).numpy().data
            place.file.read_into(target, place.offset + width * (begin + lo))
            yield lo, values

    def has(self, index: int, place: _Place) -> bool:
        """Return whether a tensor is equal to a file's tensor after a cast to its dtype, bit for
        bit.
        """
        p = self.vector.parameters[index]
        elements = flat(p)
        for lo, values in self._pieces(index, place):
            ours = elements[lo : lo + len(values)].cpu()
            theirs = values.to(p.dtype)
            if not torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8)):
                return False
        return True


def open_base(
    vector: Vector, layout: Layout, aliases: Mapping[str, Sequence[str]], files: Sequence[Path]
) -> StoredBase | None:
    """Return a base that is read from files, for the tensors that the files have bit for bit as
    they are now.

    Args:
        vector: the weights, which are the base.
        layout: their names and shapes.
        aliases: further names of tied tensors, by the first one.
        files: safetensors files, which together have the base or a part of it.

    Returns:
        None if no tensor is in the files: they belong to another model, or can't be read.
    """
    if sys.byteorder != "little":
        return None
    opened: list[_File] = []
    for path in files:
        try:
            opened.append(_File(path))
        except (OSError, ValueError):  # if a file can't be read, copies are kept
            continue
    by_name = _places_by_name(opened)
    places: dict[int, _Place] = {}
    base = StoredBase(vector, places, {})
    for index, entry in enumerate(layout.tensors):
        for place in _candidates(by_name, (entry.name, *aliases.get(entry.name, ()))):
            if place.shape == entry.shape and base.has(index, place):
                places[index] = place
                break
    if not places:
        return None
    base.copies = {
        index: p.detach().clone()
        for index, p in enumerate(vector.parameters)
        if index not in places
    }
    return base


def _places_by_name(files: Sequence[_File]) -> dict[str, _Place]:
    """Return the places of all tensors of files whose dtypes can be those of weights."""
    by_name: dict[str, _Place] = {}
    for file in files:
        for name, entry in file.entries.items():
            if name == "__metadata__" or entry["dtype"] not in DTYPES:
                continue
            dtype, shape = DTYPES[entry["dtype"]], tuple(map(int, entry["shape"]))
            begin, end = map(int, entry["data_offsets"])
            if end - begin == prod(shape) * dtype.itemsize:
                by_name[name] = _Place(file, dtype, shape, begin)
    return by_name


def _candidates(by_name: Mapping[str, _Place], names: Sequence[str]) -> Iterator[_Place]:
    """Yield the places of tensors that may be the one with these names, the likeliest first.

    A file of a model without its head lacks the first part of the names, such as "model.", or has
    one more. Layers repeat names, so the longest common ending counts.
    """
    for name in names:
        if name in by_name:
            yield by_name[name]
    for name in names:
        parts = name.split(".")
        for first in range(1, len(parts)):
            shorter = ".".join(parts[first:])
            if shorter in by_name:
                yield by_name[shorter]
                break
        for longer in by_name:
            if longer.endswith("." + name):
                yield by_name[longer]
