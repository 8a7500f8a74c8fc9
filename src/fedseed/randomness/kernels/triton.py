"""Operations on directions as Triton kernels: the reference's bits, on tensors where they are.

Every program works on a tile of elements that begins at a multiple of the tile's size in the global
index, so that blocks of random words are whole; what lies outside a run is masked. A tile's sum
over directions stays in registers, and the weights are read once and written once. No direction is
ever written to memory.

A Philox block is computed once and its four words go to four *pieces* of a tile. For signs a piece
has shape (32, blocks), a column per word and a row per bit; otherwise it has shape (blocks,), an
entry per word. This way a thread expands words it has made itself, and nothing is exchanged between
threads while directions are added up.

For the same bits on a GPU:

- No multiplication and addition are contracted into one rounding (`OPTIONS`), square roots are
  rounded correctly, there are no divisions and no functions of a mathematical library.
- No sum over a tile's axis is left to the compiler, whose order is its own; sums run along loops.
- bfloat16 is rounded by integer arithmetic (Triton's interpreter truncates). float16 is converted
  by the hardware, to nearest even and with denormals. 32-bit denormals are kept as well: Triton
  does not ask for flushing (old versions do for square roots, whose argument here is 0 or above
  1e-7).

Triton's interpreter runs all of it without a GPU: TRITON_INTERPRET=1, set before this module is
imported.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import accumulate, chain, groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedseed.errors import to_install
from fedseed.randomness import entries
from fedseed.randomness.kernels import reference
from fedseed.randomness.kernels.reference import SQUARES, Job, Operand, Part, Spec
from fedseed.randomness.stream import (
    MULTIPLIER_0,
    MULTIPLIER_1,
    ROUNDS,
    WEYL_0,
    WEYL_1,
    Domain,
    split_seed,
)

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(f"weights on a GPU need triton: {to_install('gpu')}") from error

TENSORS = True  # tensors in, tensors out
# on the host, where the sums of a projection come to, too
hadamard_transform = reference.hadamard_transform
product = None  # a GPU multiplies fastest by a copy
# what every launch asks of the compiler: a rounding after each operation
OPTIONS = {"enable_fp_fusion": False}

C = tl.constexpr
_KINDS = {"normal": 0, "truncated_normal": 1, "rademacher": 2, "hadamard": 3}
_NORMAL, _TRUNCATED_NORMAL, _SIGNS, _TABLE = C(0), C(1), C(2), C(3)
DTYPES = {"total": 0, "float32": 2, "float16": 3, "bfloat16": 4}
TOTAL, _SINGLE, _HALF, _BRAIN = C(0), C(2), C(3), C(4)  # a sum is written; or added to weights

_ROUNDS, _M0, _M1, _W0, _W1 = C(ROUNDS), C(MULTIPLIER_0), C(MULTIPLIER_1), C(WEYL_0), C(WEYL_1)
_LOG0, _LOG1, _LOG2, _LOG3, _LOG4, _LOG5 = (C(float(c)) for c in entries.LOG)
_SIN0, _SIN1, _SIN2, _SIN3 = (C(float(c)) for c in entries.SIN)
_COS0, _COS1, _COS2, _COS3 = (C(float(c)) for c in entries.COS)
_P0, _P1, _P2, _P3, _P4, _P5, _P6 = (C(float(c)) for c in entries.PROBIT)
_SQRT_HALF, _TWO_LN_2 = C(entries.SQRT_HALF_BITS), C(float(entries.TWO_LN_2))
_P30, _P31, _P32 = (
    C(float(entries.TWO_POW_MINUS_30)),
    C(float(entries.TWO_POW_MINUS_31)),
    C(2.0**-32),
)
_CHUNK, _SPAN, _LANES = C(entries.CHUNK), C(entries.SPAN), C(entries.LANES)

# elements that a program of `_add_up` works on
_ENTRIES_TILE, _SIGNS_TILE, _TABLE_TILE = C(1024), C(8192), C(4096)
_TILE = {0: 1024, 1: 1024, 2: 8192, 3: 4096}  # the same, by kind
_COLUMNS = 1024  # columns that a program of `_fold` works on
_DIRECTIONS = 128  # directions that a program of `_products` works on: one a thread
# sums that a projection keeps between two launches at most, or those of one run: 128 MiB
SCRATCH = 1 << 24
_ROUNDING = C(int(Domain.ROUNDING))
_ROW = C(7)  # numbers in a unit: key (two words), number, mass, bound, payload from, to
# numbers in a row of a table of jobs, after the first program's
_JOB = C(9)  # destination, source, size, start, where its sums begin, words to round by
_RUN = C(10)  # a, b, size, start, first chunk, chunks, unit, products, where they go
_SUM = C(5)  # first number, rows, their width, where the sum goes


class _Target(NamedTuple):
    """The place of a block's sum of products over all of its runs."""

    unit: int  # where its numbers begin
    width: int  # products of a span
    sum_start: int  # where the sum goes


# -- entries
# ------------------------------------------------------------------------------------------------


@triton.jit
def philox_words(block, k, domain, key0, key1):
    """Return four words of Philox blocks.

    `block` (int64) and `k` (uint32) are scalars or tiles that broadcast.
    """
    c0 = block.to(tl.uint32)
    c1 = (block >> 32).to(tl.uint32)
    c2 = k
    c3 = domain
    key0 = key0.to(tl.uint64)  # products and keys have 64 bits: nothing overflows
    key1 = key1.to(tl.uint64)
    for _ in tl.static_range(_ROUNDS):
        product0 = c0.to(tl.uint64) * _M0
        product1 = c2.to(tl.uint64) * _M1
        c0 = (product1 >> 32).to(tl.uint32) ^ c1 ^ key0.to(tl.uint32)
        c1 = product1.to(tl.uint32)
        c2 = (product0 >> 32).to(tl.uint32) ^ c3 ^ key1.to(tl.uint32)
        c3 = product0.to(tl.uint32)
        key0 += _W0
        key1 += _W1
    return c0, c1, c2, c3


@triton.jit
def signed(value, word, bit):
    """`value`, its sign changed where the bit is 1."""
    sign = (word << (31 - bit)) & 0x80000000
    return (value.to(tl.uint32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def _box_muller(u, v):
    """Two normal entries from two words; the reference explains each line."""
    f = (u >> 1).to(tl.int32).to(tl.float32) + 0.5
    bits = f.to(tl.int32, bitcast=True) - _SQRT_HALF
    s = ((bits & 0x7FFFFF) + _SQRT_HALF).to(tl.float32, bitcast=True) - 1.0
    square = s * s
    p = ((((_LOG5 * s + _LOG4) * s + _LOG3) * s + _LOG2) * s + _LOG1) * s + _LOG0
    log = (s - 0.5 * square) + (square * s) * p
    q = (31 - (bits >> 23)).to(tl.float32) * _TWO_LN_2 - 2.0 * log
    radius = tl.sqrt_rn(tl.where(q > 0.0, q, 0.0))
    x = ((v & 0x3FFFFFFF).to(tl.int32) - 0x20000000).to(tl.float32) * _P30
    square = x * x
    sine = x * (((_SIN3 * square + _SIN2) * square + _SIN1) * square + _SIN0)
    cosine = ((_COS3 * square + _COS2) * square + _COS1) * square + _COS0
    # quarter = top two bits: swap for an odd one; signs + - - + and + + - -
    odd = (v & 0x40000000) != 0
    first = signed(tl.where(odd, sine, cosine), (v >> 31) ^ (v >> 30), 0)
    second = signed(tl.where(odd, cosine, sine), v >> 31, 0)
    return radius * first, radius * second


@triton.jit
def _truncated(word, mass, bound):
    y = (word.to(tl.int32, bitcast=True).to(tl.float32) * _P31) * mass
    square = y * y
    p = (
        ((((_P6 * square + _P5) * square + _P4) * square + _P3) * square + _P2) * square + _P1
    ) * square + _P0
    value = y * p
    value = tl.where(value > bound, bound, value)
    return tl.where(value < -bound, -bound, value)


@triton.jit
def _draw_entries(block, k, key0, key1, mass, bound, KIND: tl.constexpr):
    """Return the four entries of blocks of a `normal` or `truncated_normal` direction."""
    w0, w1, w2, w3 = philox_words(block, k, 0, key0, key1)
    if KIND == _NORMAL:
        e0, e1 = _box_muller(w0, w1)
        e2, e3 = _box_muller(w2, w3)
    else:
        e0, e1 = _truncated(w0, mass, bound), _truncated(w1, mass, bound)
        e2, e3 = _truncated(w2, mass, bound), _truncated(w3, mass, bound)
    return e0, e1, e2, e3


# -- sums of directions
# --------------------------------------------------------------------------------------------


@triton.jit
def _unit(place):
    """Return a unit's key (two words), number, mass and bound."""
    key0 = tl.load(place).to(tl.uint32, bitcast=True)
    key1 = tl.load(place + 1).to(tl.uint32, bitcast=True)
    number = tl.load(place + 2).to(tl.uint32, bitcast=True)
    mass = tl.load(place + 3).to(tl.float32, bitcast=True)
    bound = tl.load(place + 4).to(tl.float32, bitcast=True)
    return key0, key1, number, mass, bound


@triton.jit
def job_of(table, jobs, WIDTH: tl.constexpr):
    """Return the row of a table, `WIDTH` wide, that this program works on: the last whose first
    program it is.
    """
    program = tl.program_id(0)
    lo = program * 0
    hi = lo + jobs
    while hi - lo > 1:
        middle = (lo + hi) // 2
        is_before = tl.load(table + WIDTH * middle.to(tl.int64)) <= program
        lo = tl.where(is_before, middle, lo)
        hi = tl.where(is_before, hi, middle)
    row = table + WIDTH * lo.to(tl.int64)
    return row, program - tl.load(row)


@triton.jit
def pointer(place, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the address that a table has at `place`. 16-bit dtypes are given as their bits."""
    address = tl.load(place)
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address.to(tl.pointer_type(tl.float32 if DTYPE <= _SINGLE else tl.int16))


@triton.jit
def read_weights(x, p, inside, DTYPE: tl.constexpr):
    """Read weights in single precision; 0 outside of the tensor."""
    value = tl.load(x + p, mask=inside, other=0)
    if DTYPE == _HALF:
        value = value.to(tl.float16, bitcast=True).to(tl.float32)
    elif DTYPE == _BRAIN:
        value = (value.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return value


@triton.jit
def _round_to(value, word, DTYPE: tl.constexpr, DRAW: tl.constexpr):
    """Round to the nearest number that the dtype can hold.

    With `DRAW` one of the two next to it, by a random word.
    """
    if DTYPE == _BRAIN:
        bits = value.to(tl.uint32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        if DRAW:  # the upper half of the word is added to the magnitude, below zero its complement
            kept_bits = (magnitude + ((word >> 16) ^ ((bits >> 31) * 0xFFFF))) & 0xFFFF0000
            kept_bits = tl.where(
                kept_bits == 0, 0, kept_bits | (bits & 0x80000000)
            )  # a zero has no sign
        else:
            kept_bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        kept_bits = tl.where(
            magnitude > 0x7F800000, 0x7FC00000, kept_bits
        )  # one of the many ways to say NaN
        value = kept_bits.to(tl.uint32).to(tl.float32, bitcast=True)
    elif DTYPE == _HALF:
        if DRAW:  # floor(value / spacing + word / 2^32) * spacing, in doubles
            exponent = (value.to(tl.int32, bitcast=True) >> 23) & 0xFF
            exponent = tl.maximum(exponent, 127 - 14)
            spacing = ((exponent - 10) << 23).to(tl.float32, bitcast=True).to(tl.float64)
            inverse = ((264 - exponent) << 23).to(tl.float32, bitcast=True).to(tl.float64)
            whole = tl.floor(value.to(tl.float64) * inverse + word.to(tl.float64) * _P32)
            value = (whole * spacing).to(tl.float32)
        value = value.to(tl.float16).to(tl.float32)
    return value


@triton.jit
def write_weights(destination, p, inside, value, DTYPE: tl.constexpr):
    """Write numbers that the dtype can hold into weights."""
    if DTYPE == _HALF:
        tl.store(destination + p, value.to(tl.float16).to(tl.int16, bitcast=True), mask=inside)
    elif DTYPE == _BRAIN:
        tl.store(
            destination + p, (value.to(tl.uint32, bitcast=True) >> 16).to(tl.int16), mask=inside
        )
    else:
        tl.store(destination + p, value, mask=inside)


@triton.jit
def _word_of(element, words):
    """Return the random word by which an element is rounded.

    `words` are the step and the key's words.
    """
    turn, key0, key1 = tl.load(words), tl.load(words + 1), tl.load(words + 2)
    w0, w1, w2, w3 = philox_words(
        element >> 2, turn.to(tl.uint32), _ROUNDING, key0.to(tl.uint32), key1.to(tl.uint32)
    )
    i = element & 3
    return tl.where(i == 0, w0, tl.where(i == 1, w1, tl.where(i == 2, w2, w3)))


@triton.jit
def move_value(old, total, scale, element, words, DTYPE: tl.constexpr, DRAW: tl.constexpr):
    """Return a sum, or weights with scale * total added."""
    if DTYPE == TOTAL:
        value = total
    else:
        word = element
        if DRAW and DTYPE != _SINGLE:
            word = _word_of(element, words)
        value = _round_to(old + (total * scale + 0.0), word, DTYPE, DRAW)  # + 0.0: no negative zero
    return value


@triton.jit(do_not_specialize=["jobs", "scale_bits"])
def _add_up(table, sums, jobs, scale_bits, HOW: tl.constexpr):
    """Move a tile of one of the jobs of a table by the sums over all units of its steps.

    A job's run has `size` elements, the first of which is element `start` of the vector. Each step
    is rounded. `HOW`: kind + 4 dtype + 32 for words to round by + 64 where all addresses, sizes and
    starts are multiples of 16.
    """
    kind: tl.constexpr = HOW % 4
    dtype: tl.constexpr = HOW // 4 % 8
    draws: tl.constexpr = HOW // 32 % 2
    aligned: tl.constexpr = HOW // 64
    whole: tl.constexpr = (
        _SIGNS_TILE if kind == _SIGNS else _TABLE_TILE if kind == _TABLE else _ENTRIES_TILE
    )
    width: tl.constexpr = _ENTRIES_TILE if draws else whole  # each element's word takes registers
    row, tile = job_of(table, jobs, _JOB)
    destination = pointer(row + 1, dtype, aligned)
    source = pointer(row + 2, dtype, aligned)
    size = tl.load(row + 3)
    begin = tl.load(row + 4)
    if aligned:
        size = tl.multiple_of(size, 16)
        begin = tl.multiple_of(begin, 16)
    prepared = sums + tl.multiple_of(tl.load(row + 5), 32)
    tile += begin // width
    first_element = tile * width - begin
    # entries that a block of words makes
    per_block: tl.constexpr = 128 if kind >= _SIGNS else 4
    blocks: tl.constexpr = width // per_block
    b = tl.arange(0, blocks)
    bit = 0
    none = tl.full((blocks,), 0.0, tl.float32)
    # a column per block, because threads are dealt out along rows: a block's words stay in one
    if kind >= _SIGNS:
        b = b[None, :]
        bit = tl.arange(0, 32)[:, None]
        none = tl.full((32, blocks), 0.0, tl.float32)
    block = tile * blocks + b
    offset = per_block * b + bit  # the first piece's elements
    if kind >= _SIGNS:
        p0 = first_element + offset
        p1, p2, p3 = p0 + 32, p0 + 64, p0 + 96
        in0, in1 = (p0 >= 0) & (p0 < size), (p1 >= 0) & (p1 < size)
        in2, in3 = (p2 >= 0) & (p2 < size), (p3 >= 0) & (p3 < size)
        v0, v1, v2, v3 = none, none, none, none
        if dtype != TOTAL:
            v0, v1 = read_weights(source, p0, in0, dtype), read_weights(source, p1, in1, dtype)
            v2, v3 = read_weights(source, p2, in2, dtype), read_weights(source, p3, in3, dtype)
    else:  # the entries of a block side by side, so that reads and writes are not scattered
        p = first_element + 4 * b[:, None] + tl.arange(0, 4)[None, :]
        inside = (p >= 0) & (p < size)
        v = tl.full((blocks, 4), 0.0, tl.float32)
        if dtype != TOTAL:
            v = read_weights(source, p, inside, dtype)

    steps = tl.load(prepared)
    for step in range(steps):
        units = prepared + tl.load(prepared + 1 + 2 * step)
        # this one, or the launch's, is 1
        step_scale = tl.load(prepared + 2 + 2 * step).to(tl.float32, bitcast=True)
        scale = scale_bits.to(tl.float32, bitcast=True) * step_scale
        t0, t1, t2, t3 = none, none, none, none
        for u in range(tl.load(units)):
            unit = units + 1 + _ROW * u
            unit0, unit1, number, mass, bound = _unit(unit)
            low = tl.load(unit + 5)
            high = tl.load(unit + 6)
            if kind == _TABLE:
                w0, w1, w2, w3 = philox_words(block, number, 1, unit0, unit1)
                # a table is at least as wide as a tile, and both are powers of two: the tile's
                # columns are one run
                column = (
                    prepared
                    + tl.multiple_of(low + ((tile * width) & (high - low - 1)), 32)
                    + offset
                )
                t0 += signed(tl.load(column), w0, bit)
                t1 += signed(tl.load(column + 32), w1, bit)
                t2 += signed(tl.load(column + 64), w2, bit)
                t3 += signed(tl.load(column + 96), w3, bit)
            else:
                for j in range(low, high, 2):
                    k = tl.load(prepared + j).to(tl.uint32, bitcast=True)
                    coefficient = tl.load(prepared + j + 1).to(tl.float32, bitcast=True)
                    if kind == _SIGNS:
                        w0, w1, w2, w3 = philox_words(block, k, 0, unit0, unit1)
                        t0 += signed(coefficient, w0, bit)
                        t1 += signed(coefficient, w1, bit)
                        t2 += signed(coefficient, w2, bit)
                        t3 += signed(coefficient, w3, bit)
                    else:
                        e0, e1, e2, e3 = _draw_entries(block, k, unit0, unit1, mass, bound, kind)
                        t0 += coefficient * e0
                        t1 += coefficient * e1
                        t2 += coefficient * e2
                        t3 += coefficient * e3
        if kind >= _SIGNS:
            v0 = move_value(v0, t0, scale, begin + p0, row + 6, dtype, draws)
            v1 = move_value(v1, t1, scale, begin + p1, row + 6, dtype, draws)
            v2 = move_value(v2, t2, scale, begin + p2, row + 6, dtype, draws)
            v3 = move_value(v3, t3, scale, begin + p3, row + 6, dtype, draws)
        else:
            total = tl.reshape(tl.join(tl.join(t0, t2), tl.join(t1, t3)), (blocks, 4))
            v = move_value(v, total, scale, begin + p, row + 6, dtype, draws)

    if kind >= _SIGNS:
        write_weights(destination, p0, in0, v0, dtype)
        write_weights(destination, p1, in1, v1, dtype)
        write_weights(destination, p2, in2, v2, dtype)
        write_weights(destination, p3, in3, v3, dtype)
    else:
        write_weights(destination, p, inside, v, dtype)


@triton.jit(do_not_specialize=["size"])
def _draw(destination, values, words, size, start, DTYPE: tl.constexpr, TILE: tl.constexpr):
    """Values, rounded up or down by the words of elements start, start + 1, ..."""
    p = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    word = _word_of(p + start, words)
    value = tl.load(values + p, mask=p < size, other=0.0)
    write_weights(destination, p, p < size, _round_to(value, word, DTYPE, True), DTYPE)


# -- inner products
# ------------------------------------------------------------------------------------------------


@triton.jit
def _run_of(row, A: tl.constexpr, B: tl.constexpr):
    """Return a run's operands, its size, and the index of its first element."""
    return (
        pointer(row + 1, A, False),
        pointer(row + 2, B, False),
        tl.load(row + 3),
        tl.load(row + 4),
    )


@triton.jit
def _difference(a, b, p, size, A: tl.constexpr, B: tl.constexpr):
    """a[p] - b[p] in single precision, or a[p] where there is no b; 0 outside of the run."""
    inside = (p >= 0) & (p < size)
    x = read_weights(a, p, inside, A)
    if B != TOTAL:
        x -= read_weights(b, p, inside, B)
    return x


@triton.jit
def _four(a, b, p, step, size, A: tl.constexpr, B: tl.constexpr):
    """Elements p, p + step, p + 2 step and p + 3 step of a difference."""
    x0, x1 = _difference(a, b, p, size, A, B), _difference(a, b, p + step, size, A, B)
    x2, x3 = (
        _difference(a, b, p + 2 * step, size, A, B),
        _difference(a, b, p + 3 * step, size, A, B),
    )
    return x0, x1, x2, x3


@triton.jit
def _lane(lanes, lane_numbers, i):
    """Row i of `lanes` in double precision.

    All other rows are zero in this sum, so its order does not matter.
    """
    return tl.sum(tl.where(lane_numbers == i, lanes, 0.0), axis=0).to(tl.float64)


@triton.jit(do_not_specialize=["jobs", "split"])
def _products(table, units, sums, jobs, split, HOW: tl.constexpr, DIRECTIONS: tl.constexpr):
    """Products of a part of a run that lies in one span with directions: of each chunk (`split`),
    or added up.

    a thread has a direction of its own and all lanes of it. `HOW`: kind + 4 dtype of a + 32 dtype
    of b.
    """
    kind: tl.constexpr = HOW % 4
    of_a: tl.constexpr = HOW // 4 % 8
    of_b: tl.constexpr = HOW // 32
    row, mine = job_of(table, jobs, _RUN)
    a, b, size, start = _run_of(row, of_a, of_b)
    count = tl.load(row + 8)
    tiles = (count + DIRECTIONS - 1) // DIRECTIONS
    c = mine // tiles
    j = (mine % tiles) * DIRECTIONS + tl.arange(0, DIRECTIONS)
    key0, key1, first, mass, bound = _unit(units + tl.load(row + 7))
    k = (j.to(tl.uint32) + first)[None, :]
    begin = tl.load(row + 5) + c
    total = tl.full((DIRECTIONS,), 0.0, tl.float64)
    for i in range(tl.where(split != 0, 1, tl.load(row + 6))):
        chunk = begin + i
        first_element = chunk * _CHUNK - start  # the chunk's beginning in the run
        # add only the elements of this chunk that are inside the run
        lo = tl.maximum(-first_element, 0)
        hi = tl.minimum(size - first_element, _CHUNK)
        chunk_total = tl.full((DIRECTIONS,), 0.0, tl.float64)
        if kind == _SIGNS:
            lane = tl.arange(0, 32)[:, None]
            lanes = tl.full((32, DIRECTIONS), 0.0, tl.float32)
            for r in range(lo // 128, (hi + 127) // 128):
                w0, w1, w2, w3 = philox_words(chunk * (_CHUNK // 128) + r, k, 0, key0, key1)
                x0, x1, x2, x3 = _four(a, b, first_element + 128 * r + lane, 32, size, of_a, of_b)
                lanes += signed(x0, w0, lane)
                lanes += signed(x1, w1, lane)
                lanes += signed(x2, w2, lane)
                lanes += signed(x3, w3, lane)
            for lane_index in tl.static_range(_LANES):
                chunk_total += _lane(lanes, lane, lane_index)
        else:
            four = tl.arange(0, 8)[:, None]
            t0 = tl.full((8, DIRECTIONS), 0.0, tl.float32)
            t1, t2, t3 = t0, t0, t0
            for r in range(lo // 32, (hi + 31) // 32):
                block = chunk * (_CHUNK // 4) + 8 * r + four
                e0, e1, e2, e3 = _draw_entries(block, k, key0, key1, mass, bound, kind)
                x0, x1, x2, x3 = _four(a, b, first_element + 32 * r + 4 * four, 1, size, of_a, of_b)
                t0 += e0 * x0
                t1 += e1 * x1
                t2 += e2 * x2
                t3 += e3 * x3
            for lane_index in tl.static_range(8):
                chunk_total += _lane(t0, four, lane_index)
                chunk_total += _lane(t1, four, lane_index)
                chunk_total += _lane(t2, four, lane_index)
                chunk_total += _lane(t3, four, lane_index)
        total += chunk_total
    tl.store(sums + tl.load(row + 9) + c * count + j, total, mask=j < count)


@triton.jit(do_not_specialize=["jobs"])
def _squares(table, units, sums, jobs, HOW: tl.constexpr, CHUNK: tl.constexpr):
    """Add up the squares of a chunk of a run in double precision. `HOW`: that of `_products`."""
    row, c = job_of(table, jobs, _RUN)
    a, b, size, start = _run_of(row, HOW // 4 % 8, HOW // 32)
    p = (tl.load(row + 5) + c) * CHUNK - start + tl.arange(0, CHUNK)
    x = _difference(a, b, p, size, HOW // 4 % 8, HOW // 32).to(tl.float64)
    tl.store(sums + tl.load(row + 9) + c, tl.sum(x * x, axis=0))


@triton.jit(do_not_specialize=["jobs"])
def _fold(table, units, sums, jobs, A: tl.constexpr, B: tl.constexpr, COLUMNS: tl.constexpr):
    """sums[j] = sum of D[i] x[i] over the elements of a run in one span with i mod width = j, in
    order.
    """
    row, mine = job_of(table, jobs, _RUN)
    a, b, size, start = _run_of(row, A, B)
    width = tl.load(row + 8)
    key0, key1, number, _, _ = _unit(units + tl.load(row + 7))
    begin = tl.load(row + 5) * _CHUNK // _SPAN * _SPAN  # the span's first element
    first_element = begin - start
    blocks: tl.constexpr = COLUMNS // 128
    eighth = tl.arange(0, blocks)[None, :]
    bit = tl.arange(0, 32)[:, None]
    column = mine * COLUMNS + 128 * eighth + bit
    block = (begin + mine * COLUMNS) // 128 + eighth
    t0 = tl.full((32, blocks), 0.0, tl.float32)
    t1, t2, t3 = t0, t0, t0
    lo = tl.maximum(-first_element, 0)
    hi = tl.minimum(size - first_element, _SPAN)
    for r in range(lo // width, (hi + width - 1) // width):
        w0, w1, w2, w3 = philox_words(block + r * (width // 128), number, 1, key0, key1)
        x0, x1, x2, x3 = _four(a, b, first_element + r * width + column, 32, size, A, B)
        t0 += signed(x0, w0, bit)
        t1 += signed(x1, w1, bit)
        t2 += signed(x2, w2, bit)
        t3 += signed(x3, w3, bit)
    target = sums + tl.load(row + 9) + column
    tl.store(target, t0.to(tl.float64))
    tl.store(target + 32, t1.to(tl.float64))
    tl.store(target + 64, t2.to(tl.float64))
    tl.store(target + 96, t3.to(tl.float64))


@triton.jit(do_not_specialize=["jobs"])
def _add_rows(table, sums, destination, jobs, COLUMNS: tl.constexpr):
    """destination += the rows of `sums`, one after the other in double precision, for each job of a
    table.
    """
    row, tile = job_of(table, jobs, _SUM)
    count = tl.load(row + 3)
    j = tile * COLUMNS + tl.arange(0, COLUMNS)
    inside = j < count
    row_of_sums = sums + tl.load(row + 1) + j
    target = destination + tl.load(row + 4) + j
    total = tl.load(target, mask=inside, other=0.0)
    for _ in range(tl.load(row + 2)):
        total += tl.load(row_of_sums, mask=inside, other=0.0)
        row_of_sums += count
    tl.store(target, total, mask=inside)


# -- the host's side
# -----------------------------------------------------------------------------------------------


def _interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels."""
    return not isinstance(_add_up, triton.runtime.JITFunction)


def default_device() -> torch.device:
    """Return the device for results that are computed from no tensor."""
    there_is_one = torch.cuda.is_available() and not _interpreted()
    return (
        torch.device("cuda", torch.cuda.current_device()) if there_is_one else torch.device("cpu")
    )


def launch(
    kernel: Any, grid: tuple[int, ...], *args: Any, warps: int = 4, **constants: Any
) -> None:
    """Run a kernel on the device of its first argument, each operation with a rounding of its
    own.
    """
    device = args[0].device
    if _interpreted():
        # words wrap round, float16 overflows to infinity: as they should
        with np.errstate(all="ignore"):
            kernel[grid](*args, **constants)
        return
    if device.type == "cpu":
        raise RuntimeError(
            "Triton's kernels need a GPU, or TRITON_INTERPRET=1 in the environment when Python "
            "starts"
        )
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](*args, num_warps=warps, **OPTIONS, **constants)


def int_bits(value: Any, dtype: Any = np.float32) -> int:
    """Return the 32 bits of a float or an unsigned word as an int32: always of the same type to
    the compiler.
    """
    return int(np.array(value, dtype=dtype).view(np.int32))


class Prepared:
    """The sums of one step or more as the kernels take them.

    Copied to a device when first used there, and kept.

    Args:
        kind: of all parts.
        numbers: 32-bit numbers: how many steps there are; where the units of each begin, and its
            scale's bits; units of each, after their number; and, from a multiple of 32 on,
            coefficients (pairs of a direction's index and its coefficient's bits) or tables, one
            after the other. Their count is a multiple of 32.
    """

    def __init__(self, kind: int, numbers: NDArray[np.int32]) -> None:
        self.kind = kind
        self.numbers = numbers
        self._copies: dict[torch.device, torch.Tensor] = {}

    def on_device(self, device: torch.device) -> torch.Tensor:
        """Return the numbers on a device."""
        if device not in self._copies:
            self._copies[device] = to_device(self.numbers, device)
        return self._copies[device]


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array as a tensor on a device, by an asynchronous copy."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def _unit_head(spec: Spec, number: int, length: int) -> list[int]:
    """Return the numbers that `_unit` reads.

    They are bits of the key's words, a number, and bits of erf(a / sqrt 2) and a.
    """
    words = (*split_seed(spec.seed), number)
    limits = (
        reference.truncated_normal_constants(length)
        if spec.name == "truncated_normal"
        else (0.0, 0.0)
    )
    return [*(int_bits(word, np.uint32) for word in words), *map(int_bits, limits)]


def prepare_steps(steps: Sequence[tuple[Sequence[Part], float]], length: int) -> Prepared:
    """Prepare (parts of one kind, scale) of each step in a block of `length` elements, for
    `move_all`.
    """
    all_parts = chain.from_iterable(parts for parts, _ in steps)
    kind = _KINDS[next((part.spec.name for part in all_parts), "rademacher")]
    units = [_units(kind, parts, length) for parts, _ in steps]
    head, position_of_units = [len(steps)], 1 + 2 * len(steps)
    for units_of_step, (_, scale) in zip(units, steps, strict=True):
        head += [position_of_units, int_bits(scale)]
        position_of_units += 1 + _ROW.value * len(units_of_step)
    position = -(-position_of_units // 32) * 32
    payloads = []
    for units_of_step in units:
        head.append(len(units_of_step))
        for head_of_unit, payload in units_of_step:
            head += [*head_of_unit, position, position + len(payload)]
            position += len(payload)
            payloads.append(payload)
    numbers = np.zeros(-(-position // 32) * 32, dtype=np.int32)
    numbers[: len(head)] = head
    if payloads:
        numbers[-(-position_of_units // 32) * 32 : position] = np.concatenate(payloads)
    return Prepared(kind, numbers)


def _units(
    kind: int, parts: Sequence[Part], length: int
) -> list[tuple[list[int], NDArray[np.int32]]]:
    """Return the numbers that `_unit` reads, and the payload, for each unit of a sum."""
    units = []
    for spec, first, coefficients in parts:
        if spec.name == "hadamard":
            for number, table in reference.hadamard_tables(spec.tile, first, coefficients):
                # small tables side by side: see `_add_up`
                wide = np.tile(table, max(1, _TILE[kind] // spec.tile))
                units.append((_unit_head(spec, number, length), wide.view(np.int32)))
        else:
            values = np.ascontiguousarray(coefficients, dtype=np.float32)
            # the reference skips zeros; to add +-0 to a sum that began with +0 would change nothing
            nonzero = np.flatnonzero(values)
            pairs = np.stack(
                [
                    (nonzero + first).astype(np.uint32).view(np.int32),
                    values[nonzero].view(np.int32),
                ],
                axis=1,
            )
            if len(nonzero):
                units.append((_unit_head(spec, 0, length), pairs.reshape(-1)))
    return units


def table_of(
    rows: Sequence[Sequence[int]], programs: Sequence[int], device: torch.device
) -> tuple[torch.Tensor, int]:
    """Return a table of jobs on a device, each row after its first program's number, and the
    number of programs.
    """
    ends = np.cumsum(programs, dtype=np.int64)
    table = np.concatenate([(ends - programs)[:, None], np.array(rows, dtype=np.int64)], axis=1)
    return to_device(table, device), int(ends[-1])


def join_arrays(arrays: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], dict[int, int]]:
    """Different arrays one after the other; and where each begins, by its id."""
    distinct = {id(array): array for array in arrays}
    ends = accumulate(map(len, distinct.values()))
    begins = {
        name: end - len(array) for (name, array), end in zip(distinct.items(), ends, strict=True)
    }
    return np.concatenate(list(distinct.values())), begins


def move_all(jobs: Sequence[Job], scale: float, rounding: tuple[int, int] | None = None) -> None:
    """`structured.Kernels.move_all` but for matrices: one launch for all of a dtype and kind.

    Raises ValueError if a tensor has gaps in memory.
    """
    groups: dict[tuple[torch.device, str, int], list[Job]] = {}
    for job in jobs:
        if not (job.destination.is_contiguous() and job.source.is_contiguous()):
            raise ValueError("Triton's kernels need contiguous tensors")
        if len(job.destination):
            groups.setdefault((job.destination.device, job.dtype, job.prepared.kind), []).append(
                job
            )
    for (device, dtype, kind), group in groups.items():
        one = group[0].prepared
        if all(job.prepared is one for job in group):
            numbers, begins = one.on_device(device), {id(one.numbers): 0}
        else:
            together, begins = join_arrays([job.prepared.numbers for job in group])
            numbers = to_device(together, device)
        words = rounding_words(rounding)
        rows = [
            (
                job.destination.data_ptr(),
                job.source.data_ptr(),
                len(job.destination),
                job.start,
                begins[id(job.prepared.numbers)],
                *words,
            )
            for job in group
        ]
        tile = _TILE[kind] if rounding is None else _ENTRIES_TILE.value
        table, programs = table_of(
            rows, [-(-(row[3] + row[2]) // tile) - row[3] // tile for row in rows], device
        )
        aligned = is_aligned(row[:4] for row in rows)
        launch(
            _add_up,
            (programs,),
            table,
            numbers,
            len(group),
            int_bits(scale),
            HOW=kind + 4 * DTYPES[dtype] + move_flags(rounding, aligned),
        )


def is_aligned(rows: Iterable[Sequence[int]]) -> bool:
    """Return whether all addresses, sizes and starts are multiples of 16."""
    return all(number % 16 == 0 for number in chain.from_iterable(rows))


def move_flags(rounding: tuple[int, int] | None, aligned: bool) -> int:
    """Return the part of `HOW` that says how a move rounds (32) and that it is aligned (64)."""
    flags = 64 if aligned else 0
    if rounding is not None:
        flags += 32
    return flags


def rounding_words(rounding: tuple[int, int] | None) -> list[int]:
    """Return the step and the key's words that numbers are rounded by."""
    seed, step = rounding or (0, 0)
    return [step, *map(int, split_seed(seed))]


def empty(count: int) -> torch.Tensor:
    """Memory for `count` numbers in single precision, on the GPU if there is one."""
    return torch.empty(count, dtype=torch.float32, device=default_device())


def draw(
    destination: torch.Tensor,
    values: torch.Tensor,
    dtype: str,
    rounding: tuple[int, int],
    start: int,
) -> None:
    """destination = values rounded up or down, by the random words of elements start, start + 1,
    ...
    """
    if len(destination):
        words = to_device(np.array(rounding_words(rounding), dtype=np.int64), destination.device)
        arguments = (
            destination.view(torch.int16),
            values.contiguous(),
            words,
            len(destination),
            start,
        )
        launch(_draw, (-(-len(destination) // 1024),), *arguments, DTYPE=DTYPES[dtype], TILE=1024)


def project_sums(
    spec: Spec, first: int, count: int, x: torch.Tensor | NDArray[Any], start: int, length: int
) -> torch.Tensor:
    """Return the part of a projection that adds up over runs of elements (see the reference),
    where x is.
    """
    if not isinstance(x, torch.Tensor):
        x = torch.from_numpy(np.require(x, dtype=np.float32, requirements=["C", "W"]))
    device = x.device if x.is_cuda else default_device()
    run = Operand(x.detach().reshape(-1).to(device).contiguous(), None, start, 0, count, length)
    return _project_runs(spec, first, [run])[0]


def project_all(spec: Spec, first: int, runs: Sequence[Operand]) -> dict[int, NDArray[np.float64]]:
    """Return `project_sums` of all runs of each block, added up in order.

    `SQUARES`: of each block's squares.

    Args:
        spec: the basis.
        first: index of the first direction.
        runs: at least one; contiguous tensors on one device.

    Returns:
        By block: float64, on the host, which waits once.
    """
    result, parts = _project_runs(spec, first, runs)
    sums = result.cpu().numpy()
    return {block: sums[part] for block, part in parts.items()}


def _project_runs(
    spec: Spec, first: int, runs: Sequence[Operand]
) -> tuple[torch.Tensor, dict[int, slice]]:
    """Return the sums of all blocks, one after the other, and the slice of each block's sums."""
    folds, size = spec.name == "hadamard", 0
    units: list[int] = []
    by_block: dict[int, list[Operand]] = {}
    for run in runs:
        by_block.setdefault(run.block, []).append(run)
    work, parts = [], {}
    for block, block_runs in by_block.items():
        count, begin = block_runs[0].directions, size
        for number in (
            range(first // spec.tile, -(-(first + count) // spec.tile)) if folds else [first]
        ):
            target = _Target(len(units), max(spec.tile, entries.CHUNK) if folds else count, size)
            units += _unit_head(spec, number, block_runs[0].length)
            size += spec.tile if folds else count
            work += [(target, run) for run in block_runs if len(run.a) and target.width]
        parts[block] = slice(begin, size)
    device = runs[0].a.device
    result = torch.zeros(size, dtype=torch.float64, device=device)
    numbers = to_device(np.array(units or [0], dtype=np.int32), device)
    chunks = sum(target.width * (len(run.a) // entries.CHUNK + 2) for target, run in work)
    split, wave, pending = not folds and (chunks <= SCRATCH or spec == SQUARES), [], 0
    for target, run in work:
        wave.append((target, run))
        pending += target.width * (len(run.a) // entries.SPAN + 2)
        if pending > SCRATCH:
            _project_wave(spec, wave, numbers, split, result)
            wave, pending = [], 0
    _project_wave(spec, wave, numbers, split, result)
    return result, parts


def _address_of(tensor: torch.Tensor | None) -> int:
    """Return the address of an operand's numbers; 0 if there is none."""
    if tensor is None:
        return 0
    return tensor.data_ptr()


def _dtype_of(tensor: torch.Tensor | None) -> int:
    """Return the number of an operand's dtype for the kernels; "total" if there is none."""
    if tensor is None:
        return DTYPES["total"]
    return DTYPES[str(tensor.dtype).removeprefix("torch.")]


def _project_wave(
    spec: Spec,
    wave: Sequence[tuple[_Target, Operand]],
    units: torch.Tensor,
    split: bool,
    result: torch.Tensor,
) -> None:
    """Add products of runs to `result`.

    The products are computed for each span of a run, or with `split` for each chunk, and then added
    up.
    """
    if not wave:
        return
    folds, device = spec.name == "hadamard", result.device
    tile = min(_DIRECTIONS, 1 << (max(target.width for target, _ in wave) - 1).bit_length())
    # the rows of each table of jobs and their programs, by dtypes
    products: dict[tuple[int, int], tuple[list[tuple[int, ...]], list[int]]] = {}
    chunks_up, spans_up, folded, runs_up = _Sums(), _Sums(), _Sums(), _Sums()
    for target, run in wave:
        places = _address_of(run.a), _address_of(run.b)
        dtypes = _dtype_of(run.a), _dtype_of(run.b)
        rows, programs = products.setdefault(dtypes, ([], []))
        position, stop, spans = run.start, run.start + len(run.a), 0
        while position < stop:
            end = min(stop, (position // entries.SPAN + 1) * entries.SPAN)
            chunks = -(-end // entries.CHUNK) - position // entries.CHUNK
            if split:
                sums_start = chunks_up.add(chunks, target.width)
            else:
                sums_start = spans_up.length + spans * target.width
            rows.append(
                (
                    *places,
                    len(run.a),
                    run.start,
                    position // entries.CHUNK,
                    chunks,
                    *target[:2],
                    sums_start,
                )
            )
            if folds:
                programs.append(target.width // _COLUMNS)
            else:
                programs.append((chunks if split else 1) * -(-target.width // tile))
            position, spans = end, spans + 1
        spans_up.add(spans, target.width)
        if folds:  # small tables lie side by side
            folded.add(target.width // spec.tile, spec.tile)
    for target, group in groupby(target for target, _ in wave):
        runs_up.add(len(list(group)), spec.tile if folds else target.width, target.sum_start)
    sums = torch.empty(
        chunks_up.length if split else spans_up.length, dtype=torch.float64, device=device
    )
    for (a, b), (rows, programs) in products.items():
        table, grid = table_of(rows, programs, device)
        arguments = table, units, sums, len(rows)
        if folds:
            launch(_fold, (grid,), *arguments, A=a, B=b, COLUMNS=_COLUMNS)
        elif spec == SQUARES:
            launch(_squares, (grid,), *arguments, HOW=4 * a + 32 * b, CHUNK=entries.CHUNK)
        else:
            options = _KINDS[spec.name] + 4 * a + 32 * b
            launch(
                _products,
                (grid,),
                *arguments,
                int(split),
                HOW=options,
                DIRECTIONS=tile,
                warps=max(2, tile // 16),
            )
    for stage in (chunks_up, spans_up, folded):
        sums = stage.add_up(sums)
    runs_up.add_up(sums, result)


class _Sums:
    """Groups of rows of numbers, one after the other; the rows of each group are added up."""

    def __init__(self) -> None:
        self.length = 0  # numbers
        self._jobs: list[list[int]] = []  # first number, rows, their width, where the sum goes
        self._sum_count = 0

    def add(self, rows: int, width: int, sum_start: int | None = None) -> int:
        """Add a group of rows, whose sum goes to `sum_start`; None: after the earlier sums.

        Returns the place where the rows begin.
        """
        begin = self.length
        if sum_start is None:
            sum_start = self._sum_count
        self._jobs.append([begin, rows, width, sum_start])
        self.length, self._sum_count = begin + rows * width, self._sum_count + width
        return begin

    def add_up(self, sums: torch.Tensor, destination: torch.Tensor | None = None) -> torch.Tensor:
        """Return the sums, one after the other, or added to `destination`.

        `sums` itself where there is nothing to add up.
        """
        if not self._jobs or (destination is None and all(rows == 1 for _, rows, *_ in self._jobs)):
            return sums
        if destination is None:
            destination = torch.zeros(self._sum_count, dtype=torch.float64, device=sums.device)
        table, programs = table_of(
            self._jobs, [-(-width // 128) for _, _, width, _ in self._jobs], sums.device
        )
        launch(_add_rows, (programs,), table, sums, destination, len(self._jobs), COLUMNS=128)
        return destination
