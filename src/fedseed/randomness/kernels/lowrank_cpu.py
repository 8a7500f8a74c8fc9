"""Sums of low-rank directions for CPUs: the reference's bits, with an eighth of a matrix product's additions.

Eight outer products of signs at a time (the reference's groups): on a column there are only 2^8 sums that they can
make, whichever row, and half of them are the others' negatives. So a table of 2^7 sums is made for some columns, and
each row adds the entry that its eight signs name, with the sign of the first. A projection does the same with eight
columns. Four tables are at hand at a time, so that what is added to is read and written once for four additions. Rows
and columns are taken in tiles whose tables and sums stay in the caches; tiles are independent, so threads share them
out without changing a bit. All in one file, as numba's cache does not notice a change in a function of another one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedseed.randomness.kernels.cpu import add_sums, add_sums_run, bits, fill_words
from fedseed.randomness.kernels.lowrank_reference import GROUP, PLACE, TILE, Pair, join
from fedseed.randomness.kernels.reference import Floats, Spec, Stored
from fedseed.randomness.matrices import Matrix
from fedseed.randomness.stream import Domain, split_seed

__all__ = ["as_records", "join", "move", "products", "signs", "total", "total_of_rows"]

_WIDTH = 2 * TILE  # numbers of a table's row: columns, or rows of a matrix in a projection
_SUMS = 1 << (GROUP - 1)  # rows of a table
_TABLES = 4  # at hand at a time: their signs are the bits of a word
_WORD = 32
_ROW, _SIZE = 4 * _WIDTH, 4 * _WIDTH * _SUMS  # bytes of a table's row, of a table
_LINE = 64  # bytes of a line of the cache: a row that lies across two of them takes twice as long
_ROWS = 4096  # rows of a matrix (or directions) that one table serves: their sums stay in the second-level cache
_MANY = 48  # rows (or directions) from which on a table is less work than the sums themselves
_PIECE = 1 << 22  # elements of 16 bits whose sums are kept at a time
_FEW = 1 << 16  # elements up to which threads would take longer to start than the work does
_WAVE = 1 << 22  # numbers that a projection keeps for tiles that are not added up yet
_U = np.uint32

_PAIR = np.dtype([("key0", "u8"), ("key1", "u8"), ("k", "i8"), ("j", "i8"), ("coefficient", "f4")])

# -- operations on rows of _WIDTH numbers at given addresses, as vectors: LLVM does not see that loops are such -------

_INT, _WIDE_INT = ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS = ir.VectorType(ir.FloatType(), _WIDTH), ir.VectorType(_INT, _WIDTH)


def _load(builder: Any, address: Any, kind: Any = _FLOATS) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=_LINE)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=_LINE)


def _at(builder: Any, address: Any, offset: int) -> Any:
    return builder.add(address, ir.Constant(_WIDE_INT, offset))


@intrinsic
def _add_four(_context, to, tables, codes):  # type: ignore[no-untyped-def]
    """to = (((to + a) + b) + c) + d, from four tables: a byte of `codes` is a row's number, and a sign."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        to, tables, codes = arguments
        value = _load(builder, to)
        for i in range(_TABLES):
            number = builder.and_(builder.lshr(codes, ir.Constant(_INT, 8 * i)), ir.Constant(_INT, _SUMS - 1))
            place = builder.mul(builder.zext(number, _WIDE_INT), ir.Constant(_WIDE_INT, _ROW))
            row = _load(builder, builder.add(_at(builder, tables, i * _SIZE), place), _INTS)
            top = builder.and_(builder.shl(codes, ir.Constant(_INT, 24 - 8 * i)), ir.Constant(_INT, 1 << 31))
            first = builder.insert_element(ir.Constant(_INTS, ir.Undefined), top, ir.Constant(_INT, 0))
            turn = builder.shuffle_vector(first, first, ir.Constant(_INTS, [0] * _WIDTH))
            value = builder.fadd(value, builder.bitcast(builder.xor(row, turn), _FLOATS))
        _store(builder, value, to)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.uint32), generate


@intrinsic
def _split(_context, low, distance, term):  # type: ignore[no-untyped-def]
    """The row that is `distance` bytes after `low` = low - term, and low = low + term."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        low, distance, term = arguments
        value, by = _load(builder, low), _load(builder, term)
        _store(builder, builder.fsub(value, by), builder.add(low, distance))
        _store(builder, builder.fadd(value, by), low)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _split_three(_context, low, terms):  # type: ignore[no-untyped-def]
    """The last three splits of a table's row, whose terms lie one after the other: each sum is written once."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        low, terms = arguments
        by = [_load(builder, _at(builder, terms, t * _ROW)) for t in range(3)]

        def deeper(value: Any, t: int, number: int) -> None:
            if t == len(by):
                _store(builder, value, _at(builder, low, number * _SIZE // 8))
                return
            deeper(builder.fadd(value, by[t]), t + 1, number)
            deeper(builder.fsub(value, by[t]), t + 1, number + (1 << t))

        deeper(_load(builder, low), 0, 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _sign(_context, to, words, bit, value):  # type: ignore[no-untyped-def]
    """to = value, where the bit of a word is set -value. The words lie anywhere, one after the other."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        to, words, bit, value = arguments

        def each(number: Any) -> Any:
            first = builder.insert_element(ir.Constant(_INTS, ir.Undefined), number, ir.Constant(_INT, 0))
            return builder.shuffle_vector(first, first, ir.Constant(_INTS, [0] * _WIDTH))

        own = builder.load(builder.inttoptr(words, _INTS.as_pointer()), align=4)
        turn = builder.shl(own, each(builder.sub(ir.Constant(_INT, 31), bit)))
        turn = builder.and_(turn, each(ir.Constant(_INT, 1 << 31)))
        signed = builder.xor(turn, each(builder.bitcast(value, _INT)))
        _store(builder, signed, to)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.uint32, types.float32), generate


@intrinsic
def _sum_signed(_context, numbers, signs):  # type: ignore[no-untyped-def]
    """TILE numbers with signs of their own (bits), one after the other, in double precision."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        numbers, signs = arguments
        row = _load(builder, numbers, ir.VectorType(ir.FloatType(), TILE))
        turn = builder.bitcast(builder.trunc(signs, ir.IntType(TILE)), ir.VectorType(ir.IntType(1), TILE))
        wide = builder.fpext(builder.select(turn, builder.fneg(row), row), ir.VectorType(ir.DoubleType(), TILE))
        value = ir.Constant(ir.DoubleType(), 0.0)
        for lane in range(TILE):
            value = builder.fadd(value, builder.extract_element(wide, ir.Constant(_INT, lane)))
        return value

    return types.float64(types.int64, types.uint32), generate


@njit(cache=True)
def _rows(count):  # type: ignore[no-untyped-def]
    """Memory for `count` rows that begin at lines of the cache, which the operations above rely on."""
    room = np.empty(count * _WIDTH + _LINE // 4, np.float32)
    skip = -room.ctypes.data % _LINE // 4
    return room[skip : skip + count * _WIDTH].reshape(count, _WIDTH)


# -- signs -----------------------------------------------------------------------------------------------------------


def as_records(pairs: Sequence[Pair]) -> NDArray[Any]:
    """Pairs as the compiled loops take them."""
    rows = [(*split_seed(p.seed), p.k, p.j, p.coefficient) for p in pairs]
    return np.array(rows, dtype=_PAIR)


@njit(cache=True)
def _fill_stream(out, pair, domain, start):  # type: ignore[no-untyped-def]
    """out[i]: bit e is the sign bit of element start + 32 i + e of u_j or w_j."""
    first = (pair.j << PLACE) + start
    at, blocks = first & 127, ((first & 127) + _WORD * out.size + 127) >> 7
    words = np.empty((4, blocks), np.uint32)
    fill_words(words, blocks, first >> 7, domain, pair.k, pair.key0, pair.key1)
    shift = at & 31
    for i in range(out.size):
        w = (at >> 5) + i
        out[i] = words[w & 3, w >> 2] >> _U(shift)
        if shift:
            out[i] |= words[(w + 1) & 3, (w + 1) >> 2] << _U(32 - shift)


@njit(cache=True)
def _transpose(bits):  # type: ignore[no-untyped-def]
    """Bit p of bits[e, i] becomes bit e of bits[p, i]."""
    j, mask = 16, _U(0xFFFF)
    while j:
        for k in range(_WORD):
            if not k & j:
                one, two = bits[k], bits[k + j]
                for i in range(bits.shape[1]):
                    change = _U(_U(one[i] >> _U(j)) ^ two[i]) & mask
                    two[i] ^= change
                    one[i] ^= _U(change << _U(j))
        j >>= 1
        mask = _U(mask ^ _U(mask << _U(j)))


@njit(cache=True)
def _fill_some(words, first, last, pairs, domain, start):  # type: ignore[no-untyped-def]
    for q in range(first, last):
        bits = np.zeros((_WORD, (words.shape[1] + _WORD - 1) // _WORD), np.uint32)
        for t in range(min(_WORD, len(pairs) - _WORD * q)):
            _fill_stream(bits[t], pairs[_WORD * q + t], domain, start)
        _transpose(bits)
        for i in range(words.shape[1]):
            words[q, i] = bits[i & 31, i >> 5]


@njit(cache=True, parallel=True)
def _fill_words(words, pairs, domain, start):  # type: ignore[no-untyped-def]
    for q in prange(len(words)):
        _fill_some(words, q, q + 1, pairs, domain, start)


def _across(records: NDArray[Any], domain: Domain, start: int, count: int) -> NDArray[np.uint32]:
    """words[q, i]: bit t is the sign bit of element start + i of pair 32 q + t; zero where there is no such pair."""
    words = np.empty((-(-len(records) // _WORD), count), dtype=np.uint32)
    if len(words) < 2 or words.size <= _FEW // _WORD:
        _fill_some(words, 0, len(words), records, int(domain), start)
    else:
        _fill_words(words, records, int(domain), start)
    return words


@njit(cache=True, parallel=True)
def _fill_along(words, pairs, domain, start, last):  # type: ignore[no-untyped-def]
    for f in prange(len(pairs)):
        stream = np.empty(len(words), np.uint32)
        _fill_stream(stream, pairs[f], domain, start)
        stream[-1] &= last
        words[:, f] = stream


def _along(records: NDArray[Any], domain: Domain, start: int, count: int) -> NDArray[np.uint32]:
    """words[i, f]: bit e is the sign bit of element start + 32 i + e of pair f; zero from element start + count on."""
    words = np.empty((-(-count // _WORD), len(records)), dtype=np.uint32)
    _fill_along(words, records, int(domain), start, _U(0xFFFFFFFF >> (-count % _WORD)))
    return words


@njit(cache=True)
def _codes(words):  # type: ignore[no-untyped-def]
    """What the signs of groups (a word's bytes) say to `_add_four`: the sign of the first; the others', times that."""
    codes = np.empty_like(words)
    for q in range(len(words)):
        for i in range(words.shape[1]):
            first = words[q, i] & _U(0x01010101)
            others = _U(words[q, i] >> _U(1)) & _U(0x7F7F7F7F)
            codes[q, i] = _U(others ^ _U(first * _U(0x7F))) | _U(first << _U(7))
    return codes


@njit(cache=True)
def _signed(words, coefficients):  # type: ignore[no-untyped-def]
    """coefficient * sign for each pair and element."""
    out = np.empty((len(coefficients), words.shape[1]), np.float32)
    for f in range(len(out)):
        c, bit = coefficients[f], _U(f & 31)
        for i in range(words.shape[1]):
            out[f, i] = -c if _U(words[f >> 5, i] >> bit) & _U(1) else c
    return out


def _coefficients(records: NDArray[Any]) -> Floats:
    return np.ascontiguousarray(records["coefficient"])


def signs(records: NDArray[Any], domain: Domain, start: int, count: int) -> Floats:
    """Signs start, start + 1, ... of every pair's factor in a domain, shape (pairs, count)."""
    return _signed(_across(records, domain, start, count), np.ones(len(records), np.float32))


# -- sums ------------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _fill_table(table, terms):  # type: ignore[no-untyped-def]
    """table[p] = the sum of GROUP terms (rows), where bit t of p turns the sign of term t + 1. Both are addresses."""
    for t in range(1, GROUP - 3):
        for p in range(1 << (t - 1)):
            _split(table + p * _ROW, _ROW << (t - 1), terms + t * _ROW)
    for p in range(1 << (GROUP - 4)):
        _split_three(table + p * _ROW, terms + (GROUP - 3) * _ROW)


@njit(cache=True)
def _total_by_table(total, tables, terms, codes, rights, coefficients, lo):  # type: ignore[no-untyped-def]
    """total[a, b] for the rows of `codes` and columns lo + b; `rights` and `coefficients` fill whole words."""
    to, tables_at, terms_at = total.ctypes.data, tables.ctypes.data, terms.ctypes.data
    words = rights.ctypes.data + 4 * lo
    total[:] = 0
    for q in range(len(codes)):
        for i in range(_TABLES):
            table = tables_at + i * _SIZE
            for t in range(GROUP):
                at = terms_at + t * _ROW if t else table  # the first is where the others are added
                bit = GROUP * i + t
                _sign(at, words + 4 * q * rights.shape[1], _U(bit), coefficients[_WORD * q + bit])
            _fill_table(table, terms_at)
        for a in range(len(total)):
            _add_four(to + a * _ROW, tables_at, codes[q, a])


@njit(cache=True)
def _add_tile(out, total, first, columns, count, scale):  # type: ignore[no-untyped-def]
    """scale * total[a] is added to `count` elements of `out` from first + a * columns on.

    There is no slice for each of these short rows: counting references to it takes longer than adding.
    """
    for a in range(len(total)):
        at = first + a * columns
        for b in range(count):
            out[at + b] += scale * total[a, b] + np.float32(0)


@njit(cache=True, parallel=True)
def _add_by_table(out, columns, codes, rights, coefficients, scale):  # type: ignore[no-untyped-def]
    rows, across = codes.shape[1], rights.shape[1] // _WIDTH
    down = (rows + _ROWS - 1) // _ROWS
    for task in prange(down * across):
        first, last = rows * (task // across) // down, rows * (task // across + 1) // down
        lo = task % across * _WIDTH
        total, tables, terms = _rows(last - first), _rows(_TABLES * _SUMS), _rows(GROUP)
        _total_by_table(total, tables, terms, codes[:, first:last], rights, coefficients, lo)
        _add_tile(out, total, first * columns + lo, columns, min(_WIDTH, columns - lo), scale)


@njit(cache=True)
def _sum_row(out, group, a, lefts, rights):  # type: ignore[no-untyped-def]
    """out[b] = the sum on one row: rights[f] = coefficient * w_j, lefts[:, a] = the sign bits of u_j."""
    for first in range(0, len(rights), GROUP):
        for f in range(first, min(first + GROUP, len(rights))):
            right, sign = rights[f], np.float32(1 - 2 * ((lefts[f >> 5, a] >> _U(f & 31)) & 1))
            if f == first:
                for b in range(out.size):
                    group[b] = sign * right[b]
            else:
                for b in range(out.size):
                    group[b] += sign * right[b]
        if first == 0:
            for b in range(out.size):
                out[b] = group[b]
        else:
            for b in range(out.size):
                out[b] += group[b]


@njit(cache=True)
def _move_some(out, source, first, last, how):  # type: ignore[no-untyped-def]
    lefts, rights, scale, same = how
    columns = rights.shape[1]
    group, total = np.empty(columns, np.float32), np.empty(columns, np.float32)
    for a in range(first, last):
        i, j = a * columns, (a + 1) * columns
        if len(rights) == 1:  # scale * -right is -scale * right
            by = -scale if lefts[0, a] & _U(1) else scale
            add_sums_run(out[i:j], source[i:j], rights[0], by, same)
        else:
            _sum_row(total, group, a, lefts, rights)
            add_sums_run(out[i:j], source[i:j], total, scale, same)


@njit(cache=True, parallel=True)
def _move_together(out, source, share, how):  # type: ignore[no-untyped-def]
    rows = how[0].shape[1]
    for task in prange((rows + share - 1) // share):
        last = min(rows, (task + 1) * share)
        _move_some(out, source, task * share, last, how)


def move(
    out: Stored, source: Stored, dtype: str, records: NDArray[Any], matrix: Matrix, first: int, scale: float
) -> None:
    """out = round(source + scale * sum of the records) on whole rows of a matrix, from row `first` on, in order."""
    columns, rows = matrix.columns, len(out) // matrix.columns
    if not len(records):  # a sum of nothing is +0, which -0 becomes
        nothing = np.zeros(min(len(out), _PIECE), dtype=np.float32)
        for lo in range(0, len(out), _PIECE):
            to = out[lo : lo + _PIECE]
            add_sums(to, source[lo : lo + _PIECE], dtype, nothing[: len(to)], scale)
        return
    if len(records) >= GROUP and rows >= _MANY:
        _move_by_table(out, source, dtype, records, matrix, first, scale)
        return
    lefts = _across(records, Domain.LEFT, matrix.start + first, rows)
    rights = _signed(_across(records, Domain.RIGHT, matrix.start, columns), _coefficients(records))
    how = lefts, rights, np.float32(scale), out.ctypes.data == source.ctypes.data
    out, source = bits(out, dtype), bits(source, dtype)
    if len(out) <= _FEW:
        _move_some(out, source, 0, rows, how)
    else:
        _move_together(out, source, max(1, (1 << 14) // columns), how)


def _move_by_table(
    out: Stored, source: Stored, dtype: str, records: NDArray[Any], matrix: Matrix, first: int, scale: float
) -> None:
    """`move` for many rows and pairs: what has 16 bits goes through sums of a bounded number of elements."""
    columns, rows = matrix.columns, len(out) // matrix.columns
    coefficients = np.zeros(-(-len(records) // _WORD) * _WORD, dtype=np.float32)
    coefficients[: len(records)] = records["coefficient"]
    rights = _across(records, Domain.RIGHT, matrix.start, -(-columns // _WIDTH) * _WIDTH)
    direct = dtype == "float32"
    if direct and out.ctypes.data != source.ctypes.data:
        out[:] = source
    piece = 2 * _ROWS if direct else max(_MANY, _PIECE // columns)  # direct: bounds the memory that signs take
    for begin in range(0, rows, piece):
        count, lo = min(piece, rows - begin), begin * columns
        codes = _codes(_across(records, Domain.LEFT, matrix.start + first + begin, count))
        to = out[lo : lo + count * columns]
        if direct:
            _add_by_table(to, columns, codes, rights, coefficients, np.float32(scale))
        else:
            sums = np.zeros(len(to), dtype=np.float32)
            _add_by_table(sums, columns, codes, rights, coefficients, np.float32(1))
            add_sums(to, source[lo : lo + len(to)], dtype, sums, scale)


def total(records: NDArray[Any], matrix: Matrix, first: int, last: int) -> Floats:
    """The sum on rows first..last of a matrix, shape (last - first, columns)."""
    out = np.zeros((last - first) * matrix.columns, dtype=np.float32)
    if len(records):
        move(out, out, "float32", records, matrix, first, 1.0)
    return out.reshape(last - first, matrix.columns)


@njit(cache=True)
def _sum_some(out, rows, lefts, rights):  # type: ignore[no-untyped-def]
    group = np.empty(out.shape[1], np.float32)
    for i in range(len(rows)):
        _sum_row(out[i], group, rows[i], lefts, rights)


def total_of_rows(records: NDArray[Any], matrix: Matrix, rows: NDArray[np.int64]) -> Floats:
    """The sum on some rows of a matrix, shape (len(rows), columns)."""
    out = np.zeros((len(rows), matrix.columns), dtype=np.float32)
    if len(records) and len(rows):
        rights = _signed(_across(records, Domain.RIGHT, matrix.start, matrix.columns), _coefficients(records))
        _sum_some(out, rows, _across(records, Domain.LEFT, matrix.start, matrix.rows), rights)
    return out


# -- inner products --------------------------------------------------------------------------------------------------


@njit(cache=True)
def _take(x, row, taken, first):  # type: ignore[no-untyped-def]
    """taken[b, lane] = x[first + lane, b]: rows as lanes, zero where there is none."""
    taken[:] = 0
    low, high = max(row, first), min(row + len(x), first + _WIDTH)
    for begin in range(0, x.shape[1], TILE):  # a few columns at a time, so that their rows stay in the cache
        for a in range(low, high):
            for b in range(begin, min(x.shape[1], begin + TILE)):
                taken[b, a - first] = x[a - row, b]


@njit(cache=True)
def _products_by_table(y, tables, taken, codes):  # type: ignore[no-untyped-def]
    """y[f, lane] = <w[f], x[lane]>, for many f."""
    to, tables_at, terms_at = y.ctypes.data, tables.ctypes.data, taken.ctypes.data
    for q in range(len(codes)):
        for i in range(_TABLES):
            tables[i * _SUMS] = taken[_WORD * q + GROUP * i]
            _fill_table(tables_at + i * _SIZE, terms_at + (_WORD * q + GROUP * i) * _ROW)
        for f in range(len(y)):
            _add_four(to + f * _ROW, tables_at, codes[q, f])


@njit(cache=True)
def _products_one_by_one(y, taken, words):  # type: ignore[no-untyped-def]
    """y[f, lane] = <w[f], x[lane]>, for a few f."""
    group = np.empty(_WIDTH, np.float32)
    for g in range(len(taken) // GROUP):
        for f in range(len(y)):
            p = words[g // _TABLES, f] >> _U(GROUP * (g % _TABLES))
            for t in range(GROUP):
                sign = np.float32(-1) if (p >> t) & 1 else np.float32(1)
                for lane in range(_WIDTH):
                    term = sign * taken[GROUP * g + t, lane]
                    group[lane] = term if t == 0 else group[lane] + term
            for lane in range(_WIDTH):
                y[f, lane] += group[lane]


@njit(cache=True)
def _add_up_lanes(sums, y, lefts, first):  # type: ignore[no-untyped-def]
    """sums[f, i] = the sum over tile i's rows, one after the other, of u[f, a] y[f, a]."""
    at = y.ctypes.data
    for f in range(len(y)):
        sums[first + f, 0] = _sum_signed(at + f * _ROW, lefts[first + f])
        sums[first + f, 1] = _sum_signed(at + f * _ROW + 4 * TILE, lefts[first + f] >> _U(TILE))


@njit(cache=True, parallel=True)
def _products(sums, x, row, from_pair, words, lefts, by_table):  # type: ignore[no-untyped-def]
    """sums[i, f] = the products on tiles 2 (from_pair + i) and the next, whose rows are all that x has there."""
    count = words.shape[1]
    for i in prange(len(sums)):
        taken, tables = _rows(len(words) * _WORD), _rows(_TABLES * _SUMS)
        _take(x, row, taken, (from_pair + i) * _WIDTH)
        for first in range(0, count, _ROWS):
            own = words[:, first : first + _ROWS]
            y = _rows(own.shape[1])
            y[:] = 0
            if by_table:
                _products_by_table(y, tables, taken, own)
            else:
                _products_one_by_one(y, taken, own)
            _add_up_lanes(sums[i], y, lefts[i], first)


@njit(cache=True)
def _add_tiles(out, sums):  # type: ignore[no-untyped-def]
    for i in range(len(sums)):
        for f in range(len(out)):
            out[f] += sums[i, f, 0]
            out[f] += sums[i, f, 1]


def products(spec: Spec, first: int, count: int, matrix: Matrix, x: Floats, row: int) -> NDArray[np.float64]:
    """<u_j w_j^T, x> for the pairs of directions from `first` on, on rows from `row` on (see the reference)."""
    if not count or not len(x):
        return np.zeros(count * spec.rank)
    records = np.empty(count * spec.rank, dtype=_PAIR)
    records["key0"], records["key1"] = split_seed(spec.seed)
    records["k"], records["j"] = np.divmod(np.arange(len(records)), spec.rank)
    records["k"] += first
    words = _along(records, Domain.RIGHT, matrix.start, matrix.columns)
    if by_table := len(records) >= _MANY:
        words = _codes(words)
    out = np.zeros(len(records))
    begin, end = row // _WIDTH, -(-(row + len(x)) // _WIDTH)  # pairs of tiles
    wave = max(1, _WAVE // len(records) // 2)
    for pair in range(begin, end, wave):
        sums = np.empty((min(wave, end - pair), len(records), 2))
        lefts = _along(records, Domain.LEFT, matrix.start + pair * _WIDTH, len(sums) * _WIDTH)
        a, b = max(row, pair * _WIDTH), min(row + len(x), (pair + wave) * _WIDTH)
        _products(sums, x[a - row : b - row], a, pair, words, lefts, by_table)
        _add_tiles(out, sums)
    return out
