"""Sums of low-rank directions for CPUs: the reference's bits, with an eighth of a matrix product's
additions.

Eight outer products of signs at a time (the reference's groups): on a column there are only 2^8
sums that they can make, whichever row, and half of them are the others' negatives. So a table of
2^7 sums is made for some columns, and each row adds the entry that its eight signs name, with the
sign of the first. A projection does the same with eight columns. Four tables are at hand at a time,
so that what is added to is read and written once for four additions. Rows and columns are taken in
tiles whose tables and sums stay in the caches; tiles are independent, so threads share them out
without changing a bit. All in one file, as numba's cache does not notice a change in a function of
another one.
"""

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from fedseed.randomness.kernels.cpu import fill_words, signed
from fedseed.randomness.kernels.lowrank_reference import GROUP, PLACE, TILE, Pairs, pairs_of
from fedseed.randomness.kernels.reference import Floats, Spec
from fedseed.randomness.matrices import Matrix
from fedseed.randomness.stream import Domain

__all__ = ["products", "signs", "total"]

_WIDTH = 2 * TILE  # numbers of a table's row: columns, or rows of a matrix in a projection
_SUMS = 1 << (GROUP - 1)  # rows of a table
_TABLES = 4  # at hand at a time: their signs are the bits of a word
_WORD = 32
_LINE = 64  # bytes of a line of the cache: a row that lies across two of them takes twice as long
# rows of a matrix (or directions) that one table serves: their sums stay in the second-level cache
_ROWS = 4096
_MANY = 48  # rows from which on a table is less work than the sums themselves
_FEW = 1 << 16  # elements up to which threads would take longer to start than the work does
_WAVE = 1 << 22  # numbers that a projection keeps for tiles that are not added up yet
_U = np.uint32


@njit(cache=True)
def _rows(count):
    """Memory for `count` rows of numbers, each of which begins at a line of the cache."""
    room = np.empty(count * _WIDTH + _LINE // 4, np.float32)
    skip = -room.ctypes.data % _LINE // 4
    return room[skip : skip + count * _WIDTH].reshape(count, _WIDTH)


@njit(cache=True)
def _fill_stream(destination, pair, domain, start):
    """destination[i]: bit e is the sign bit of element start + 32 i + e of u_j or w_j."""
    first = (pair.j << PLACE) + start
    first_bit, blocks = first & 127, ((first & 127) + _WORD * destination.size + 127) >> 7
    words = np.empty((4, blocks), np.uint32)
    fill_words(words, blocks, first >> 7, domain, pair.k, pair.seed, pair.seed >> np.uint64(32))
    shift = first_bit & 31
    for i in range(destination.size):
        w = (first_bit >> 5) + i
        destination[i] = words[w & 3, w >> 2] >> _U(shift)
        if shift:
            destination[i] |= words[(w + 1) & 3, (w + 1) >> 2] << _U(32 - shift)


@njit(cache=True)
def _sign_some(words, first, last, pairs, domain, start):
    count = words.shape[1]
    stream = np.empty((count + _WORD - 1) // _WORD, np.uint32)
    for q in range(first, last):
        words[q] = _U(0)
        for t in range(min(_WORD, len(pairs) - _WORD * q)):
            _fill_stream(stream, pairs[_WORD * q + t], domain, start)
            for i in range(count):
                words[q, i] |= _U(_U(_U(stream[i >> 5] >> _U(i & 31)) & _U(1)) << _U(t))


@njit(cache=True, parallel=True)
def _sign_all(words, pairs, domain, start):
    for q in prange(len(words)):
        _sign_some(words, q, q + 1, pairs, domain, start)


def _across(pairs: Pairs, domain: Domain, start: int, count: int) -> NDArray[np.uint32]:
    """words[q, i]: bit t is the sign bit of element start + i of pair 32 q + t.

    Zero where there is no such pair.
    """
    words = np.empty((-(-len(pairs) // _WORD), count), dtype=np.uint32)
    if len(words) < 2 or words.size <= _FEW // _WORD:
        _sign_some(words, 0, len(words), pairs, int(domain), start)
    else:
        _sign_all(words, pairs, int(domain), start)
    return words


@njit(cache=True, parallel=True)
def _fill_along(words, pairs, domain, start, last):
    for f in prange(len(pairs)):
        stream = np.empty(len(words), np.uint32)
        _fill_stream(stream, pairs[f], domain, start)
        stream[-1] &= last
        words[:, f] = stream


def _along(pairs: Pairs, domain: Domain, start: int, count: int) -> NDArray[np.uint32]:
    """words[i, f]: bit e is the sign bit of element start + 32 i + e of pair f.

    Zero from element start + count on.
    """
    words = np.empty((-(-count // _WORD), len(pairs)), dtype=np.uint32)
    _fill_along(words, pairs, int(domain), start, _U(0xFFFFFFFF >> (-count % _WORD)))
    return words


@njit(cache=True)
def _codes(words):
    """Return the codes of groups (a word's bytes) for `_add_entries`: the first's sign, and the
    others' times that.
    """
    codes = np.empty_like(words)
    for q in range(len(words)):
        for i in range(words.shape[1]):
            first = words[q, i] & _U(0x01010101)
            others = _U(words[q, i] >> _U(1)) & _U(0x7F7F7F7F)
            codes[q, i] = _U(others ^ _U(first * _U(0x7F))) | _U(first << _U(7))
    return codes


@njit(cache=True)
def _signed(words, coefficients):
    """coefficient * sign for each pair and element."""
    destination = np.empty((len(coefficients), words.shape[1]), np.float32)
    for f in range(len(destination)):
        c, bit = coefficients[f], _U(f & 31)
        for i in range(words.shape[1]):
            destination[f, i] = -c if _U(words[f >> 5, i] >> bit) & _U(1) else c
    return destination


def signs(pairs: Pairs, domain: Domain, start: int, count: int) -> Floats:
    """Return signs start, start + 1, ... of every pair's factor in a domain, shape (pairs,
    count).
    """
    return _signed(_across(pairs, domain, start, count), np.ones(len(pairs), np.float32))


@njit(cache=True)
def _fill_table(table, terms):
    """table[p] = the sum of GROUP terms (rows), where bit t of p turns the sign of term t + 1."""
    table[0] = terms[0]
    for t in range(1, GROUP):
        half = 1 << (t - 1)
        for p in range(half):
            for b in range(_WIDTH):
                value = table[p, b]
                table[p, b] = value + terms[t, b]
                table[p + half, b] = value - terms[t, b]


@njit(cache=True)
def _add_entries(total, tables, codes):
    """total[a] += an entry of each of four tables, one after the other: a byte of codes[a] is its
    number and sign.
    """
    for a in range(len(total)):
        code = codes[a]
        p0, p1, p2, p3 = (
            code & _U(127),
            (code >> _U(8)) & _U(127),
            (code >> _U(16)) & _U(127),
            (code >> _U(24)) & _U(127),
        )
        for b in range(_WIDTH):
            value = total[a, b] + signed(tables[p0, b], code, 7)
            value += signed(tables[_SUMS + p1, b], code, 15)
            value += signed(tables[2 * _SUMS + p2, b], code, 23)
            total[a, b] = value + signed(tables[3 * _SUMS + p3, b], code, 31)


@njit(cache=True)
def _total_by_table(total, tables, terms, codes, rights, coefficients, lo):
    """total[a, b] for the rows of `codes` and columns lo + b.

    `rights` and `coefficients` fill whole words.
    """
    total[:] = 0
    for q in range(len(codes)):
        for i in range(_TABLES):
            for t in range(GROUP):
                c, bit = coefficients[_WORD * q + GROUP * i + t], GROUP * i + t
                for b in range(_WIDTH):
                    terms[t, b] = signed(c, rights[q, lo + b], bit)
            _fill_table(tables[i * _SUMS : (i + 1) * _SUMS], terms)
        _add_entries(total, tables, codes[q])


@njit(cache=True, parallel=True)
def _fill_by_table(destination, codes, rights, coefficients):
    """destination = the sum on its rows: tiles of _ROWS rows and _WIDTH columns, whose tables and
    sums stay in the caches.
    """
    rows, columns = destination.shape
    across, row_tiles = rights.shape[1] // _WIDTH, (rows + _ROWS - 1) // _ROWS
    for task in prange(row_tiles * across):
        first, last = rows * (task // across) // row_tiles, rows * (task // across + 1) // row_tiles
        lo = task % across * _WIDTH
        total, tables, terms = _rows(last - first), _rows(_TABLES * _SUMS), _rows(GROUP)
        _total_by_table(total, tables, terms, codes[:, first:last], rights, coefficients, lo)
        for a in range(first, last):
            for b in range(min(_WIDTH, columns - lo)):
                destination[a, lo + b] = total[a - first, b]


@njit(cache=True)
def _fill_row(destination, group, a, lefts, rights):
    """destination[b] = the sum on one row: rights[f] = coefficient * w_j, lefts[:, a] = the sign
    bits of u_j.
    """
    for first in range(0, len(rights), GROUP):
        target = group if first else destination
        for f in range(first, min(first + GROUP, len(rights))):
            right, sign = rights[f], np.float32(1 - 2 * ((lefts[f >> 5, a] >> _U(f & 31)) & 1))
            if f == first:
                for b in range(destination.size):
                    target[b] = sign * right[b]
            else:
                for b in range(destination.size):
                    target[b] += sign * right[b]
        if first:
            for b in range(destination.size):
                destination[b] += group[b]


@njit(cache=True)
def _fill_some(destination, first, last, lefts, rights):
    group = np.empty(destination.shape[1], np.float32)
    for a in range(first, last):
        _fill_row(destination[a], group, a, lefts, rights)


@njit(cache=True, parallel=True)
def _fill_together(destination, share, lefts, rights):
    for task in prange((len(destination) + share - 1) // share):
        _fill_some(
            destination, task * share, min(len(destination), (task + 1) * share), lefts, rights
        )


def total(pairs: Pairs, matrix: Matrix, first: int, last: int) -> Floats:
    """Return the sum on rows first..last of a matrix, shape (last - first, columns)."""
    destination = (np.empty if len(pairs) else np.zeros)(
        (last - first, matrix.columns), dtype=np.float32
    )
    lefts = _across(pairs, Domain.LEFT, matrix.start + first, len(destination))
    rights = _across(pairs, Domain.RIGHT, matrix.start, matrix.columns + -matrix.columns % _WIDTH)
    coefficients = np.zeros(len(rights) * _WORD, dtype=np.float32)
    coefficients[: len(pairs)] = pairs["coefficient"]
    if len(pairs) >= GROUP and len(destination) >= _MANY:
        _fill_by_table(destination, _codes(lefts), rights, coefficients)
        return destination
    signed_rights = _signed(rights[:, : matrix.columns], coefficients[: len(pairs)])
    if destination.size <= _FEW:  # threads would take longer to start
        _fill_some(destination, 0, len(destination), lefts, signed_rights)
    else:
        _fill_together(destination, max(1, (1 << 14) // matrix.columns), lefts, signed_rights)
    return destination


@njit(cache=True)
def _take(x, row, columns, first):
    """taken[b, lane] = x[first + lane, b]: rows as lanes, zero where there is none."""
    columns[:] = 0
    low, high = max(row, first), min(row + len(x), first + _WIDTH)
    # a few columns at a time, so that their rows stay in the cache
    for begin in range(0, x.shape[1], TILE):
        for a in range(low, high):
            for b in range(begin, min(x.shape[1], begin + TILE)):
                columns[b, a - first] = x[a - row, b]


@njit(cache=True, parallel=True)
def _products(sums, x, row, from_pair, codes, lefts):
    """sums[i, f] = the products on tiles 2 (from_pair + i) and the next, whose rows are all that x
    has there.
    """
    for i in prange(len(sums)):
        columns, tables = _rows(len(codes) * _WORD), _rows(_TABLES * _SUMS)
        _take(x, row, columns, (from_pair + i) * _WIDTH)
        for first in range(0, codes.shape[1], _ROWS):
            y = _rows(min(_ROWS, codes.shape[1] - first))  # y[f, lane] = <w[f], x[lane]>
            y[:] = 0
            for q in range(len(codes)):
                for t in range(_TABLES):
                    word = _WORD * q + GROUP * t
                    _fill_table(tables[t * _SUMS : (t + 1) * _SUMS], columns[word : word + GROUP])
                _add_entries(y, tables, codes[q, first:])
            for f in range(len(y)):
                for tile in range(2):
                    total, turned = 0.0, lefts[i, first + f] >> _U(TILE * tile)
                    # sum over the tile's rows, one after the other, of u[f, a] y[f, a]
                    for lane in range(TILE):
                        total += np.float64(signed(y[f, TILE * tile + lane], turned, lane))
                    sums[i, first + f, tile] = total


def products(
    spec: Spec, first: int, count: int, matrix: Matrix, x: Floats, row: int
) -> NDArray[np.float64]:
    """<u_j w_j^T, x> for the pairs of directions from `first` on, on rows from `row` on (see the
    reference).
    """
    if not count or not len(x):
        return np.zeros(count * spec.rank)
    pairs = pairs_of(spec, np.arange(first, first + count))
    codes = _codes(_along(pairs, Domain.RIGHT, matrix.start, matrix.columns))
    destination = np.zeros(len(pairs))
    begin, end = row // _WIDTH, -(-(row + len(x)) // _WIDTH)  # two tiles each
    wave = max(1, _WAVE // len(pairs) // 2)
    for two in range(begin, end, wave):
        sums = np.empty((min(wave, end - two), len(pairs), 2))
        lefts = _along(pairs, Domain.LEFT, matrix.start + two * _WIDTH, len(sums) * _WIDTH)
        a, b = max(row, two * _WIDTH), min(row + len(x), (two + wave) * _WIDTH)
        _products(sums, x[a - row : b - row], a, two, codes, lefts)
        for first_tile, second_tile in sums.transpose(0, 2, 1):
            destination += first_tile
            destination += second_tile
    return destination
