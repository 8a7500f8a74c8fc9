"""Products of two factors as a Triton kernel: the reference's bits, on tensors where they are.

A program holds a tile of a matrix in registers, adds up the products term by term, and moves the
weights by the sum: the weights are read and written once, and no product is ever in memory.
"""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from fedseed.randomness.kernels.factors_reference import FactorJob
from fedseed.randomness.kernels.triton import (
    DTYPES,
    TOTAL,
    int_bits,
    is_aligned,
    job_of,
    join_arrays,
    launch,
    move_flags,
    move_value,
    pointer,
    read_weights,
    rounding_words,
    table_of,
    to_device,
    write_weights,
)

# the tile of a matrix that a program adds up
_ROWS, _COLUMNS = tl.constexpr(32), tl.constexpr(64)
# numbers in a row of a table of jobs: first program, destination, source, start, rows, columns,
# width, where the left and the right factor begin, three words of rounding
_JOB = tl.constexpr(12)


@triton.jit(do_not_specialize=["jobs", "scale_bits"])
def _add_factors(table, factors, jobs, scale_bits, HOW: tl.constexpr):
    """Move a tile of a matrix by left @ right, for each job of a table.

    `HOW` is that of `fedseed.randomness.kernels.triton._add_up`, without a kind.
    """
    dtype: tl.constexpr = HOW // 4 % 8
    draws: tl.constexpr = HOW // 32 % 2
    aligned: tl.constexpr = HOW // 64
    row, tile = job_of(table, jobs, _JOB)
    destination = pointer(row + 1, dtype, aligned)
    source = pointer(row + 2, dtype, aligned)
    rows = tl.load(row + 4)
    columns = tl.load(row + 5)
    width = tl.load(row + 6)
    left_factor = factors + tl.load(row + 7)
    right_factor = factors + tl.load(row + 8)
    across = (columns + _COLUMNS - 1) // _COLUMNS
    a = (tile // across) * _ROWS + tl.arange(0, _ROWS)
    c = (tile % across) * _COLUMNS + tl.arange(0, _COLUMNS)
    total = tl.full((_ROWS, _COLUMNS), 0.0, tl.float32)
    for j in range(width):
        left_values = tl.load(left_factor + a * width + j, mask=a < rows, other=0.0)
        right_values = tl.load(right_factor + j * columns + c, mask=c < columns, other=0.0)
        total += left_values[:, None] * right_values[None, :]
    p = a[:, None] * columns + c[None, :]
    inside = (a < rows)[:, None] & (c < columns)[None, :]
    old = total
    if dtype != TOTAL:
        old = read_weights(source, p, inside, dtype)
    scale = scale_bits.to(tl.float32, bitcast=True)
    value = move_value(old, total, scale, tl.load(row + 3) + p, row + 9, dtype, draws)
    write_weights(destination, p, inside, value, dtype)


def add_factors(
    jobs: Sequence[FactorJob], scale: float, rounding: tuple[int, int] | None = None
) -> None:
    """`structured.Kernels.add_factors`: one launch for all of a device and dtype."""
    groups: dict[tuple[torch.device, str], list[FactorJob]] = {}
    for job in jobs:
        if len(job.destination):
            groups.setdefault((job.destination.device, job.dtype), []).append(job)
    for (device, dtype), group in groups.items():
        arrays: list[NDArray[np.float32]] = []
        for job in group:
            arrays += [_flat(job.left_factor), _flat(job.right_factor)]
        factors, begins = join_arrays(arrays)
        rows, programs = [], []
        for job, left_factor, right_factor in zip(group, arrays[::2], arrays[1::2], strict=True):
            height, columns = len(job.left_factor), job.right_factor.shape[1]
            rows.append(
                (
                    job.destination.data_ptr(),
                    job.source.data_ptr(),
                    job.start,
                    height,
                    columns,
                    len(job.right_factor),
                    begins[id(left_factor)],
                    begins[id(right_factor)],
                    *rounding_words(rounding),
                )
            )
            programs.append(-(-height // _ROWS.value) * -(-columns // _COLUMNS.value))
        table, grid = table_of(rows, programs, device)
        aligned = is_aligned(row[:2] for row in rows)
        launch(
            _add_factors,
            (grid,),
            table,
            to_device(factors, device),
            len(group),
            int_bits(scale),
            HOW=4 * DTYPES[dtype] + move_flags(rounding, aligned),
        )


def _flat(factor: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(factor, dtype=np.float32).reshape(-1)
