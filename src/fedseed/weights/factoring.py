"""Add changes in random subspaces to a vector of weights (`fedseed.weights.change.AddFactors`).

Several steps share one pass: all are applied to a matrix, one after the other and each rounded,
before the next matrix is read.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from fedseed.randomness import kernels
from fedseed.randomness.kernels.factors_reference import FactorJob
from fedseed.weights.change import AddFactors, Floats
from fedseed.weights.digest import dtype_name
from fedseed.weights.moving import write
from fedseed.weights.subspace import MatrixView, RandomSubspace, matrices_of
from fedseed.weights.vector import Vector, check_scale, flat, operand, write_back

# elements of a matrix to which all steps are applied at a time, so that they stay in a CPU's cache
PIECE = 1 << 17


def add_factors(vector: Vector, changes: Sequence[AddFactors]) -> None:
    """Add changes in random subspaces to the weights, one after the other.

    Args:
        vector: the weights.
        changes: the steps, the oldest first.

    Raises:
        ValueError: a factor or a scale is not finite, or a factor has another shape than the
            tensor asks for; the weights are unchanged then.
    """
    for change in changes:
        _check(vector, change)
    on_gpus = [kernels.current(p.device.type).TENSORS for p in vector.parameters]
    for change in changes:
        _add_in_one_launch(vector, change, on_gpus)
    for index, weights in enumerate(vector.parameters):
        if weights.numel() and not on_gpus[index]:
            elements = flat(weights)
            _add_to_tensor(vector, index, elements, changes)
            write_back(weights, elements)


def _check(vector: Vector, change: AddFactors) -> None:
    check_scale(change.scale)
    entries = vector.layout.tensors
    if len(change.factors) != len(entries):
        raise ValueError(f"{len(change.factors)} factors for {len(entries)} tensors")
    for entry, factor in zip(entries, change.factors, strict=True):
        expected = change.subspace.factor_shape(entry.shape)
        if factor.shape != expected:
            raise ValueError(
                f"the factor of {entry.name} has shape {factor.shape}, {expected} is needed"
            )
        if not np.isfinite(factor).all():
            raise ValueError(
                f"the factor of {entry.name} has a value that is NaN or infinite; "
                "the weights are unchanged"
            )


def _add_in_one_launch(vector: Vector, change: AddFactors, on_gpus: Sequence[bool]) -> None:
    """Add one change to the tensors whose kernels work on tensors, in few launches."""
    jobs: dict[kernels.Kernels, list[FactorJob]] = {}
    copies: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
    for index, parameter in enumerate(vector.parameters):
        if not on_gpus[index] or not parameter.numel():
            continue
        elements, begin = flat(parameter), vector.start_of(parameter)
        copies.append((parameter, elements))
        for product in _products(vector, index, change, len(elements)):
            lo, rows = product.first, len(product.left)
            run = elements[lo : lo + rows * product.right.shape[1]]
            job = FactorJob(
                run, run, dtype_name(parameter), product.left, product.right, begin + lo
            )
            jobs.setdefault(kernels.current(parameter.device.type), []).append(job)
    for kernel, launched in jobs.items():
        kernel.add_factors(launched, change.scale, change.rounding)
    for parameter, elements in copies:
        write_back(parameter, elements)


def _add_to_tensor(
    vector: Vector, index: int, elements: torch.Tensor, changes: Sequence[AddFactors]
) -> None:
    """Add all changes to one tensor, in pieces that stay in the cache."""
    begin = vector.start_of(vector.parameters[index])
    by_change = [_products(vector, index, change, len(elements)) for change in changes]
    for products in zip(*by_change, strict=True):
        rows, columns = len(products[0].left), products[0].right.shape[1]
        rows_at_once = max(1, PIECE // columns)
        for row in range(0, rows, rows_at_once):
            lo = products[0].first + row * columns
            piece = elements[lo : lo + min(rows_at_once, rows - row) * columns]
            for change, product in zip(changes, products, strict=True):
                left = product.left[row : row + rows_at_once]
                _add_product(piece, left, product.right, change, begin + lo)


def _add_product(
    piece: torch.Tensor, left: Floats, right: Floats, change: AddFactors, start: int
) -> None:
    """Set piece = round(piece + scale * left @ right), for whole rows from element `start` on."""
    kernel = kernels.current(piece.device.type)
    if change.rounding is None or piece.dtype == torch.float32:
        weights = operand(kernel, piece)
        job = FactorJob(weights, weights, dtype_name(piece), left, right, start)
        kernel.add_factors([job], change.scale)
        return
    sums = np.zeros(piece.numel(), dtype=np.float32)
    kernel.add_factors([FactorJob(sums, sums, "float32", left, right, start)], change.scale)
    write(piece, piece.float() + torch.from_numpy(sums), change.rounding, start)


class Product(NamedTuple):
    """left @ right for whole rows of a matrix, from element `first` of a tensor's part on."""

    first: int
    left: Floats  # shape (rows, width)
    right: Floats  # shape (width, columns)


def _products(vector: Vector, index: int, change: AddFactors, count: int) -> list[Product]:
    """Return the change of the elements of a tensor that this process has: whole rows.

    Args:
        vector: the weights.
        index: the tensor's number.
        change: the step.
        count: number of elements in this process: the whole tensor, or a run of its rows.

    Returns:
        A product for each matrix with these elements.
    """
    entry = vector.layout.tensors[index]
    tensor_start = vector.tensor_start(index)
    first = vector.start_of(vector.parameters[index]) - tensor_start
    factor = np.asarray(change.factors[index], dtype=np.float32)
    if change.subspace.is_whole(entry.shape):
        part = factor.reshape(1, -1)[:, first : first + count]
        return [Product(0, np.ones((1, 1), dtype=np.float32), part)]
    matrices = matrices_of(entry.shape)
    size = matrices.rows * matrices.columns
    products = []
    for number in range(first // size, -(-(first + count) // size)):
        lo, hi = max(first, number * size), min(first + count, (number + 1) * size)
        rows = slice(
            (lo - number * size) // matrices.columns, (hi - number * size) // matrices.columns
        )
        start = tensor_start + number * size
        left, right = _factors_of(change.subspace, matrices, factor[number], start, rows)
        products.append(Product(lo - first, left, right))
    return products


def _factors_of(
    subspace: RandomSubspace, matrices: MatrixView, factor: Floats, start: int, rows: slice
) -> tuple[Floats, Floats]:
    """Return (left, right) of some rows of one matrix: one is B / sqrt(r), the other signs."""
    scaled = factor * subspace.sign_scale
    signs = subspace.signs(start, matrices.longer)
    if matrices.rows_are_longer:
        return np.ascontiguousarray(signs[:, rows].T), np.ascontiguousarray(scaled.T)
    return np.ascontiguousarray(scaled[rows]), signs
