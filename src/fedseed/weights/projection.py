"""Inner products with directions, for vectors given in parts, and for changes since a snapshot."""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedseed.randomness import Basis, kernels
from fedseed.randomness.kernels.reference import SQUARES, Operand, Spec
from fedseed.weights.change import Floats
from fedseed.weights.devices import devices_of
from fedseed.weights.moving import PIECE
from fedseed.weights.vector import Vector, flat, operand

# how many numbers are squared at a time on a CPU, so that their doubles stay in its cache
IN_CACHE = 1 << 16


class Projection:
    """V^T x for a vector that is given in scaled parts. Only the sums are kept, not the vector.

    Args:
        vector: the tensors.
        basis: where the directions come from.
        counts: K_l for each block.
    """

    def __init__(self, vector: Vector, basis: Basis, counts: Sequence[int]) -> None:
        if len(counts) != len(vector.layout.block_sizes):
            raise ValueError(f"{len(counts)} counts for {len(vector.layout.block_sizes)} blocks")
        self._vector = vector
        self._spec = basis.spec_on(vector.layout.matrices)
        self._counts = [int(c) for c in counts]
        self._finish = kernels.current(vector.parameters[0].device.type).project_finish
        self._sums: list[Any] = [0.0] * len(counts)

    def add(self, index: int, values: torch.Tensor, lo: int, scale: float = 1.0) -> None:
        """Add scale * values: float32, the elements lo, lo + 1, ... of tensor `index`, in order."""
        vector = self._vector
        start = vector.start_of(vector.parameters[index]) + lo
        flat = values.detach().reshape(-1)
        kernel = kernels.current(flat.device.type)
        for block, a, b in vector.overlaps(start, len(flat)):
            sums = kernel.project_sums(
                self._spec,
                0,
                self._counts[block],
                operand(kernel, flat[a:b]),
                start + a,
                vector.layout.block_sizes[block],
            )
            # on the weights' device, to avoid waiting for a copy
            scaled = sums if scale == 1.0 else scale * sums
            if isinstance(self._sums[block], float):
                self._sums[block] = self._sums[block] + scaled
            else:  # in its own memory: with many directions a sum is megabytes
                self._sums[block] += scaled

    def finish(self, sums: Mapping[int, NDArray[np.float64]] | None = None) -> list[Floats]:
        """Return the products as one float32 array per block.

        Args:
            sums: sums for some blocks, which replace those of the added parts.
        """
        for block, replacement in (sums or {}).items():
            self._sums[block] = replacement
        on_gpus = [sums for sums in self._sums if isinstance(sums, torch.Tensor)]
        # one copy for all, so that the host waits for the GPU only once
        if on_gpus:
            parts = iter(
                np.split(
                    torch.cat(on_gpus).cpu().numpy(), np.cumsum([len(sums) for sums in on_gpus])
                )
            )
            self._sums = [
                next(parts) if isinstance(sums, torch.Tensor) else sums for sums in self._sums
            ]
        by_process = self._vector.gather(self._sums)
        products = []
        for count, block_sums in zip(self._counts, zip(*by_process, strict=True), strict=True):
            total = reduce(add, block_sums)
            # a plain float: nothing was added to the block
            if isinstance(total, float):
                products.append(np.zeros(count, dtype=np.float32))
            else:
                products.append(self._finish(self._spec, 0, count, total))
        return products


def _project_at_once(
    vector: Vector,
    saved: Sequence[torch.Tensor],
    current: Sequence[torch.Tensor],
    spec: Spec,
    counts: Sequence[int],
) -> dict[int, NDArray[np.float64]] | None:
    """Return the sums of `spec` over saved - current, by block, in a few launches for all.

    None: the kernels can't.
    """
    places = devices_of([*saved, *current])
    kernel = kernels.current(places[0].type)
    if len(places) > 1 or not kernel.TENSORS or spec.name == "lowrank":
        return None
    runs = []
    for p, s, w in zip(vector.parameters, map(flat, saved), map(flat, current), strict=True):
        for lo in range(0, len(s), PIECE):
            first = vector.start_of(p) + lo
            for block, a, b in vector.overlaps(first, min(PIECE, len(s) - lo)):
                part, length = slice(lo + a, lo + b), vector.layout.block_sizes[block]
                runs.append(Operand(s[part], w[part], first + a, block, counts[block], length))
    sums_by_block: dict[int, NDArray[np.float64]] = (
        kernel.project_all(spec, 0, runs) if runs else {}
    )
    return sums_by_block


def project_change(
    vector: Vector,
    saved: Sequence[torch.Tensor],
    basis: Basis,
    counts: Sequence[int],
    current: Sequence[torch.Tensor] | None = None,
) -> list[Floats]:
    """Return V^T (saved - w), one float32 array per block, without a vector of length d.

    Args:
        vector: a space's tensors.
        saved: what `ParameterSpace.snapshot` returned.
        basis: where the directions come from.
        counts: K_l for each block.
        current: float32 copies to use in place of the weights, where these are rounded copies.
    """
    products, weights = Projection(vector, basis, counts), current or vector.parameters
    spec = basis.spec_on(vector.layout.matrices)
    sums = _project_at_once(vector, saved, weights, spec, counts)
    if sums is not None:
        return products.finish(sums)
    for index, (w, s) in enumerate(zip(weights, saved, strict=True)):
        for lo, _, part in differences(s, w):
            products.add(index, part, lo)
    return products.finish()


def change_norms(
    vector: Vector, saved: Sequence[torch.Tensor], current: Sequence[torch.Tensor] | None = None
) -> NDArray[np.float64]:
    """Return |saved - w| for each block; `current`: as in `project_change`."""
    blocks, weights = len(vector.layout.block_sizes), current or vector.parameters
    sums_by_block = _project_at_once(vector, saved, weights, SQUARES, [1] * blocks)
    if sums_by_block is not None:
        squares_by_block = np.array(
            [
                float(sums_by_block[block][0]) if block in sums_by_block else 0.0
                for block in range(blocks)
            ]
        )
        return np.sqrt(sum(vector.gather(squares_by_block)))
    squares, sum_squares = np.zeros(blocks), SumOfSquares()
    for p, w, s in zip(vector.parameters, weights, saved, strict=True):
        for lo, hi, part in differences(s, w):
            for block, a, b in vector.overlaps(vector.start_of(p) + lo, hi - lo):
                squares[block] += sum_squares(part[a:b])
    return np.sqrt(sum(vector.gather(squares)))


class SumOfSquares:
    """Sums squares in double precision, in memory that is reused for each part.

    Allocating memory for the doubles of each part would take longer than the arithmetic. On a CPU
    the parts are so short that their doubles stay in its cache.
    """

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.float64)

    def __call__(self, values: torch.Tensor) -> float:
        """Return the sum of a vector's squares."""
        longest = min(len(values), IN_CACHE if values.is_cpu else PIECE)
        if len(self._room) < longest or self._room.device != values.device:
            self._room = torch.empty(longest, dtype=torch.float64, device=values.device)
        total = 0.0
        for start in range(0, len(values), max(1, longest)):
            part = values[start : start + longest]
            doubles = self._room[: len(part)].copy_(part)
            total += float(torch.mul(doubles, doubles, out=doubles).sum())
        return total


def differences(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yield (lo, hi, a - b in float32) for pieces of two tensors."""
    a, b = flat(a).to(b.device), flat(b)
    room = torch.empty(min(len(a), PIECE), dtype=torch.float32, device=b.device)
    for lo in range(0, len(a), PIECE):
        hi = min(lo + PIECE, len(a))
        part = room[: hi - lo]
        if b.dtype == torch.float32:
            torch.sub(a[lo:hi], b[lo:hi], out=part)
        else:
            part.copy_(a[lo:hi].float() - b[lo:hi].float())
        yield lo, hi, part


def count_changed(
    parameters: Sequence[torch.Tensor], saved: Sequence[torch.Tensor]
) -> tuple[int, int]:
    """Return the number of 16-bit weights that differ from saved ones, and of all 16-bit ones."""
    changed = count = 0
    for p, s in zip(parameters, saved, strict=True):
        if p.dtype == torch.float32:
            continue
        current, previous = flat(p), flat(s).to(p.device)
        count += len(current)
        for lo in range(0, len(current), PIECE):
            changed += int((current[lo : lo + PIECE] != previous[lo : lo + PIECE]).sum())
    return changed, count
