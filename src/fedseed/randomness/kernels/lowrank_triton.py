"""Sums of low-rank directions as Triton kernels: the reference's bits, on tensors where they are.

The signs of eight pairs go into a byte for each row and each column. A program has a tile of a
matrix in registers and adds up eight signed coefficients, then these to its total, as the reference
does; there are as many additions as in a matrix product, and nothing is read but bytes. Projections
keep the products along rows, which a second kernel adds up.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from fedseed.randomness.kernels.lowrank_reference import GROUP, PLACE, TILE, Pairs, pairs_of
from fedseed.randomness.kernels.reference import Job, Spec
from fedseed.randomness.kernels.triton import (
    DTYPES,
    SCRATCH,
    TOTAL,
    default_device,
    int_bits,
    is_aligned,
    job_of,
    join_arrays,
    launch,
    move_flags,
    move_value,
    philox_words,
    pointer,
    read_weights,
    rounding_words,
    signed,
    table_of,
    to_device,
    write_weights,
)
from fedseed.randomness.matrices import Matrix
from fedseed.randomness.stream import Domain

_COUNT, _LANES = tl.constexpr(GROUP), tl.constexpr(TILE)
_ELEMENTS = 256  # elements whose signs a program of `_fill` makes
# the tile of a matrix that a program of `_sum` adds up
_ROWS, _COLUMNS = tl.constexpr(32), tl.constexpr(64)
_PAIRS = 64  # pairs that a program of `_along` works on
# numbers in a row of a table of jobs, with the first program's
_FILL = tl.constexpr(7)  # first pair's numbers, pairs, elements, start, domain, where they go
# destination, source, size, start, elements before it in its row, rows, columns, coefficients,
# groups, signs of both, words
_SUM = tl.constexpr(15)


@triton.jit(do_not_specialize=["jobs"])
def _fill(table, pairs, destination, jobs, ELEMENTS: tl.constexpr):
    """destination[g, i]: bit t is the sign bit of element start + i of pair 8 g + t.

    For each job of a table.
    """
    row, mine = job_of(table, jobs, _FILL)
    count = tl.load(row + 2)
    size = tl.load(row + 3)
    start = tl.load(row + 4)
    domain = tl.load(row + 5).to(tl.uint32)
    tiles = (size + ELEMENTS - 1) // ELEMENTS
    g = mine // tiles
    i = (mine % tiles) * ELEMENTS + tl.arange(0, ELEMENTS)
    pattern = tl.full((ELEMENTS,), 0, tl.uint32)
    for t in tl.static_range(_COUNT):
        pair = pairs + tl.load(row + 1) + 4 * tl.minimum(_COUNT * g + t, count - 1)
        key0 = tl.load(pair).to(tl.uint32)
        key1 = tl.load(pair + 1).to(tl.uint32)
        k = tl.load(pair + 2).to(tl.uint32)
        e = tl.load(pair + 3) + start + i
        w0, w1, w2, w3 = philox_words(e >> 7, k, domain, key0, key1)
        word = (e >> 5) & 3
        bits = tl.where(word == 0, w0, tl.where(word == 1, w1, tl.where(word == 2, w2, w3)))
        pattern |= ((bits >> (e & 31).to(tl.uint32)) & 1) << t
    tl.store(destination + tl.load(row + 6) + g * size + i, pattern.to(tl.uint8), mask=i < size)


@triton.jit(do_not_specialize=["jobs", "scale_bits"])
def _sum(table, signs, factors, jobs, scale_bits, HOW: tl.constexpr):
    """Move a tile of a matrix by the sum over all pairs, eight at a time, for each job of a table.

    `factors` are the coefficients; `HOW` is that of `fedseed.randomness.kernels.triton._add_up`,
    without a kind.
    """
    dtype: tl.constexpr = HOW // 4 % 8
    draws: tl.constexpr = HOW // 32 % 2
    aligned: tl.constexpr = HOW // 64
    row, tile = job_of(table, jobs, _SUM)
    destination = pointer(row + 1, dtype, aligned)
    source = pointer(row + 2, dtype, aligned)
    size = tl.load(row + 3)
    elements_before = tl.load(row + 5)  # elements of the first row that are not in the run
    rows = tl.load(row + 6)
    columns = tl.load(row + 7)
    if aligned:
        columns = tl.multiple_of(columns, 16)
    coefficient = factors + tl.load(row + 8)
    lefts = signs + tl.load(row + 10)
    rights = signs + tl.load(row + 11)
    across = (columns + _COLUMNS - 1) // _COLUMNS
    a = (tile // across) * _ROWS + tl.arange(0, _ROWS)
    b = (tile % across) * _COLUMNS + tl.arange(0, _COLUMNS)
    total = tl.full((_ROWS, _COLUMNS), 0.0, tl.float32)
    for g in range(tl.load(row + 9)):
        left_bits = tl.load(lefts + g * rows + a, mask=a < rows, other=0).to(tl.uint32)
        right = tl.load(rights + g * columns + b, mask=b < columns, other=0).to(tl.uint32)
        bits_differ = left_bits[:, None] ^ right[None, :]
        group = tl.full((_ROWS, _COLUMNS), 0.0, tl.float32)
        for t in tl.static_range(_COUNT):
            group += signed(tl.load(coefficient + _COUNT * g + t), bits_differ, t)
        total += group
    p = a[:, None] * columns + b[None, :] - elements_before
    inside = (p >= 0) & (p < size) & (b < columns)[None, :]
    old = total
    if dtype != TOTAL:
        old = read_weights(source, p, inside, dtype)
    scale = scale_bits.to(tl.float32, bitcast=True)
    value = move_value(old, total, scale, tl.load(row + 4) + p, row + 12, dtype, draws)
    write_weights(destination, p, inside, value, dtype)


@triton.jit(do_not_specialize=["groups", "count"])
def _along(destination, x, rights, groups, rows, columns, count, PAIRS: tl.constexpr):
    """destination[a, f] = <w[f], x[a]>: eight columns at a time. rights[g, f]: bit t is the sign
    bit of column 8 g + t.
    """
    f = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    a = tl.program_id(1) * _LANES + tl.arange(0, _LANES)
    total = tl.full((_LANES, PAIRS), 0.0, tl.float32)
    for g in range(groups):
        pattern = tl.load(rights + g * count.to(tl.int64) + f, mask=f < count, other=0).to(
            tl.uint32
        )
        group = tl.full((_LANES, PAIRS), 0.0, tl.float32)
        for t in tl.static_range(_COUNT):
            b = _COUNT * g + t
            value = tl.load(
                x + a.to(tl.int64) * columns + b, mask=(a < rows) & (a * 0 + b < columns), other=0.0
            )
            group += signed(value[:, None], pattern[None, :], t)
        total += group
    place = a[:, None].to(tl.int64) * count + f[None, :]
    tl.store(destination + place, total, mask=(a < rows)[:, None] & (f < count)[None, :])


@triton.jit(do_not_specialize=["row", "rows", "count"])
def _down_columns(destination, y, lefts, row, rows, count, PAIRS: tl.constexpr):
    """destination[f] += the sum over rows of u[f, a] y[a, f]: tile by tile of the matrix, which
    begins `row` rows before y.
    """
    f = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    inside = f < count
    total = tl.load(destination + f, mask=inside, other=0.0)
    tile = tl.full((PAIRS,), 0.0, tl.float64)
    for a in range(rows):
        pattern = tl.load(lefts + (f // _COUNT).to(tl.int64) * rows + a, mask=inside, other=0).to(
            tl.uint32
        )
        value = tl.load(y + a * count.to(tl.int64) + f, mask=inside, other=0.0)
        tile += signed(value, pattern, (f % _COUNT).to(tl.uint32)).to(tl.float64)
        ends = ((row + a + 1) % _LANES == 0) | (a == rows - 1)
        total = tl.where(ends, total + tile, total)
        tile = tl.where(ends, 0.0, tile)
    tl.store(destination + f, total, mask=inside)


class Records:
    """Pairs as the kernels take them."""

    def __init__(self, pairs: Pairs) -> None:
        self.count, self.groups = len(pairs), _groups(pairs)
        rows = np.zeros((max(1, self.count), 4), dtype=np.int64)
        seed, place = pairs["seed"], pairs["j"] << PLACE
        rows[: self.count, 0], rows[: self.count, 1] = seed & 0xFFFFFFFF, seed >> 32
        rows[: self.count, 2], rows[: self.count, 3] = pairs["k"], place
        self.numbers = rows.reshape(-1)
        self.coefficients = np.zeros(self.groups * GROUP, dtype=np.float32)
        self.coefficients[: self.count] = pairs["coefficient"]

    def patterns(
        self, domain: Domain, start: int, count: int, device: torch.device
    ) -> torch.Tensor:
        """Return signs of elements start, start + 1, ..., eight pairs to a byte: shape (groups,
        count).
        """
        destination = torch.empty(self.groups * count, dtype=torch.uint8, device=device)
        _launch_fill(
            [(0, self.count, count, start, int(domain), 0)],
            to_device(self.numbers, device),
            destination,
        )
        return destination.view(self.groups, count)


def _groups(pairs: Pairs) -> int:
    """Return the number of groups of eight."""
    return -(-len(pairs) // GROUP)


def _launch_fill(
    rows: Sequence[tuple[int, ...]], pairs: torch.Tensor, destination: torch.Tensor
) -> None:
    """Launch `_fill` for rows of (first pair's numbers, pairs, elements, start, domain,
    destination).
    """
    if len(destination):
        programs = [-(-pairs // GROUP) * -(-size // _ELEMENTS) for _, pairs, size, *_ in rows]
        table, grid = table_of(rows, programs, destination.device)
        launch(_fill, (grid,), table, pairs, destination, len(rows), ELEMENTS=_ELEMENTS)


def move_all(
    jobs: Sequence[tuple[Job, Matrix, int, int]],
    scale: float,
    rounding: tuple[int, int] | None = None,
) -> None:
    """`structured.Kernels.move_all` on matrices: two launches for all of a dtype.

    A job is a run (whose `prepared` are pairs), the matrix it lies on, and which of its rows it
    touches.
    """
    groups: dict[tuple[torch.device, str], list[tuple[Job, Matrix, int, int]]] = {}
    for job in jobs:
        wave = groups.setdefault((job[0].destination.device, job[0].dtype), [])
        wave.append(job)
        if (
            sum(_groups(one.prepared) * (last - first + m.columns) for one, m, first, last in wave)
            > SCRATCH
        ):
            _move_wave(groups.pop((job[0].destination.device, job[0].dtype)), scale, rounding)
    for wave in groups.values():
        _move_wave(wave, scale, rounding)


def _move_wave(
    jobs: Sequence[tuple[Job, Matrix, int, int]], scale: float, rounding: tuple[int, int] | None
) -> None:
    first_job = jobs[0][0]
    device, dtype = first_job.destination.device, DTYPES[first_job.dtype]
    by_pairs = {id(job.prepared): job.prepared for job, *_ in jobs}
    records_of = {name: Records(pairs) for name, pairs in by_pairs.items()}
    numbers, pairs_at = join_arrays([records.numbers for records in records_of.values()])
    coefficients, coefficients_at = join_arrays(
        [records.coefficients for records in records_of.values()]
    )
    fills, sums, programs, length = [], [], [], 0
    for job, matrix, first, last in jobs:
        records, rows = records_of[id(job.prepared)], last - first
        pairs, coefficients_start = (
            pairs_at[id(records.numbers)],
            coefficients_at[id(records.coefficients)],
        )
        right = length + records.groups * rows
        fills.append((pairs, records.count, rows, matrix.start + first, int(Domain.LEFT), length))
        fills.append((pairs, records.count, matrix.columns, matrix.start, int(Domain.RIGHT), right))
        elements_before = job.start - matrix.start - first * matrix.columns
        sums.append(
            (
                job.destination.data_ptr(),
                job.source.data_ptr(),
                len(job.destination),
                job.start,
                elements_before,
                rows,
                matrix.columns,
                coefficients_start,
                records.groups,
                length,
                right,
                *rounding_words(rounding),
            )
        )
        programs.append(-(-rows // _ROWS.value) * -(-matrix.columns // _COLUMNS.value))
        length = right + records.groups * matrix.columns
    signs = torch.empty(length, dtype=torch.uint8, device=device)
    _launch_fill(fills, to_device(numbers, device), signs)
    table, grid = table_of(sums, programs, device)
    aligned = is_aligned((*row[:5], row[6]) for row in sums)
    launch(
        _sum,
        (grid,),
        table,
        signs,
        to_device(coefficients, device),
        len(sums),
        int_bits(scale),
        HOW=4 * dtype + move_flags(rounding, aligned),
    )


def signs(
    pairs: Pairs, domain: Domain, start: int, count: int, device: torch.device | None = None
) -> torch.Tensor:
    """Return signs start, start + 1, ... of every pair's factor in a domain, shape (pairs, count),
    float32.
    """
    patterns = Records(pairs).patterns(domain, start, count, device or default_device())
    places = torch.arange(GROUP, dtype=torch.uint8, device=patterns.device)
    bits = (patterns[:, None] >> places[:, None]) & 1
    return 1 - 2 * bits.reshape(-1, count)[: len(pairs)].float()


def products(
    spec: Spec, first: int, count: int, matrix: Matrix, x: torch.Tensor | NDArray[Any], row: int
) -> NDArray[np.float64]:
    """<u_j w_j^T, x> for the pairs of directions from `first` on, on rows from `row` on (see the
    reference).
    """
    if not isinstance(x, torch.Tensor):
        x = torch.from_numpy(np.require(x, dtype=np.float32, requirements=["C", "W"]))
    records = Records(pairs_of(spec, np.arange(first, first + count)))
    if not records.count or not len(x):
        return np.zeros(records.count)
    device = x.device if x.is_cuda else default_device()
    # eight columns to a byte in place of eight pairs
    signs = records.patterns(Domain.RIGHT, matrix.start, matrix.columns, device)
    destination = torch.zeros(records.count, dtype=torch.float64, device=device)
    rights = _by_columns(signs, records.count)
    # rows at a time, tiles of the matrix whole
    wave = max(1, SCRATCH // records.count // TILE) * TILE
    position, grid = row, -(-records.count // _PAIRS)
    while position < row + len(x):
        stop = min(row + len(x), (position // TILE) * TILE + wave)
        part = x[position - row : stop - row].to(device, torch.float32).contiguous()
        y = torch.empty(len(part), records.count, dtype=torch.float32, device=device)
        lefts = records.patterns(Domain.LEFT, matrix.start + position, len(part), device)
        launch(
            _along,
            (grid, -(-len(part) // TILE)),
            y,
            part,
            rights,
            len(rights),
            len(part),
            matrix.columns,
            records.count,
            PAIRS=_PAIRS,
        )
        launch(
            _down_columns,
            (grid,),
            destination,
            y,
            lefts,
            position,
            len(part),
            records.count,
            PAIRS=_PAIRS,
        )
        position = stop
    return destination.cpu().numpy()


def _by_columns(signs: torch.Tensor, count: int) -> torch.Tensor:
    """Return bytes of eight columns a pair, shape (groups of columns, pairs), from bytes of eight
    pairs a column.
    """
    groups = -(-signs.shape[1] // GROUP)
    destination = torch.zeros(groups, count, dtype=torch.uint8, device=signs.device)
    for t in range(GROUP):
        columns = signs[:, t::GROUP]  # of the groups' t-th columns
        for p in range(GROUP):
            bits = (columns >> p) & 1
            pairs = destination[: columns.shape[1], p::GROUP]
            pairs |= bits.t()[:, : pairs.shape[1]] << t
    return destination
