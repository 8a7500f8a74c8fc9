"""Sums of low-rank directions for CPUs: the reference's bits, with a quarter of a matrix product's additions.

Eight outer products of signs at a time (the reference's groups): on a column there are only 2^8 sums that they can
make, whichever row. So a table of them is made for some columns, and each row adds the entry that its eight signs
name. A projection does the same with eight columns. Rows and columns are taken in tiles whose tables and sums stay in
the caches; tiles are independent, so threads share them out without changing a bit.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedseed.randomness.kernels.cpu import fill_words
from fedseed.randomness.kernels.lowrank_reference import GROUP, PLACE, TILE, Pair, join, padded
from fedseed.randomness.kernels.reference import Floats, Spec
from fedseed.randomness.matrices import Matrix
from fedseed.randomness.stream import Domain, split_seed

__all__ = ["as_records", "join", "padded", "products", "signs", "total", "total_of_rows"]

_COLUMNS = 32  # columns of a table: two tables of 2^8 sums of 16 numbers fill a first-level cache
_ROWS = 2048  # rows that one table serves: their sums stay in the second-level cache
_TABLE = 48  # rows (or directions) from which on a table is less work than the sums themselves
_FEW = 1 << 16  # elements up to which threads would take longer to start than the work does
_WAVE = 1 << 22  # numbers that a projection keeps for tiles that are not added up yet
_L = np.uint64

_PAIR = np.dtype([("key0", "u8"), ("key1", "u8"), ("k", "i8"), ("j", "i8"), ("coefficient", "f4")])


def _rows_of(width: int) -> tuple[Any, Any]:
    """Two operations on rows of `width` numbers at given addresses, as vectors: LLVM does not see that loops are such.

    Returns:
        add(to, one, two): to = (to + one) + two; split(low, high, term): high = low - term and low = low + term.
    """
    row = ir.VectorType(ir.FloatType(), width)

    def load(builder: Any, address: Any) -> Any:
        return builder.load(builder.inttoptr(address, row.as_pointer()), align=4)

    def store(builder: Any, value: Any, address: Any) -> None:
        builder.store(value, builder.inttoptr(address, row.as_pointer()), align=4)

    @intrinsic
    def add(_context, to, one, two):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            a, b, c = arguments
            first = builder.fadd(load(builder, a), load(builder, b))
            store(builder, builder.fadd(first, load(builder, c)), a)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    @intrinsic
    def split(_context, low, high, term):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            a, b, c = arguments
            value, by = load(builder, a), load(builder, c)
            store(builder, builder.fsub(value, by), b)
            store(builder, builder.fadd(value, by), a)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return add, split


_add_columns, _split_columns = _rows_of(_COLUMNS)
_add_lanes, _split_lanes = _rows_of(TILE)
_WIDE, _LONG = 4 * _COLUMNS, 4 * TILE  # bytes of a row


def as_records(pairs: Sequence[Pair]) -> NDArray[Any]:
    """Pairs as the compiled loops take them."""
    rows = [(*split_seed(p.seed), p.k, p.j, p.coefficient) for p in pairs]
    return np.array(rows, dtype=_PAIR)


@njit(cache=True)
def _bits_of(bits, pair, domain, start):  # type: ignore[no-untyped-def]
    """bits[i] = the sign bit of element start + i of u_j or w_j."""
    first = (pair.j << PLACE) + start
    block = first // 128
    blocks = (first + bits.size + 127) // 128 - block
    words = np.empty((4, blocks), np.uint32)
    fill_words(words, blocks, block, domain, pair.k, pair.key0, pair.key1)
    at = first - 128 * block
    for i in range(bits.size):
        e = at + i
        bits[i] = (words[(e >> 5) & 3, e >> 7] >> np.uint32(e & 31)) & np.uint32(1)


@njit(cache=True)
def _fill_bits_serial(bits, pairs, domain, start):  # type: ignore[no-untyped-def]
    for f in range(len(pairs)):
        _bits_of(bits[f], pairs[f], domain, start)


@njit(cache=True, parallel=True)
def _fill_bits_together(bits, pairs, domain, start):  # type: ignore[no-untyped-def]
    for f in prange(len(pairs)):
        _bits_of(bits[f], pairs[f], domain, start)


def _fill_bits(bits: NDArray[np.uint8], pairs: NDArray[Any], domain: int, start: int) -> None:
    """bits[f, i] = the sign bit of element start + i of pair f's factor."""
    (_fill_bits_serial if bits.size <= _FEW else _fill_bits_together)(bits, pairs, domain, start)


@njit(cache=True, parallel=True)
def _fill_patterns(patterns, pairs, domain, start):  # type: ignore[no-untyped-def]
    """patterns[g, i]: bit t is the sign bit of element start + i of pair 8 g + t."""
    groups, count = patterns.shape
    for g in prange(groups):
        bits = np.empty(count, np.uint8)
        patterns[g] = 0
        for t in range(min(GROUP, len(pairs) - GROUP * g)):
            _bits_of(bits, pairs[GROUP * g + t], domain, start)
            for i in range(count):
                patterns[g, i] |= bits[i] << t


@njit(cache=True)
def _fill_table(table, bits, coefficients, first, lo, hi):  # type: ignore[no-untyped-def]
    """table[p, b] = the sum of pairs first, first + 1, ... on column lo + b, where p has the signs of a row."""
    term = np.zeros(_COLUMNS, np.float32)
    table[0] = 0  # as it stays if there is no such pair
    for t in range(min(GROUP, len(coefficients) - first)):
        c = coefficients[first + t]
        for b in range(hi - lo):
            term[b] = -c if bits[first + t, lo + b] else c
        if t == 0:
            table[0] = term
            table[1] = -term
            continue
        for p in range(1 << t):
            low = table.ctypes.data + p * _WIDE
            _split_columns(low, low + (_WIDE << t), term.ctypes.data)


@njit(cache=True)
def _total_by_table(total, tables, patterns, bits, coefficients, lo, hi):  # type: ignore[no-untyped-def]
    """total[a, b] for the rows of `patterns` and columns lo..hi, of which there are at most _COLUMNS."""
    rows = patterns.shape[1]
    to, one, two = total.ctypes.data, tables[0].ctypes.data, tables[1].ctypes.data
    total[:rows] = 0
    for g in range(0, len(patterns), 2):  # two groups at a time
        _fill_table(tables[0], bits, coefficients, GROUP * g, lo, hi)
        _fill_table(tables[1], bits, coefficients, GROUP * (g + 1), lo, hi)
        for a in range(rows):
            _add_columns(to + a * _WIDE, one + patterns[g, a] * _WIDE, two + patterns[g + 1, a] * _WIDE)


@njit(cache=True, parallel=True)
def _sum_by_table(out, patterns, bits, coefficients):  # type: ignore[no-untyped-def]
    rows, columns = out.shape
    down, across = (rows + _ROWS - 1) // _ROWS, (columns + _COLUMNS - 1) // _COLUMNS
    for task in prange(down * across):
        first, lo = task // across * _ROWS, task % across * _COLUMNS
        last, hi = min(rows, first + _ROWS), min(columns, lo + _COLUMNS)
        total = np.empty((last - first, _COLUMNS), np.float32)
        tables = np.empty((2, 1 << GROUP, _COLUMNS), np.float32)
        _total_by_table(total, tables, patterns[:, first:last], bits, coefficients, lo, hi)
        for a in range(first, last):
            for b in range(lo, hi):
                out[a, b] = total[a - first, b - lo]


@njit(cache=True)
def _sum_row(out, group, a, lefts, rights):  # type: ignore[no-untyped-def]
    """out[b] = the sum on one row: rights[f] = coefficient * w_j, lefts[f, a] = the sign bit of u_j."""
    columns = out.size
    for f in range(len(rights)):
        right = rights[f]
        if f % GROUP == 0:
            if lefts[f, a]:
                for b in range(columns):
                    group[b] = -right[b]
            else:
                for b in range(columns):
                    group[b] = right[b]
        elif lefts[f, a]:
            for b in range(columns):
                group[b] -= right[b]
        else:
            for b in range(columns):
                group[b] += right[b]
        if f == GROUP - 1 or (f == len(rights) - 1 and f < GROUP):
            for b in range(columns):
                out[b] = group[b]
        elif f % GROUP == GROUP - 1 or f == len(rights) - 1:
            for b in range(columns):
                out[b] += group[b]


@njit(cache=True)
def _sum_rows_serial(out, lefts, rights):  # type: ignore[no-untyped-def]
    group = np.empty(out.shape[1], np.float32)
    for a in range(len(out)):
        _sum_row(out[a], group, a, lefts, rights)


@njit(cache=True, parallel=True)
def _sum_rows(out, lefts, rights, share):  # type: ignore[no-untyped-def]
    for task in prange((len(out) + share - 1) // share):
        group = np.empty(out.shape[1], np.float32)
        for a in range(task * share, min(len(out), (task + 1) * share)):
            _sum_row(out[a], group, a, lefts, rights)


def signs(records: NDArray[Any], domain: Domain, start: int, count: int) -> Floats:
    """Signs start, start + 1, ... of every pair's factor in a domain, shape (pairs, count)."""
    bits = np.empty((len(records), count), np.uint8)
    _fill_bits(bits, records, int(domain), start)
    return np.float32(1) - np.float32(2) * bits


def _factors(records: NDArray[Any], matrix: Matrix, first: int, rows: int) -> tuple[NDArray[np.uint8], Floats]:
    """(sign bits of u_j for some rows, coefficient * w_j): a row for each pair."""
    lefts = np.empty((len(records), rows), dtype=np.uint8)
    bits = np.empty((len(records), matrix.columns), dtype=np.uint8)
    _fill_bits(lefts, records, int(Domain.LEFT), matrix.start + first)
    _fill_bits(bits, records, int(Domain.RIGHT), matrix.start)
    coefficients = records["coefficient"][:, None]
    return lefts, np.where(bits, -coefficients, coefficients)


def total(records: NDArray[Any], matrix: Matrix, first: int, last: int) -> Floats:
    """The sum on rows first..last of a matrix, shape (last - first, columns)."""
    rows = last - first
    if not len(records):
        return np.zeros((rows, matrix.columns), dtype=np.float32)
    out = np.empty((rows, matrix.columns), dtype=np.float32)
    if rows >= _TABLE and len(records) >= GROUP:
        bits = np.empty((len(records), matrix.columns), dtype=np.uint8)
        _fill_bits(bits, records, int(Domain.RIGHT), matrix.start)
        patterns = np.zeros((-(-len(records) // GROUP // 2) * 2, rows), dtype=np.uint8)
        _fill_patterns(patterns, records, int(Domain.LEFT), matrix.start + first)
        _sum_by_table(out, patterns, bits, np.ascontiguousarray(records["coefficient"]))
        return out
    lefts, rights = _factors(records, matrix, first, rows)
    if out.size <= _FEW:
        _sum_rows_serial(out, lefts, rights)
    else:
        _sum_rows(out, lefts, rights, max(1, (1 << 14) // matrix.columns))
    return out


@njit(cache=True)
def _sum_some(out, rows, lefts, rights):  # type: ignore[no-untyped-def]
    group = np.empty(out.shape[1], np.float32)
    for i in range(len(rows)):
        _sum_row(out[i], group, rows[i], lefts, rights)


def total_of_rows(records: NDArray[Any], matrix: Matrix, rows: NDArray[np.int64]) -> Floats:
    """The sum on some rows of a matrix, shape (len(rows), columns)."""
    out = np.zeros((len(rows), matrix.columns), dtype=np.float32)
    if len(records) and len(rows):
        lefts, rights = _factors(records, matrix, 0, matrix.rows)
        _sum_some(out, rows, lefts, rights)
    return out


@njit(cache=True)
def _take(x, row, tile, first):  # type: ignore[no-untyped-def]
    """tile[b, lane] = x[first + lane, b]: rows as lanes, zero where there is none."""
    for lane in range(TILE):
        a = first + lane - row
        if 0 <= a < len(x):
            for b in range(x.shape[1]):
                tile[b, lane] = x[a, b]
        else:
            for b in range(x.shape[1]):
                tile[b, lane] = np.float32(0)


@njit(cache=True)
def _fill_lane_table(table, tile, begin):  # type: ignore[no-untyped-def]
    """table[p, lane] = the sum of columns begin, begin + 1, ..., where p has their signs."""
    table[0] = tile[begin]
    table[1] = -tile[begin]
    for t in range(1, GROUP):
        for p in range(1 << t):
            low = table.ctypes.data + p * _LONG
            _split_lanes(low, low + (_LONG << t), tile.ctypes.data + (begin + t) * _LONG)


@njit(cache=True)
def _products_by_table(y, tile, patterns):  # type: ignore[no-untyped-def]
    """y[f, lane] = <w[f], x[lane]>, for many f."""
    tables = np.empty((2, 1 << GROUP, TILE), np.float32)
    to, one, two = y.ctypes.data, tables[0].ctypes.data, tables[1].ctypes.data
    for g in range(0, len(patterns), 2):  # two groups at a time
        _fill_lane_table(tables[0], tile, GROUP * g)
        _fill_lane_table(tables[1], tile, GROUP * (g + 1))
        for f in range(len(y)):
            _add_lanes(to + f * _LONG, one + patterns[g, f] * _LONG, two + patterns[g + 1, f] * _LONG)


@njit(cache=True)
def _products_one_by_one(y, tile, patterns):  # type: ignore[no-untyped-def]
    """y[f, lane] = <w[f], x[lane]>, for a few f."""
    group = np.empty(TILE, np.float32)
    for g in range(len(patterns)):
        for f in range(len(y)):
            p = patterns[g, f]
            for t in range(GROUP):
                sign = np.float32(-1) if (p >> t) & 1 else np.float32(1)
                for lane in range(TILE):
                    term = sign * tile[GROUP * g + t, lane]
                    group[lane] = term if t == 0 else group[lane] + term
            for lane in range(TILE):
                y[f, lane] += group[lane]


@njit(cache=True)
def _add_up_lanes(result, y, lefts, at):  # type: ignore[no-untyped-def]
    """result[f] = the sum over the tile's rows, one after the other, of u[f, a] y[f, a]."""
    for f in range(len(result)):
        value = 0.0
        for lane in range(TILE):
            e = at + lane
            if 0 <= e < lefts.shape[1]:
                value += -np.float64(y[f, lane]) if lefts[f, e] else np.float64(y[f, lane])
        result[f] = value


@njit(cache=True, parallel=True)
def _products(sums, x, row, from_tile, patterns, lefts, by_table):  # type: ignore[no-untyped-def]
    """sums[i] = the products on tile from_tile + i."""
    groups, count = patterns.shape
    for i in prange(len(sums)):
        first = (from_tile + i) * TILE
        tile = np.zeros((groups * GROUP, TILE), np.float32)
        _take(x, row, tile, first)
        y = np.zeros((count, TILE), np.float32)
        if by_table:
            _products_by_table(y, tile, patterns)
        else:
            _products_one_by_one(y, tile, patterns)
        _add_up_lanes(sums[i], y, lefts, first - row)


@njit(cache=True)
def _add_tiles(out, sums):  # type: ignore[no-untyped-def]
    for i in range(len(sums)):
        for f in range(len(out)):
            out[f] += sums[i, f]


@njit(cache=True, parallel=True)
def _fill_columns(patterns, pairs, domain, start, columns):  # type: ignore[no-untyped-def]
    """patterns[g, f]: bit t is the sign bit of element start + 8 g + t of pair f."""
    for f in prange(len(pairs)):
        bits = np.zeros(columns, np.uint8)
        _bits_of(bits, pairs[f], domain, start)
        for g in range(len(patterns)):
            pattern = np.uint8(0)
            for t in range(min(GROUP, columns - GROUP * g)):
                pattern |= bits[GROUP * g + t] << t
            patterns[g, f] = pattern


def products(spec: Spec, first: int, count: int, matrix: Matrix, x: Floats, row: int) -> NDArray[np.float64]:
    """<direction(first + i), x> for i < count on rows row, row + 1, ... of a matrix (see the reference)."""
    one = np.float32(1)
    records = as_records([Pair(spec.seed, first + i, j, one) for i in range(count) for j in range(spec.rank)])
    if not len(records) or not len(x):
        return np.zeros(count)
    patterns = np.empty((-(-matrix.columns // GROUP // 2) * 2, len(records)), dtype=np.uint8)
    _fill_columns(patterns, records, int(Domain.RIGHT), matrix.start, matrix.columns)
    out = np.zeros(len(records))
    begin, end = row // TILE, -(-(row + len(x)) // TILE)
    wave = max(1, _WAVE // len(records))
    for tile in range(begin, end, wave):
        sums = np.empty((min(wave, end - tile), len(records)))
        a, b = max(row, tile * TILE), min(row + len(x), (tile + wave) * TILE)
        lefts = np.empty((len(records), b - a), dtype=np.uint8)
        _fill_bits(lefts, records, int(Domain.LEFT), matrix.start + a)
        _products(sums, x[a - row : b - row], a, tile, patterns, lefts, len(records) >= _TABLE)
        _add_tiles(out, sums)
    by_direction = np.zeros(count)
    for j in range(spec.rank):
        by_direction += out.reshape(count, spec.rank)[:, j]
    return by_direction * (1 / sqrt(spec.rank))
