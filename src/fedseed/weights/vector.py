"""A model's tensors as one vector in blocks, as the kernels work on it.

The vector knows the position of each element, and its tensor and block.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from fedseed.randomness import kernels
from fedseed.randomness.kernels.reference import Part
from fedseed.weights.change import Coefficients, Entries, Floats, Patch, Term
from fedseed.weights.devices import devices_of, free_on
from fedseed.weights.layout import Layout

# (kernels, block, its length) -> a sum over directions, prepared by these kernels
Prepare = Callable[[kernels.Kernels, int, int], Any]


class Vector:
    """A model's trainable tensors in order, as one vector of length d in L blocks.

    Args:
        parameters: the tensors, each on any device.
        layout: their names, shapes and dtypes, and the blocks' boundaries.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], layout: Layout) -> None:
        self.parameters = parameters
        self.layout = layout
        ends = accumulate(e.size for e in layout.tensors)
        self._starts = {id(p): end - p.numel() for p, end in zip(parameters, ends, strict=True)}
        self._scratch = torch.empty(0, device="cpu")
        self._operands: dict[int, tuple[int, bool, Any]] = {}

    # number of processes that hold parts of the vector
    processes = 1

    def gather(self, value: Any) -> list[Any]:
        """Return one value from each process that holds a part of the vector, in their order.

        This vector has a single process.
        """
        return [value]

    def __contains__(self, value: object) -> bool:
        return id(value) in self._starts

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Return the devices of the tensors."""
        return devices_of(self.parameters) or (torch.device("cpu"),)

    def start_of(self, parameter: torch.Tensor) -> int:
        """Return the index of a tensor's first element in the vector."""
        return self._starts[id(parameter)]

    def tensor_start(self, index: int) -> int:
        """Return the index of the first element of a whole tensor in the vector.

        `start_of` has the index for the part that this process holds.
        """
        return self._tensor_starts[index]

    @cached_property
    def _tensor_starts(self) -> list[int]:
        return [0, *accumulate(entry.size for entry in self.layout.tensors)]

    @cached_property
    def layers(self) -> dict[int, list[torch.Tensor]]:
        """Return, by a tensor's id, the tensors of the same layer on the same device.

        Tensors belong to one layer if their names are equal up to the first number.
        """
        layers: dict[tuple[str, torch.device], list[torch.Tensor]] = {}
        layer_of = {}
        for p, entry in zip(self.parameters, self.layout.tensors, strict=True):
            numbered_prefix = re.match(r".*?\.\d+\.", entry.name)
            layer_name = numbered_prefix[0] if numbered_prefix else entry.name
            layer = layers.setdefault((layer_name, p.device), [])
            layer.append(p)
            layer_of[id(p)] = layer
        return layer_of

    @cached_property
    def has_room(self) -> bool:
        """Return whether the tensors' GPUs have twice the tensors' memory free.

        The answer is that of the first call.
        """
        return all(
            free_on(device) >= 2 * sum(p.nbytes for p in self.parameters if p.device == device)
            for device in self.devices
        )

    def only_block(self, parameter: torch.Tensor) -> int | None:
        """Return the block that a tensor lies in; None if it lies in several."""
        start = self.start_of(parameter)
        boundaries = self.layout.boundaries
        block = bisect_right(boundaries, start) - 1
        if start + parameter.numel() > boundaries[block + 1]:
            return None
        return block

    def overlaps(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield (block, lo, hi) for each block that `count` elements from `start` on overlap.

        `lo` and `hi` bound the block's elements, counted from `start`.
        """
        boundaries = self.layout.boundaries
        block = bisect_right(boundaries, start) - 1
        lo = 0
        while lo < count:
            hi = min(count, boundaries[block + 1] - start)
            yield block, lo, hi
            lo, block = hi, block + 1

    def pieces(self, prepare: Prepare) -> Iterator[tuple[int, int, int, int, kernels.Kernels, Any]]:
        """Yield the pieces of tensors that lie in one block each.

        Yields:
            (index of the tensor, lo, hi, index of element lo in the vector, kernels, what `prepare`
            returned), where the piece has the tensor's elements lo to hi.
        """
        # only the last block's, for each kind of device: blocks follow each other
        prepared_on: dict[str, tuple[int, kernels.Kernels, Any]] = {}
        for index, p in enumerate(self.parameters):
            start = self.start_of(p)
            device_kind = p.device.type
            for block, lo, hi in self.overlaps(start, p.numel()):
                if device_kind not in prepared_on or prepared_on[device_kind][0] != block:
                    kernel = kernels.current(device_kind)
                    prepared = prepare(kernel, block, self.layout.block_sizes[block])
                    prepared_on[device_kind] = (block, kernel, prepared)
                _, kernel, prepared = prepared_on[device_kind]
                yield index, lo, hi, start + lo, kernel, prepared

    def make_preparer(self, terms: Sequence[Term], scale: float) -> Prepare:
        """Return a function that prepares a sum of terms, for `pieces`.

        Raises ValueError if the scale or a coefficient is not finite, if there are not as many
        arrays as blocks, or if the terms have bases of different names.
        """
        parts = self.parts(terms, scale)
        return lambda kernel, block, length: kernel.prepare(parts(block), length)

    def parts(self, terms: Sequence[Term], scale: float) -> Callable[[int], list[Part]]:
        """Return a function from a block to the parts of a sum in that block.

        Raises ValueError as `make_preparer` does.
        """
        check_scale(scale)
        names = sorted({t.basis.name for t in terms})
        if len(names) > 1:
            raise ValueError(
                f"a sum has {' and '.join(names)} directions: make a change for each basis"
            )
        matrices = self.layout.matrices
        by_term = [
            (t.basis.spec_on(matrices), t.first, self.per_block(t.coefficients)) for t in terms
        ]

        def parts_in(block: int) -> list[Part]:
            return [Part(spec, first, arrays[block]) for spec, first, arrays in by_term]

        return parts_in

    def per_block(self, coefficients: Coefficients) -> list[Floats]:
        """Return the coefficients as one float32 array per block.

        Raises ValueError if there are not as many arrays as blocks, or a value is not finite.
        """
        blocks = len(self.layout.block_sizes)
        if len(coefficients) and np.ndim(coefficients[0]) == 1:
            arrays = [np.asarray(c, dtype=np.float32) for c in coefficients]
            if len(arrays) != blocks:
                raise ValueError(f"{len(arrays)} arrays of coefficients for {blocks} blocks")
        else:
            arrays = [np.asarray(coefficients, dtype=np.float32)] * blocks
        if any(a.ndim != 1 for a in arrays):
            raise ValueError("coefficients: 1-D, or one 1-D array per block")
        if not all(np.isfinite(a).all() for a in arrays):
            raise ValueError("coefficients: a value is NaN or infinite; the weights are unchanged")
        return arrays

    def operand(self, kernel: kernels.Kernels, parameter: torch.Tensor) -> Any:
        """Return all elements of a contiguous tensor of the vector as the kernels take them.

        The operand is cached: for a small tensor making it takes longer than the kernels do.
        """
        cached = self._operands.get(id(parameter))
        address = parameter.data_ptr()
        if cached is None or cached[0] != address or cached[1] != kernel.TENSORS:
            cached = (address, kernel.TENSORS, operand(kernel, flat(parameter)))
            self._operands[id(parameter)] = cached
        return cached[2]

    def scratch(self, count: int) -> torch.Tensor:
        """Return host memory for `count` float32 numbers; each call overwrites the last one's."""
        if len(self._scratch) < count:
            self._scratch = torch.empty(count, dtype=torch.float32, device="cpu")
        return self._scratch


def check_scale(scale: float) -> None:
    """Raise ValueError if a scale is not finite."""
    if not np.isfinite(scale):
        raise ValueError(f"scale = {scale}: a finite number is needed")


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in order: the tensor's own memory if it is contiguous, else a copy."""
    return tensor.detach().reshape(-1)


def write_back(parameter: torch.Tensor, elements: torch.Tensor) -> None:
    """Copy elements back to a parameter that `flat` had to copy."""
    if not parameter.is_contiguous():
        parameter.detach().copy_(elements.view(parameter.shape))


def operand(kernel: kernels.Kernels, elements: torch.Tensor) -> Any:
    """Return a tensor as the kernels take it.

    Kernels on a GPU take the tensor itself, others an array on the same memory.
    """
    if kernel.TENSORS:
        return elements
    if elements.dtype in (torch.bfloat16, torch.float16):
        return elements.view(torch.int16).numpy().view(np.uint16)
    return elements.numpy()


def move_entries(vector: Vector, change: Entries) -> None:
    """Set w[i] = round(w[i] + scale * v[i]) for the entries of the patches.

    Raises ValueError if the scale or a value is not finite, an entry is not in the vector, or
    entries do not ascend; the weights are unchanged then.
    """
    check_scale(change.scale)
    ends: list[int] = []
    for patch in change.patches:
        least = ends[-1] if ends else 0
        ends.append(_check_patch(patch, least, vector.layout.size))
    for parameter in vector.parameters:
        elements, begin = flat(parameter), vector.start_of(parameter)
        end = begin + parameter.numel()
        for patch in change.patches[bisect_right(ends, begin) : bisect_left(ends, end) + 1]:
            positions, values = patch.within(begin, end)
            if not len(values):
                continue
            indices = positions
            if not isinstance(positions, slice):
                indices = torch.from_numpy(positions).to(parameter.device)
            addends = torch.from_numpy(values * np.float32(change.scale)).to(parameter.device)
            elements[indices] = (elements[indices].float() + addends).to(elements.dtype)
        write_back(parameter, elements)


def _check_patch(patch: Patch, least: int, size: int) -> int:
    """Return the first entry that may come after a patch.

    Args:
        patch: the values to add.
        least: the first entry that the patch may have.
        size: number of entries in the vector.

    Raises:
        ValueError: a value is not finite, or an entry is out of range or out of order.
    """
    if not np.isfinite(patch.values).all():
        raise ValueError("entries: a value is NaN or infinite; the weights are unchanged")
    if not len(patch.values):
        return least
    first, last = patch.start, patch.start + len(patch.values) - 1
    if patch.offsets is not None:
        ascends = (np.diff(patch.offsets.astype(np.int64)) > 0).all()
        if len(patch.offsets) != len(patch.values) or not ascends:
            raise ValueError(
                "entries: one ascending offset for each value is needed; the weights are unchanged"
            )
        first, last = patch.start + int(patch.offsets[0]), patch.start + int(patch.offsets[-1])
    if first < least or last >= size:
        raise ValueError(
            f"entries {first} to {last}: from {least} to {size - 1} is possible; the weights are "
            "unchanged"
        )
    return last + 1
