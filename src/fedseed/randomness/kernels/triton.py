"""Operations on directions as Triton kernels: the reference's bits, on tensors where they are.

Every program works on a tile of elements that begins at a multiple of the tile's size in the global index, so that
blocks of random words are whole; what lies outside a run is masked. A tile's sum over directions stays in registers,
and the weights are read once and written once. No direction is ever written to memory.

A Philox block is computed once and its four words go to four *pieces* of a tile. For signs a piece has shape
(32, blocks), a column per word and a row per bit; otherwise it has shape (blocks,), an entry per word. This way a
thread expands words it has made itself, and nothing is exchanged between threads while directions are added up.

For the same bits on a GPU:

- No multiplication and addition are contracted into one rounding (`OPTIONS`), square roots are rounded correctly,
  there are no divisions and no functions of a mathematical library.
- No sum over a tile's axis is left to the compiler, whose order is its own; sums run along loops.
- bfloat16 is rounded by integer arithmetic (Triton's interpreter truncates). float16 is converted by the hardware, to
  nearest even and with denormals. 32-bit denormals are kept as well: Triton does not ask for flushing (old versions
  do for square roots, whose argument here is 0 or above 1e-7).

Triton's interpreter runs all of it without a GPU: TRITON_INTERPRET=1, set before this module is imported.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedseed.errors import to_install
from fedseed.randomness import entries
from fedseed.randomness.kernels.cpu import element_words  # noqa: F401  (words for the host: nothing to gain here)
from fedseed.randomness.kernels.reference import (
    Part,
    Spec,
    fold_columns,
    truncated_normal_constants,
)
from fedseed.randomness.kernels.transform import hadamard_tables, project_finish  # noqa: F401  (`Kernels` asks for it)
from fedseed.randomness.stream import (
    MULTIPLIER_0,
    MULTIPLIER_1,
    ROUNDS,
    WEYL_0,
    WEYL_1,
    split_seed,
)

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(f"weights on a GPU need triton: {to_install('gpu')}") from error

TENSORS = True  # tensors in, tensors out
draw = None  # tensors are rounded where they are, by words of the host
product = None  # a GPU multiplies fastest by a copy
OPTIONS = {"enable_fp_fusion": False}  # what every launch asks of the compiler: a rounding after each operation

Constants = tuple[int, int, int, int]  # bits of the key's words, of erf(a / sqrt 2) and of a

C = tl.constexpr
_KINDS = {"normal": 0, "truncated_normal": 1, "rademacher": 2, "hadamard": 3}
_NORMAL, _TRUNCATED_NORMAL, _SIGNS, _TABLE = C(0), C(1), C(2), C(3)
_DTYPES = {"float32": 1, "bfloat16": 2, "float16": 3}
_TOTAL, _SINGLE, _BRAIN, _HALF = C(0), C(1), C(2), C(3)  # what becomes of a sum: written as it is, or added to weights

_ROUNDS, _M0, _M1, _W0, _W1 = C(ROUNDS), C(MULTIPLIER_0), C(MULTIPLIER_1), C(WEYL_0), C(WEYL_1)
_LOG0, _LOG1, _LOG2, _LOG3, _LOG4, _LOG5 = (C(float(c)) for c in entries.LOG)
_SIN0, _SIN1, _SIN2, _SIN3 = (C(float(c)) for c in entries.SIN)
_COS0, _COS1, _COS2, _COS3 = (C(float(c)) for c in entries.COS)
_P0, _P1, _P2, _P3, _P4, _P5, _P6 = (C(float(c)) for c in entries.PROBIT)
_SQRT_HALF, _TWO_LN_2 = C(entries.SQRT_HALF_BITS), C(float(entries.TWO_LN_2))
_P30, _P31 = C(float(entries.TWO_POW_MINUS_30)), C(float(entries.TWO_POW_MINUS_31))
_CHUNK, _SPAN, _LANES = C(entries.CHUNK), C(entries.SPAN), C(entries.LANES)

_TILE = {0: 1024, 1: 1024, 2: 8192, 3: 4096}  # elements that a program of `_add_up` works on, by kind
_COLUMNS = 1024  # columns that a program of `_fold` works on
_DIRECTIONS = 128  # directions that a program of `_lane_sums` works on: one a thread
_GROUP = 4096  # directions that a launch of `_lane_sums` works on
SCRATCH = 1 << 25  # sums that `project` keeps between two launches at most, or those of one span: 128 MiB
_ROW = C(7)  # numbers in a unit: key (two words), first table's number, payload from, to, mass, bound


# -- entries -------------------------------------------------------------------------------------------------------


@triton.jit
def philox_words(block, k, domain, key0, key1):  # type: ignore[no-untyped-def]
    """The four words of Philox blocks; `block` (int64) and `k` (uint32) may be scalars or tiles that broadcast."""
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
def signed(value, word, bit):  # type: ignore[no-untyped-def]
    """`value`, its sign changed where the bit is 1."""
    sign = (word << (31 - bit)) & 0x80000000
    return (value.to(tl.uint32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def _box_muller(u, v):  # type: ignore[no-untyped-def]
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
def _truncated(word, mass, bound):  # type: ignore[no-untyped-def]
    y = (word.to(tl.int32, bitcast=True).to(tl.float32) * _P31) * mass
    square = y * y
    p = (((((_P6 * square + _P5) * square + _P4) * square + _P3) * square + _P2) * square + _P1) * square + _P0
    value = y * p
    value = tl.where(value > bound, bound, value)
    return tl.where(value < -bound, -bound, value)


@triton.jit
def _drawn(block, k, key0, key1, mass, bound, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """The four entries of blocks of a `normal` or `truncated_normal` direction."""
    w0, w1, w2, w3 = philox_words(block, k, 0, key0, key1)
    if KIND == _NORMAL:
        e0, e1 = _box_muller(w0, w1)
        e2, e3 = _box_muller(w2, w3)
    else:
        e0, e1 = _truncated(w0, mass, bound), _truncated(w1, mass, bound)
        e2, e3 = _truncated(w2, mass, bound), _truncated(w3, mass, bound)
    return e0, e1, e2, e3


# -- sums of directions --------------------------------------------------------------------------------------------


@triton.jit
def _finish(out, source, to, at, inside, total, scale, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """out = total, or the weights with scale * total added. 16-bit dtypes are given as their bits (int16)."""
    if DTYPE == _TOTAL:
        tl.store(out + to, total, mask=inside)
    else:
        change = total * scale + 0.0  # no negative zero
        old = tl.load(source + at, mask=inside, other=0)
        if DTYPE == _SINGLE:
            tl.store(out + to, old + change, mask=inside)
        elif DTYPE == _HALF:
            value = old.to(tl.float16, bitcast=True).to(tl.float32) + change
            tl.store(out + to, value.to(tl.float16).to(tl.int16, bitcast=True), mask=inside)
        else:
            value = (old.to(tl.int32) << 16).to(tl.float32, bitcast=True) + change
            bits = value.to(tl.uint32, bitcast=True)
            bits = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, bits)  # one of the many ways to say NaN
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            tl.store(out + to, bits.to(tl.int16), mask=inside)


@triton.jit(do_not_specialize=["first_tile", "count", "scale_bits"])
def _add_up(  # type: ignore[no-untyped-def]
    out, source, rows, begun, units, payload, count, scale_bits, first_tile, lead, size, start, tiles_per_row,
    KIND: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, BEGUN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A tile of `combine`, `move` or `move_rows`: the sum over all units, and what becomes of it.

    The run has `size` elements and begins `lead` elements behind the beginning of tile `first_tile`. With ROWS, there
    is a run for each row asked for, and tiles are counted from each row's own first tile. With BEGUN, the sum goes on
    from `begun`, which holds a float32 for each element of `out`.
    """
    if ROWS:
        i = tl.program_id(0) // tiles_per_row
        at = tl.load(rows + i).to(tl.int64) * size
        to = i.to(tl.int64) * size
        begin = at + start
        tile = begin // TILE + tl.program_id(0) % tiles_per_row
        from_ = tile * TILE - begin
    else:
        at = 0
        to = 0
        tile = tl.program_id(0).to(tl.int64) + first_tile
        from_ = tl.program_id(0).to(tl.int64) * TILE - lead
    scale = tl.cast(scale_bits, tl.float32, bitcast=True)
    # entries that a block makes, and that a word makes of them
    per_block: tl.constexpr = 128 if KIND >= _SIGNS else 4
    per_word: tl.constexpr = per_block // 4
    blocks: tl.constexpr = TILE // per_block
    b = tl.arange(0, blocks)
    bit = 0
    t0 = tl.full((blocks,), 0.0, tl.float32)
    if KIND >= _SIGNS:  # a column per block, because threads are dealt out along rows: a block's words stay in one
        b = b[None, :]
        bit = tl.arange(0, 32)[:, None]
        t0 = tl.full((32, blocks), 0.0, tl.float32)
    block = tile * blocks + b
    offset = per_block * b + bit  # the first piece's elements
    position = from_ + offset
    t1, t2, t3 = t0, t0, t0
    if BEGUN:
        t0 = tl.load(begun + to + position, mask=(position >= 0) & (position < size), other=0.0)
        p = position + per_word
        t1 = tl.load(begun + to + p, mask=(p >= 0) & (p < size), other=0.0)
        p = position + 2 * per_word
        t2 = tl.load(begun + to + p, mask=(p >= 0) & (p < size), other=0.0)
        p = position + 3 * per_word
        t3 = tl.load(begun + to + p, mask=(p >= 0) & (p < size), other=0.0)

    for u in range(count):
        unit = units + _ROW * u
        key0 = tl.load(unit).to(tl.uint32)
        key1 = tl.load(unit + 1).to(tl.uint32)
        low = tl.load(unit + 3)
        high = tl.load(unit + 4)
        if KIND == _TABLE:
            number = tl.load(unit + 2).to(tl.uint32)
            w0, w1, w2, w3 = philox_words(block, number, 1, key0, key1)
            # a table is at least as wide as a tile, and both are powers of two: the tile's columns are one run
            column = payload + tl.multiple_of(low + ((tile * TILE) & (high - low - 1)), 32) + offset
            t0 += signed(tl.load(column), w0, bit)
            t1 += signed(tl.load(column + 32), w1, bit)
            t2 += signed(tl.load(column + 64), w2, bit)
            t3 += signed(tl.load(column + 96), w3, bit)
        else:
            mass = tl.load(unit + 5).to(tl.int32).to(tl.float32, bitcast=True)
            bound = tl.load(unit + 6).to(tl.int32).to(tl.float32, bitcast=True)
            for j in range(low, high):
                k = tl.load(payload + 2 * j).to(tl.uint32, bitcast=True)
                coefficient = tl.load(payload + 2 * j + 1).to(tl.float32, bitcast=True)
                if KIND == _SIGNS:
                    w0, w1, w2, w3 = philox_words(block, k, 0, key0, key1)
                    t0 += signed(coefficient, w0, bit)
                    t1 += signed(coefficient, w1, bit)
                    t2 += signed(coefficient, w2, bit)
                    t3 += signed(coefficient, w3, bit)
                else:
                    e0, e1, e2, e3 = _drawn(block, k, key0, key1, mass, bound, KIND)
                    t0 += coefficient * e0
                    t1 += coefficient * e1
                    t2 += coefficient * e2
                    t3 += coefficient * e3

    if KIND >= _SIGNS:
        _finish(out, source, to + position, at + position, (position >= 0) & (position < size), t0, scale, DTYPE)
        p = position + 32
        _finish(out, source, to + p, at + p, (p >= 0) & (p < size), t1, scale, DTYPE)
        p = position + 64
        _finish(out, source, to + p, at + p, (p >= 0) & (p < size), t2, scale, DTYPE)
        p = position + 96
        _finish(out, source, to + p, at + p, (p >= 0) & (p < size), t3, scale, DTYPE)
    else:  # the entries of a block side by side, so that reads and writes are not scattered
        total = tl.reshape(tl.join(tl.join(t0, t2), tl.join(t1, t3)), (blocks, 4))
        p = from_ + 4 * b[:, None] + tl.arange(0, 4)[None, :]
        _finish(out, source, to + p, at + p, (p >= 0) & (p < size), total, scale, DTYPE)


@triton.jit(do_not_specialize=["scale_bits", "size"])
def _add_all(out, source, sums, scale_bits, size, DTYPE: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums that are there already, added to weights."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    total = tl.load(sums + at, mask=at < size, other=0.0)
    _finish(out, source, at, at, at < size, total, tl.cast(scale_bits, tl.float32, bitcast=True), DTYPE)


# -- inner products ------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["first_chunk", "first", "key0", "key1", "mass", "bound"])
def _lane_sums(  # type: ignore[no-untyped-def]
    sums, x, first_chunk, lead, size, first, count, key0, key1, mass, bound,
    KIND: tl.constexpr, DIRECTIONS: tl.constexpr,
):  # fmt: skip
    """sums[chunk, lane, j] = one chunk's products with direction first + j, added up lane by lane.

    A thread has a direction of its own and all lanes of it; x begins `lead` elements into the first chunk.
    """
    c = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * DIRECTIONS + tl.arange(0, DIRECTIONS)[None, :]
    k = (j.to(tl.int64) + first).to(tl.uint32)
    key0 = key0.to(tl.uint32)
    key1 = key1.to(tl.uint32)
    from_ = c * _CHUNK - lead  # the chunk's beginning in x
    to = sums + (c * _LANES) * count + j
    inside = j < count
    # outside x there is nothing to add: rows begin and end where x does
    lo = tl.maximum(-from_, 0)
    hi = tl.minimum(size - from_, _CHUNK)
    if KIND == _SIGNS:
        lane = tl.arange(0, 32)[:, None]
        total = tl.full((32, DIRECTIONS), 0.0, tl.float32)
        for row in range(lo // 128, (hi + 127) // 128):
            w0, w1, w2, w3 = philox_words((c + first_chunk) * (_CHUNK // 128) + row, k, 0, key0, key1)
            p = from_ + 128 * row + lane
            value = tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0)
            total += signed(value, w0, lane)
            p += 32
            value = tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0)
            total += signed(value, w1, lane)
            p += 32
            value = tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0)
            total += signed(value, w2, lane)
            p += 32
            value = tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0)
            total += signed(value, w3, lane)
        tl.store(to + lane.to(tl.int64) * count, total, mask=inside)
    else:
        mass = tl.cast(mass, tl.float32, bitcast=True)
        bound = tl.cast(bound, tl.float32, bitcast=True)
        b = tl.arange(0, 8)[:, None]
        t0 = tl.full((8, DIRECTIONS), 0.0, tl.float32)
        t1, t2, t3 = t0, t0, t0
        for row in range(lo // 32, (hi + 31) // 32):
            block = (c + first_chunk) * (_CHUNK // 4) + 8 * row + b
            e0, e1, e2, e3 = _drawn(block, k, key0, key1, mass, bound, KIND)
            p = from_ + 32 * row + 4 * b
            t0 += e0 * tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0)
            p += 1
            t1 += e1 * tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0)
            p += 1
            t2 += e2 * tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0)
            p += 1
            t3 += e3 * tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0)
        lane = 4 * b.to(tl.int64)
        tl.store(to + lane * count, t0, mask=inside)
        tl.store(to + (lane + 1) * count, t1, mask=inside)
        tl.store(to + (lane + 2) * count, t2, mask=inside)
        tl.store(to + (lane + 3) * count, t3, mask=inside)


@triton.jit(do_not_specialize=["skipped", "chunks"])
def _span_sums(out, sums, skipped, chunks, count, DIRECTIONS: tl.constexpr):  # type: ignore[no-untyped-def]
    """out[span, j] = the span's lanes of `_lane_sums`, chunk by chunk; the first span lacks `skipped` chunks."""
    s = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * DIRECTIONS + tl.arange(0, DIRECTIONS)
    inside = j < count
    per_span: tl.constexpr = _SPAN // _CHUNK
    total = tl.full((DIRECTIONS,), 0.0, tl.float64)
    for c in range(tl.maximum(s * per_span - skipped, 0), tl.minimum((s + 1) * per_span - skipped, chunks)):
        row = sums + c * _LANES * count + j
        chunk = tl.full((DIRECTIONS,), 0.0, tl.float64)
        for _ in tl.static_range(_LANES):
            chunk += tl.load(row, mask=inside, other=0.0).to(tl.float64)
            row += count
        total += chunk
    tl.store(out + s * count + j, total, mask=inside)


@triton.jit(do_not_specialize=["first_span", "number", "key0", "key1"])
def _fold(  # type: ignore[no-untyped-def]
    sums, x, first_span, lead, size, number, key0, key1, width,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """sums[span, j] = sum of D[i] x[i] over the span's elements i with i mod width = j, in order."""
    s = tl.program_id(1).to(tl.int64)
    number = number.to(tl.uint32)
    key0 = key0.to(tl.uint32)
    key1 = key1.to(tl.uint32)
    from_ = s * _SPAN - lead  # the span's beginning in x
    blocks: tl.constexpr = COLUMNS // 128
    b = tl.arange(0, blocks)[None, :]
    bit = tl.arange(0, 32)[:, None]
    column = tl.program_id(0) * COLUMNS + 128 * b + bit
    block = ((s + first_span) * _SPAN + tl.program_id(0) * COLUMNS) // 128 + b
    t0 = tl.full((32, blocks), 0.0, tl.float32)
    t1, t2, t3 = t0, t0, t0
    lo = tl.maximum(-from_, 0)
    hi = tl.minimum(size - from_, _SPAN)
    for row in range(lo // width, (hi + width - 1) // width):
        w0, w1, w2, w3 = philox_words(block + row * (width // 128), number, 1, key0, key1)
        p = from_ + row * width + column
        t0 += signed(tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0), w0, bit)
        p += 32
        t1 += signed(tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0), w1, bit)
        p += 32
        t2 += signed(tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0), w2, bit)
        p += 32
        t3 += signed(tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0), w3, bit)
    to = sums + s * width + column
    tl.store(to, t0)
    tl.store(to + 32, t1)
    tl.store(to + 64, t2)
    tl.store(to + 96, t3)


@triton.jit(do_not_specialize=["rows"])
def _add_rows(out, sums, rows, count, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """out += the rows of `sums`, one after the other in double precision."""
    j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = j < count
    total = tl.load(out + j, mask=inside, other=0.0)
    for row in range(rows):
        total += tl.load(sums + row * count + j, mask=inside, other=0.0).to(tl.float64)
    tl.store(out + j, total, mask=inside)


# -- the host's side -----------------------------------------------------------------------------------------------


def _interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels."""
    return not isinstance(_add_up, triton.runtime.JITFunction)


def default_device() -> torch.device:
    """Returns the device of results that no tensor says a place for."""
    there_is_one = torch.cuda.is_available() and not _interpreted()
    return torch.device("cuda", torch.cuda.current_device()) if there_is_one else torch.device("cpu")


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, warps: int = 4, **constants: Any) -> None:
    """Run a kernel on the device of its first argument, each operation with a rounding of its own."""
    device = args[0].device
    if _interpreted():
        with np.errstate(all="ignore"):  # words wrap round, float16 overflows to infinity: as they should
            kernel[grid](*args, **constants)
        return
    if device.type == "cpu":
        raise RuntimeError("Triton's kernels need a GPU, or TRITON_INTERPRET=1 in the environment when Python starts")
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](*args, num_warps=warps, **OPTIONS, **constants)


def int_bits(value: Any, dtype: Any = np.float32) -> int:
    """The 32 bits of a float or an unsigned word as an int32: always of the same type to the compiler."""
    return int(np.array(value, dtype=dtype).view(np.int32))


class Prepared:
    """Parts as the kernels take them; copied to a device when they are first used there, and kept.

    Args:
        runs: for each run of parts of the same kind: the kind, a row per unit (`_ROW` numbers), and coefficients
            (pairs of a direction's index and its coefficient's bits) or tables, one after the other.
    """

    def __init__(self, runs: list[tuple[int, NDArray[np.int64], NDArray[np.int32]]]) -> None:
        self._runs = runs
        self._on: dict[torch.device, list[tuple[int, torch.Tensor, torch.Tensor]]] = {}

    def on(self, device: torch.device) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
        """(kind, units, payload) of each run on a device."""
        if device not in self._on:
            self._on[device] = [
                (kind, torch.from_numpy(units).to(device), torch.from_numpy(payload).to(device))
                for kind, units, payload in self._runs
            ]
        return self._on[device]


def _constants(spec: Spec, length: int) -> Constants:
    """Bits of the key's words, and of erf(a / sqrt 2) and a."""
    key0, key1 = split_seed(spec.seed)
    mass, bound = truncated_normal_constants(length) if spec.name == "truncated_normal" else (0.0, 0.0)
    return int_bits(key0, np.uint32), int_bits(key1, np.uint32), int_bits(mass), int_bits(bound)


def prepare(parts: Sequence[Part], length: int) -> Prepared:
    """Prepares a sum of directions in a block of `length` elements, for `combine` and `move`."""
    found: list[tuple[int, Constants, int, NDArray[np.int32]]] = []  # kind, constants, number, payload
    for spec, first, coefficients in parts:
        kind, constants = _KINDS[spec.name], _constants(spec, length)
        if spec.name == "hadamard":
            for number, table in hadamard_tables(spec.tile, first, coefficients):
                wide = np.tile(table, max(1, _TILE[kind] // spec.tile))  # small tables side by side: see `_add_up`
                found.append((kind, constants, number, wide.view(np.int32)))
        else:
            values = np.ascontiguousarray(coefficients, dtype=np.float32)
            # the reference skips zeros; to add +-0 to a sum that began with +0 would change nothing
            used = np.flatnonzero(values)
            pairs = np.empty((len(used), 2), dtype=np.int32)
            pairs[:, 0] = (used + first).astype(np.uint32).view(np.int32)
            pairs[:, 1] = values[used].view(np.int32)
            if len(used):
                found.append((kind, constants, 0, pairs.reshape(-1)))
    runs = []
    for kind, group in groupby(found, key=lambda unit: unit[0]):
        units, payloads, position = [], [], 0
        for _, (key0, key1, mass, bound), number, payload in group:
            size = len(payload) if kind == _KINDS["hadamard"] else len(payload) // 2
            units.append((key0, key1, number, position, position + size, mass, bound))
            payloads.append(payload)
            position += size
        runs.append((kind, np.array(units, dtype=np.int64), np.concatenate(payloads)))
    if not runs:  # nothing to add up, but the weights are still read and written
        runs.append((_KINDS["rademacher"], np.zeros((0, _ROW.value), dtype=np.int64), np.zeros(0, dtype=np.int32)))
    return Prepared(runs)


def _run(
    out: torch.Tensor, source: torch.Tensor, rows: torch.Tensor | None, dtype: int, prepared: Prepared, scale: float,
    start: int, size: int,
) -> None:  # fmt: skip
    """One launch for each run of parts of the same kind, and usually there is one.

    Where there are more, all but the last leave their sum in a float32 buffer as large as `out`.
    """
    if out.numel() == 0:
        return
    if not (out.is_contiguous() and source.is_contiguous()):
        raise ValueError("Triton's kernels need contiguous tensors")
    begun: torch.Tensor | None = None
    runs = prepared.on(out.device)
    for i, (kind, units, payload) in enumerate(runs):
        tile = _TILE[kind]
        last = i == len(runs) - 1
        to = out if last else torch.empty(out.numel(), dtype=torch.float32, device=out.device)
        if rows is None:
            per_row, begin = 0, 0  # the run's place is in its first tile and lead
            grid = -(-(start + size) // tile) - start // tile
        else:
            per_row, begin = (size - 1) // tile + 2, start  # as many tiles as a row can touch
            grid = per_row * len(rows)
        launch(
            _add_up, (grid,), to, source, out if rows is None else rows, to if begun is None else begun,
            units, payload, len(units), int_bits(scale), start // tile, start % tile, size, begin, per_row,
            KIND=kind, DTYPE=dtype if last else _TOTAL.value, ROWS=rows is not None, BEGUN=begun is not None, TILE=tile,
        )  # fmt: skip
        begun = to


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """16-bit weights as their bits."""
    return tensor if tensor.dtype == torch.float32 else tensor.view(torch.int16)


def combine(prepared: Prepared, start: int, stop: int) -> torch.Tensor:
    """The sum of all parts over elements start..stop, on the GPU if there is one."""
    out = torch.empty(stop - start, dtype=torch.float32, device=default_device())
    _run(out, out, None, _TOTAL.value, prepared, 1.0, start, stop - start)
    return out


def move(out: torch.Tensor, source: torch.Tensor, dtype: str, prepared: Prepared, scale: float, start: int) -> None:
    """out = round(source + scale * sum), where source holds elements start, start + 1, ...

    Args:
        out: where the result goes, 1-D; may be `source`.
        source: weights on the same device.
        dtype: that of both tensors, by name.
        prepared: the sum of directions.
        scale: multiplies it.
        start: index of the first element in the parameter vector.
    """
    _run(_stored(out), _stored(source), None, _DTYPES[dtype], prepared, scale, start, len(out))


def add_sums(out: torch.Tensor, source: torch.Tensor, dtype: str, sums: torch.Tensor, scale: float) -> None:
    """out = round(source + scale * sums), where the sums over directions are there already."""
    if len(out):
        to, own, tile = _stored(out), _stored(source).contiguous(), 1024
        grid = (-(-len(to) // tile),)
        launch(_add_all, grid, to, own, sums.contiguous(), int_bits(scale), len(to), DTYPE=_DTYPES[dtype], TILE=tile)


def move_rows(
    out: torch.Tensor, source: torch.Tensor, rows: torch.Tensor, dtype: str, prepared: Prepared, scale: float,
    start: int,
) -> None:  # fmt: skip
    """out[i] = what `move` makes of row rows[i] of `source`, a matrix whose first element has index `start`."""
    kept = rows.contiguous()
    _run(_stored(out), _stored(source), kept, _DTYPES[dtype], prepared, scale, start, source.shape[1])


def project_sums(
    spec: Spec, first: int, count: int, x: torch.Tensor | NDArray[Any], start: int, length: int
) -> NDArray[np.float64]:
    """Returns the part of a projection that adds up over runs of elements (see the reference)."""
    if not isinstance(x, torch.Tensor):
        x = torch.from_numpy(np.require(x, dtype=np.float32, requirements=["C", "W"]))
    x = x.detach().reshape(-1)
    device = x.device if x.is_cuda else default_device()
    constants = _constants(spec, length)
    if spec.name != "hadamard":
        return _products(_KINDS[spec.name], constants, first, count, x, start, device)
    numbers = range(first // spec.tile, -(-(first + count) // spec.tile))
    folded = [_folded(max(spec.tile, entries.CHUNK), constants, number, x, start, device) for number in numbers]
    return np.concatenate([fold_columns(each, spec.tile) for each in folded] or [np.zeros(0)])


def _products(
    kind: int, constants: Constants, first: int, count: int, x: torch.Tensor, start: int, device: torch.device
) -> NDArray[np.float64]:
    """Inner products with directions of an unstructured basis."""
    result = torch.zeros(count, dtype=torch.float64, device=device)
    group = max(1, min(count, _GROUP))
    per_span = entries.SPAN // entries.CHUNK
    tile = min(_DIRECTIONS, 1 << (group - 1).bit_length())
    warps = max(1, tile // 32)
    for piece, span, lead, spans in _waves(x, start, SCRATCH // (per_span * entries.LANES * group), device):
        skipped = lead // entries.CHUNK
        chunks = -(-(lead + len(piece)) // entries.CHUNK) - skipped
        lanes = torch.empty(chunks * entries.LANES * group, dtype=torch.float32, device=device)
        for j in range(0, count, group):
            n = min(group, count - j)
            grid = -(-n // tile)
            sums = torch.empty(spans, n, dtype=torch.float64, device=device)
            launch(
                _lane_sums, (chunks, grid), lanes, piece, span * per_span + skipped, lead % entries.CHUNK,
                len(piece), int_bits(first + j, np.uint32), n, *constants,
                KIND=kind, DIRECTIONS=tile, warps=warps,
            )  # fmt: skip
            launch(_span_sums, (spans, grid), sums, lanes, skipped, chunks, n, DIRECTIONS=tile, warps=warps)
            _add_in_order(result[j : j + n], sums)
    return result.cpu().numpy()


def _folded(
    width: int, constants: Constants, number: int, x: torch.Tensor, start: int, device: torch.device
) -> NDArray[np.float64]:
    """D * x folded into `width` sums."""
    key0, key1, _, _ = constants
    result = torch.zeros(width, dtype=torch.float64, device=device)
    for piece, span, lead, spans in _waves(x, start, SCRATCH // width, device):
        sums = torch.empty(spans, width, dtype=torch.float32, device=device)
        launch(
            _fold, (width // _COLUMNS, spans), sums, piece, span, lead, len(piece),
            int_bits(number, np.uint32), key0, key1, width, COLUMNS=_COLUMNS,
        )  # fmt: skip
        _add_in_order(result, sums)
    return result.cpu().numpy()


def _waves(
    x: torch.Tensor, start: int, spans: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, int, int, int]]:
    """x in pieces of at most `spans` spans: (piece on the device, its first span, where it begins there, its spans)."""
    stop = start + len(x)
    at = start
    while at < stop:
        span = at // entries.SPAN
        end = min(stop, (span + max(1, spans)) * entries.SPAN)
        piece = x[at - start : end - start].to(device, torch.float32).contiguous()
        yield piece, span, at - span * entries.SPAN, -(-end // entries.SPAN) - span
        at = end


def _add_in_order(out: torch.Tensor, sums: torch.Tensor) -> None:
    """out += the rows of `sums`, in order."""
    launch(_add_rows, (-(-sums.shape[1] // 128),), out, sums, sums.shape[0], sums.shape[1], COLUMNS=128)
