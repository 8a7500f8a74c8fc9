"""Sums of low-rank directions as Triton kernels: the reference's bits, on tensors where they are.

The signs of eight pairs go into a byte for each row and each column. A program has a tile of a matrix in registers and
adds up eight signed coefficients, then these to its total, as the reference does; there are as many additions as in a
matrix product, and nothing is read but bytes. Projections keep the products along rows, which a second kernel adds up.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from fedseed.randomness.kernels.lowrank_reference import GROUP, PLACE, TILE, Pair
from fedseed.randomness.kernels.reference import Spec
from fedseed.randomness.kernels.triton import SCRATCH, default_device, int_bits, launch, philox_words, signed
from fedseed.randomness.matrices import Matrix
from fedseed.randomness.stream import Domain, split_seed

_COUNT, _LANES = tl.constexpr(GROUP), tl.constexpr(TILE)
_ELEMENTS = 256  # elements whose signs a program of `_fill` makes
_ROWS, _COLUMNS = tl.constexpr(32), tl.constexpr(64)  # the tile of a matrix that a program of `_sum` adds up
_PAIRS = 64  # pairs that a program of `_along` works on


@triton.jit(do_not_specialize=["count"])
def _fill(out, pairs, count, size, start, domain, ELEMENTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """out[g, i]: bit t is the sign bit of element start + i of pair 8 g + t."""
    g = tl.program_id(0)
    i = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    pattern = tl.full((ELEMENTS,), 0, tl.uint32)
    for t in tl.static_range(_COUNT):
        pair = pairs + 4 * tl.minimum(_COUNT * g + t, count - 1)
        key0 = tl.load(pair).to(tl.uint32)
        key1 = tl.load(pair + 1).to(tl.uint32)
        k = tl.load(pair + 2).to(tl.uint32)
        e = tl.load(pair + 3) + start + i
        w0, w1, w2, w3 = philox_words(e >> 7, k, domain, key0, key1)
        word = (e >> 5) & 3
        bits = tl.where(word == 0, w0, tl.where(word == 1, w1, tl.where(word == 2, w2, w3)))
        pattern |= ((bits >> (e & 31).to(tl.uint32)) & 1) << t
    tl.store(out + g.to(tl.int64) * size + i, pattern.to(tl.uint8), mask=i < size)


@triton.jit(do_not_specialize=["groups"])
def _sum(out, lefts, rights, coefficients, groups, rows, columns):  # type: ignore[no-untyped-def]
    """out[a, b] = the sum over all pairs, eight at a time."""
    # `cast`: an argument that is 1 is a plain number to the compiler, and those have no `to`
    a = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    b = tl.program_id(1) * _COLUMNS + tl.arange(0, _COLUMNS)
    total = tl.full((_ROWS, _COLUMNS), 0.0, tl.float32)
    for g in range(groups):
        left = tl.load(lefts + g * tl.cast(rows, tl.int64) + a, mask=a < rows, other=0).to(tl.uint32)
        right = tl.load(rights + g * tl.cast(columns, tl.int64) + b, mask=b < columns, other=0).to(tl.uint32)
        signs = left[:, None] ^ right[None, :]
        group = tl.full((_ROWS, _COLUMNS), 0.0, tl.float32)
        for t in tl.static_range(_COUNT):
            group += signed(tl.load(coefficients + _COUNT * g + t), signs, t)
        total += group
    at = a[:, None].to(tl.int64) * columns + b[None, :]
    tl.store(out + at, total, mask=(a < rows)[:, None] & (b < columns)[None, :])


@triton.jit(do_not_specialize=["groups", "count"])
def _along(out, x, rights, groups, rows, columns, count, PAIRS: tl.constexpr):  # type: ignore[no-untyped-def]
    """out[a, f] = <w[f], x[a]>: eight columns at a time. rights[g, f]: bit t is the sign bit of column 8 g + t."""
    f = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    a = tl.program_id(1) * _LANES + tl.arange(0, _LANES)
    total = tl.full((_LANES, PAIRS), 0.0, tl.float32)
    for g in range(groups):
        pattern = tl.load(rights + g * count.to(tl.int64) + f, mask=f < count, other=0).to(tl.uint32)
        group = tl.full((_LANES, PAIRS), 0.0, tl.float32)
        for t in tl.static_range(_COUNT):
            b = _COUNT * g + t
            value = tl.load(x + a.to(tl.int64) * columns + b, mask=(a < rows) & (a * 0 + b < columns), other=0.0)
            group += signed(value[:, None], pattern[None, :], t)
        total += group
    at = a[:, None].to(tl.int64) * count + f[None, :]
    tl.store(out + at, total, mask=(a < rows)[:, None] & (f < count)[None, :])


@triton.jit(do_not_specialize=["row", "rows", "count"])
def _down(out, y, lefts, row, rows, count, PAIRS: tl.constexpr):  # type: ignore[no-untyped-def]
    """out[f] += the sum over rows of u[f, a] y[a, f]: tile by tile of the matrix, which begins `row` rows before y."""
    f = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    inside = f < count
    total = tl.load(out + f, mask=inside, other=0.0)
    tile = tl.full((PAIRS,), 0.0, tl.float64)
    for a in range(rows):
        pattern = tl.load(lefts + (f // _COUNT).to(tl.int64) * rows + a, mask=inside, other=0).to(tl.uint32)
        value = tl.load(y + a * count.to(tl.int64) + f, mask=inside, other=0.0)
        tile += signed(value, pattern, (f % _COUNT).to(tl.uint32)).to(tl.float64)
        ends = ((row + a + 1) % _LANES == 0) | (a == rows - 1)
        total = tl.where(ends, total + tile, total)
        tile = tl.where(ends, 0.0, tile)
    tl.store(out + f, total, mask=inside)


class Records:
    """Pairs as the kernels take them; copied to a device when they are first used there, and kept."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.count = len(pairs)
        rows = [(*(int_bits(word, np.uint32) for word in split_seed(p.seed)), p.k, p.j << PLACE) for p in pairs]
        self._rows = torch.tensor(rows or [(0, 0, 0, 0)], dtype=torch.int64, device="cpu")
        self._coefficients = torch.zeros(self.groups * GROUP, dtype=torch.float32, device="cpu")
        self._coefficients[: self.count] = torch.from_numpy(np.array([p.coefficient for p in pairs], dtype=np.float32))
        self._on: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def groups(self) -> int:
        """The number of groups of eight."""
        return -(-self.count // GROUP)

    def on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows of numbers, coefficients) on a device."""
        if device not in self._on:
            self._on[device] = self._rows.to(device), self._coefficients.to(device)
        return self._on[device]

    def patterns(self, domain: Domain, start: int, count: int, device: torch.device) -> torch.Tensor:
        """Signs of elements start, start + 1, ..., eight pairs to a byte: shape (groups, count)."""
        out = torch.empty(self.groups, count, dtype=torch.uint8, device=device)
        if out.numel():
            grid = self.groups, -(-count // _ELEMENTS)
            rows, _ = self.on(device)
            launch(_fill, grid, out, rows, self.count, count, start, int(domain), ELEMENTS=_ELEMENTS)
        return out


as_records = Records


def signs(records: Records, domain: Domain, start: int, count: int, device: torch.device | None = None) -> torch.Tensor:
    """Signs start, start + 1, ... of every pair's factor in a domain, shape (pairs, count), float32."""
    patterns = records.patterns(domain, start, count, device or default_device())
    places = torch.arange(GROUP, dtype=torch.uint8, device=patterns.device)
    bits = (patterns[:, None] >> places[:, None]) & 1
    return 1 - 2 * bits.reshape(-1, count)[: records.count].float()


def total(records: Records, matrix: Matrix, first: int, last: int, device: torch.device | None = None) -> torch.Tensor:
    """The sum on rows first..last of a matrix, shape (last - first, columns)."""
    device, rows = device or default_device(), last - first
    out = torch.empty(rows, matrix.columns, dtype=torch.float32, device=device)
    if out.numel():
        lefts = records.patterns(Domain.LEFT, matrix.start + first, rows, device)
        rights = records.patterns(Domain.RIGHT, matrix.start, matrix.columns, device)
        grid = -(-rows // _ROWS.value), -(-matrix.columns // _COLUMNS.value)
        launch(_sum, grid, out, lefts, rights, records.on(device)[1], records.groups, rows, matrix.columns)
    return out


def products(
    spec: Spec, first: int, count: int, matrix: Matrix, x: torch.Tensor | NDArray[Any], row: int
) -> NDArray[np.float64]:
    """<u_j w_j^T, x> for the pairs of directions from `first` on, on rows from `row` on (see the reference)."""
    if not isinstance(x, torch.Tensor):
        x = torch.from_numpy(np.require(x, dtype=np.float32, requirements=["C", "W"]))
    one = np.float32(1)
    records = Records([Pair(spec.seed, first + i, j, one) for i in range(count) for j in range(spec.rank)])
    if not records.count or not len(x):
        return np.zeros(records.count)
    device = x.device if x.is_cuda else default_device()
    # eight columns to a byte in place of eight pairs
    signs = records.patterns(Domain.RIGHT, matrix.start, matrix.columns, device)
    out = torch.zeros(records.count, dtype=torch.float64, device=device)
    rights = _by_columns(signs, records.count)
    wave = max(1, SCRATCH // records.count // TILE) * TILE  # rows at a time, tiles of the matrix whole
    at, grid = row, -(-records.count // _PAIRS)
    while at < row + len(x):
        stop = min(row + len(x), (at // TILE) * TILE + wave)
        part = x[at - row : stop - row].to(device, torch.float32).contiguous()
        y = torch.empty(len(part), records.count, dtype=torch.float32, device=device)
        lefts = records.patterns(Domain.LEFT, matrix.start + at, len(part), device)
        launch(
            _along, (grid, -(-len(part) // TILE)), y, part, rights, len(rights), len(part), matrix.columns,
            records.count, PAIRS=_PAIRS,
        )  # fmt: skip
        launch(_down, (grid,), out, y, lefts, at, len(part), records.count, PAIRS=_PAIRS)
        at = stop
    return out.cpu().numpy()


def _by_columns(signs: torch.Tensor, count: int) -> torch.Tensor:
    """Bytes of eight columns for each pair, shape (groups of columns, pairs), from bytes of eight pairs a column."""
    groups = -(-signs.shape[1] // GROUP)
    out = torch.zeros(groups, count, dtype=torch.uint8, device=signs.device)
    for t in range(GROUP):
        columns = signs[:, t::GROUP]  # of the groups' t-th columns
        for p in range(GROUP):
            bits = (columns >> p) & 1
            pairs = out[: columns.shape[1], p::GROUP]
            pairs |= bits.t()[:, : pairs.shape[1]] << t
    return out


def join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """One tensor of all."""
    return torch.cat([torch.zeros(0, device=default_device()), *parts])
