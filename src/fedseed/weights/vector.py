"""Tensors seen as one vector in blocks, as the kernels work on it: where each element lies, and
what it belongs to.
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

    processes = 1  # that hold a part of it each

    def each(self, own: Any) -> list[Any]:
        """Returns what each process that holds a part of the vector has found, in order: here there
        is one.
        """
        return [own]

    def __contains__(self, value: object) -> bool:
        return id(value) in self._starts

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Returns where the tensors are."""
        return devices_of(self.parameters) or (torch.device("cpu"),)

    def start_of(self, parameter: torch.Tensor) -> int:
        """Index of a tensor's first element in the vector."""
        return self._starts[id(parameter)]

    def tensor_start(self, index: int) -> int:
        """Return the index of the first element of a whole tensor in the vector.

        `start_of` has that of the part of it that is here.
        """
        return self._tensor_starts[index]

    @cached_property
    def _tensor_starts(self) -> list[int]:
        return [0, *accumulate(entry.size for entry in self.layout.tensors)]

    @cached_property
    def layers(self) -> dict[int, list[torch.Tensor]]:
        """By tensors' ids, the tensors of the same layer on the same device: whose names begin
        alike up to a number.
        """
        layers: dict[tuple[str, torch.device], list[torch.Tensor]] = {}
        own = {}
        for p, entry in zip(self.parameters, self.layout.tensors, strict=True):
            numbered = re.match(r".*?\.\d+\.", entry.name)
            own[id(p)] = layers.setdefault((numbered[0] if numbered else entry.name, p.device), [])
            own[id(p)].append(p)
        return own

    @cached_property
    def has_room(self) -> bool:
        """Whether, when this is first asked, twice the memory of the tensors is free on the GPUs
        that they lie on.
        """
        return all(
            free_on(device) >= 2 * sum(p.nbytes for p in self.parameters if p.device == device)
            for device in self.devices
        )

    def only_block(self, parameter: torch.Tensor) -> int | None:
        """Returns the block that a tensor lies in; None if it lies in several."""
        start, boundaries = self.start_of(parameter), self.layout.boundaries
        block = bisect_right(boundaries, start) - 1
        return block if start + parameter.numel() <= boundaries[block + 1] else None

    def overlaps(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(block, lo, hi): which of the elements start, start + 1, ... lie in which block, counted
        from `start`.
        """
        boundaries = self.layout.boundaries
        block = bisect_right(boundaries, start) - 1
        lo = 0
        while lo < count:
            hi = min(count, boundaries[block + 1] - start)
            yield block, lo, hi
            lo, block = hi, block + 1

    def pieces(self, prepare: Prepare) -> Iterator[tuple[int, int, int, int, kernels.Kernels, Any]]:
        """(tensor, its elements lo, hi, index of the first in the vector, kernels, prepared), by
        tensor and block.
        """
        # by kind of device: the last block's
        made: dict[str, tuple[int, kernels.Kernels, Any]] = {}
        for index, p in enumerate(self.parameters):
            start, kind = self.start_of(p), p.device.type
            for block, lo, hi in self.overlaps(start, p.numel()):
                if kind not in made or made[kind][0] != block:
                    kernel = kernels.current(kind)
                    made[kind] = (
                        block,
                        kernel,
                        prepare(kernel, block, self.layout.block_sizes[block]),
                    )
                yield index, lo, hi, start + lo, *made[kind][1:]

    def preparing(self, terms: Sequence[Term], scale: float) -> Prepare:
        """Returns a function that prepares a sum of terms, for `pieces`.

        Raises ValueError if the scale or a coefficient is not finite, the number of arrays is not
        that of the blocks, or the terms have bases of different names.
        """
        parts = self.parts(terms, scale)
        return lambda kernel, block, length: kernel.prepare(parts(block), length)

    def parts(self, terms: Sequence[Term], scale: float) -> Callable[[int], list[Part]]:
        """Returns a function from a block to a sum's parts there.

        Raises ValueError as `preparing` does.
        """
        check_scale(scale)
        names = sorted({t.basis.name for t in terms})
        if len(names) > 1:
            raise ValueError(f"a sum of {' and '.join(names)} directions: make a change of each")
        matrices = self.layout.matrices
        each = [(t.basis.spec_on(matrices), t.first, self.per_block(t.coefficients)) for t in terms]
        return lambda block: [Part(spec, first, own[block]) for spec, first, own in each]

    def per_block(self, coefficients: Coefficients) -> list[Floats]:
        """Returns one float32 array per block."""
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
        """Returns all elements of a contiguous tensor of the vector as the kernels take them.

        Made once: for a small tensor that takes longer than the kernels do.
        """
        known = self._operands.get(id(parameter))
        place = parameter.data_ptr()
        if known is None or known[0] != place or known[1] != kernel.TENSORS:
            known = self._operands[id(parameter)] = (
                place,
                kernel.TENSORS,
                operand(kernel, flat(parameter)),
            )
        return known[2]

    def scratch(self, count: int) -> torch.Tensor:
        """Returns the CPU's memory for `count` float32 numbers, used again and again: what it held
        before is lost.
        """
        if len(self._scratch) < count:
            self._scratch = torch.empty(count, dtype=torch.float32, device="cpu")
        return self._scratch


def check_scale(scale: float) -> None:
    """Raises ValueError if it is not finite."""
    if not np.isfinite(scale):
        raise ValueError(f"scale = {scale}: a finite number is needed")


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements in order: the tensor's own memory if it is contiguous, else a copy."""
    return tensor.detach().reshape(-1)


def write_back(parameter: torch.Tensor, elements: torch.Tensor) -> None:
    """Put back what `flat` had to copy."""
    if not parameter.is_contiguous():
        parameter.detach().copy_(elements.view(parameter.shape))


def operand(kernel: kernels.Kernels, elements: torch.Tensor) -> Any:
    """Returns a tensor as the kernels take it: itself on a GPU, otherwise an array on the same
    memory.
    """
    if kernel.TENSORS:
        return elements
    if elements.dtype in (torch.bfloat16, torch.float16):
        return elements.view(torch.int16).numpy().view(np.uint16)
    return elements.numpy()


def move_entries(vector: Vector, change: Entries) -> None:
    """w[i] = round(w[i] + scale * v[i]).

    Raises ValueError if the scale or a value is not finite, an entry is not in the vector, or
    entries do not ascend; the weights are unchanged then.
    """
    check_scale(change.scale)
    at = 0
    ends = [at := _check(patch, at, vector.layout.size) for patch in change.patches]
    for parameter in vector.parameters:
        elements, begin = flat(parameter), vector.start_of(parameter)
        end = begin + parameter.numel()
        for patch in change.patches[bisect_right(ends, begin) : bisect_left(ends, end) + 1]:
            where, values = patch.within(begin, end)
            if len(values):
                which = (
                    where
                    if isinstance(where, slice)
                    else torch.from_numpy(where).to(parameter.device)
                )
                added = torch.from_numpy(values * np.float32(change.scale)).to(parameter.device)
                elements[which] = (elements[which].float() + added).to(elements.dtype)
        write_back(parameter, elements)


def _check(patch: Patch, least: int, size: int) -> int:
    """Returns the first entry that may come after a patch. Raises ValueError."""
    if not np.isfinite(patch.values).all():
        raise ValueError("entries: a value is NaN or infinite; the weights are unchanged")
    if not len(patch.values):
        return least
    first, last = patch.start, patch.start + len(patch.values) - 1
    if patch.offsets is not None:
        if (
            len(patch.offsets) != len(patch.values)
            or (np.diff(patch.offsets.astype(np.int64)) <= 0).any()
        ):
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
