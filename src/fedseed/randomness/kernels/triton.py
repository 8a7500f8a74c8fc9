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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedseed.errors import to_install
from fedseed.randomness import entries
from fedseed.randomness.kernels import reference
from fedseed.randomness.kernels.cpu import element_words  # noqa: F401  (the host's)
from fedseed.randomness.kernels.reference import Part, Spec
from fedseed.randomness.stream import MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1, split_seed

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(f"weights on a GPU need triton: {to_install('gpu')}") from error

TENSORS = True  # tensors in, tensors out
draw = None  # tensors are rounded where they are, by words of the host
product = None  # a GPU multiplies fastest by a copy
OPTIONS = {"enable_fp_fusion": False}  # what every launch asks of the compiler: a rounding after each operation

C = tl.constexpr
_KINDS = {"normal": 0, "truncated_normal": 1, "rademacher": 2, "hadamard": 3}
_NORMAL, _TRUNCATED_NORMAL, _SIGNS, _TABLE = C(0), C(1), C(2), C(3)
_DTYPES = {"float32": 2, "float16": 3, "bfloat16": 4}
_TOTAL, _SINGLE, _HALF = C(0), C(2), C(3)  # a sum is written; or added to weights

_ROUNDS, _M0, _M1, _W0, _W1 = C(ROUNDS), C(MULTIPLIER_0), C(MULTIPLIER_1), C(WEYL_0), C(WEYL_1)
_LOG0, _LOG1, _LOG2, _LOG3, _LOG4, _LOG5 = (C(float(c)) for c in entries.LOG)
_SIN0, _SIN1, _SIN2, _SIN3 = (C(float(c)) for c in entries.SIN)
_COS0, _COS1, _COS2, _COS3 = (C(float(c)) for c in entries.COS)
_P0, _P1, _P2, _P3, _P4, _P5, _P6 = (C(float(c)) for c in entries.PROBIT)
_SQRT_HALF, _TWO_LN_2 = C(entries.SQRT_HALF_BITS), C(float(entries.TWO_LN_2))
_P30, _P31 = C(float(entries.TWO_POW_MINUS_30)), C(float(entries.TWO_POW_MINUS_31))
_CHUNK, _SPAN, _LANES = C(entries.CHUNK), C(entries.SPAN), C(entries.LANES)

_DRAWN_TILE, _SIGNS_TILE, _TABLE_TILE = C(1024), C(8192), C(4096)  # elements that a program of `_add_up` works on
_TILE = {0: 1024, 1: 1024, 2: 8192, 3: 4096}  # the same, by kind
_COLUMNS = 1024  # columns that a program of `_fold` works on
_DIRECTIONS = 128  # directions that a program of `_lane_sums` works on: one a thread
_GROUP = 4096  # directions that a launch of `_lane_sums` works on
SCRATCH = 1 << 25  # sums that `project` keeps between two launches at most, or those of one span: 128 MiB
_ROW = C(7)  # numbers in a unit: key (two words), number, mass, bound, payload from, to


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
def _unit(at):  # type: ignore[no-untyped-def]
    """A unit's key (two words), number, mass and bound."""
    key0 = tl.load(at).to(tl.uint32, bitcast=True)
    key1 = tl.load(at + 1).to(tl.uint32, bitcast=True)
    number = tl.load(at + 2).to(tl.uint32, bitcast=True)
    mass = tl.load(at + 3).to(tl.float32, bitcast=True)
    bound = tl.load(at + 4).to(tl.float32, bitcast=True)
    return key0, key1, number, mass, bound


@triton.jit
def _four(x, p, step, size):  # type: ignore[no-untyped-def]
    """Elements p, p + step, p + 2 step and p + 3 step of x, which has `size`; 0 where there is none."""
    x0 = tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0)
    p += step
    x1 = tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0)
    p += step
    x2 = tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0)
    p += step
    x3 = tl.load(x + p, mask=(p >= 0) & (p < size), other=0.0)
    return x0, x1, x2, x3


@triton.jit
def _finish(out, source, p, size, total, scale, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """out[p] = total, or the weights with scale * total added. 16-bit dtypes are given as their bits (int16)."""
    inside = (p >= 0) & (p < size)
    if DTYPE < _SINGLE:
        tl.store(out + p, total, mask=inside)
    else:
        change = total * scale + 0.0  # no negative zero
        old = tl.load(source + p, mask=inside, other=0)
        if DTYPE == _SINGLE:
            tl.store(out + p, old + change, mask=inside)
        elif DTYPE == _HALF:
            value = old.to(tl.float16, bitcast=True).to(tl.float32) + change
            tl.store(out + p, value.to(tl.float16).to(tl.int16, bitcast=True), mask=inside)
        else:
            value = (old.to(tl.int32) << 16).to(tl.float32, bitcast=True) + change
            bits = value.to(tl.uint32, bitcast=True)
            bits = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, bits)  # one of the many ways to say NaN
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            tl.store(out + p, bits.to(tl.int16), mask=inside)


@triton.jit(do_not_specialize=["scale_bits"])
def _add_up(out, source, sums, scale_bits, size, start, HOW: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile of `combine` or `move`: the sum over all units of `sums`, and what becomes of it.

    The run has `size` elements, the first of which is element `start` of the vector. `HOW` is a kind plus 4 times what
    becomes of the sum.
    """
    kind: tl.constexpr = HOW % 4
    dtype: tl.constexpr = HOW // 4
    width: tl.constexpr = _SIGNS_TILE if kind == _SIGNS else _TABLE_TILE if kind == _TABLE else _DRAWN_TILE
    begin = tl.cast(start, tl.int64)  # an argument that is 1 is a plain number to the compiler, which has no `to`
    tile = begin // width + tl.program_id(0)
    from_ = tile * width - begin
    scale = tl.cast(scale_bits, tl.float32, bitcast=True)
    # entries that a block of words makes
    per_block: tl.constexpr = 128 if kind >= _SIGNS else 4
    blocks: tl.constexpr = width // per_block
    b = tl.arange(0, blocks)
    bit = 0
    t0 = tl.full((blocks,), 0.0, tl.float32)
    if kind >= _SIGNS:  # a column per block, because threads are dealt out along rows: a block's words stay in one
        b = b[None, :]
        bit = tl.arange(0, 32)[:, None]
        t0 = tl.full((32, blocks), 0.0, tl.float32)
    block = tile * blocks + b
    offset = per_block * b + bit  # the first piece's elements
    position = from_ + offset
    t1, t2, t3 = t0, t0, t0

    for u in range(tl.load(sums)):
        unit = sums + 1 + _ROW * u
        key0, key1, number, mass, bound = _unit(unit)
        low = tl.load(unit + 5)
        high = tl.load(unit + 6)
        if kind == _TABLE:
            w0, w1, w2, w3 = philox_words(block, number, 1, key0, key1)
            # a table is at least as wide as a tile, and both are powers of two: the tile's columns are one run
            column = sums + tl.multiple_of(low + ((tile * width) & (high - low - 1)), 32) + offset
            t0 += signed(tl.load(column), w0, bit)
            t1 += signed(tl.load(column + 32), w1, bit)
            t2 += signed(tl.load(column + 64), w2, bit)
            t3 += signed(tl.load(column + 96), w3, bit)
        else:
            for j in range(low, high, 2):
                k = tl.load(sums + j).to(tl.uint32, bitcast=True)
                coefficient = tl.load(sums + j + 1).to(tl.float32, bitcast=True)
                if kind == _SIGNS:
                    w0, w1, w2, w3 = philox_words(block, k, 0, key0, key1)
                    t0 += signed(coefficient, w0, bit)
                    t1 += signed(coefficient, w1, bit)
                    t2 += signed(coefficient, w2, bit)
                    t3 += signed(coefficient, w3, bit)
                else:
                    e0, e1, e2, e3 = _drawn(block, k, key0, key1, mass, bound, kind)
                    t0 += coefficient * e0
                    t1 += coefficient * e1
                    t2 += coefficient * e2
                    t3 += coefficient * e3

    if kind >= _SIGNS:
        _finish(out, source, position, size, t0, scale, dtype)
        _finish(out, source, position + 32, size, t1, scale, dtype)
        _finish(out, source, position + 64, size, t2, scale, dtype)
        _finish(out, source, position + 96, size, t3, scale, dtype)
    else:  # the entries of a block side by side, so that reads and writes are not scattered
        total = tl.reshape(tl.join(tl.join(t0, t2), tl.join(t1, t3)), (blocks, 4))
        p = from_ + 4 * b[:, None] + tl.arange(0, 4)[None, :]
        _finish(out, source, p, size, total, scale, dtype)


@triton.jit(do_not_specialize=["scale_bits", "size"])
def _add_all(out, source, sums, scale_bits, size, DTYPE: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums that are there already, added to weights."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    total = tl.load(sums + at, mask=at < size, other=0.0)
    _finish(out, source, at, size, total, tl.cast(scale_bits, tl.float32, bitcast=True), DTYPE)


# -- inner products ------------------------------------------------------------------------------------------------


@triton.jit
def _lane_sums(sums, x, unit, start, size, count, KIND: tl.constexpr, DIRECTIONS: tl.constexpr):  # type: ignore[no-untyped-def]
    """sums[chunk, lane, j] = one chunk's products with the unit's j-th direction, added up lane by lane.

    A thread has a direction of its own and all lanes of it; x[0] is element `start` of the vector.
    """
    c = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * DIRECTIONS + tl.arange(0, DIRECTIONS)[None, :]
    key0, key1, first, mass, bound = _unit(unit)
    k = j.to(tl.uint32) + first
    chunk = tl.cast(start, tl.int64) // _CHUNK + c
    from_ = chunk * _CHUNK - start  # the chunk's beginning in x
    to = sums + (c * _LANES) * count + j
    inside = j < count
    # outside x there is nothing to add: rows begin and end where x does
    lo = tl.maximum(-from_, 0)
    hi = tl.minimum(size - from_, _CHUNK)
    if KIND == _SIGNS:
        lane = tl.arange(0, 32)[:, None]
        total = tl.full((32, DIRECTIONS), 0.0, tl.float32)
        for row in range(lo // 128, (hi + 127) // 128):
            w0, w1, w2, w3 = philox_words(chunk * (_CHUNK // 128) + row, k, 0, key0, key1)
            x0, x1, x2, x3 = _four(x, from_ + 128 * row + lane, 32, size)
            total += signed(x0, w0, lane)
            total += signed(x1, w1, lane)
            total += signed(x2, w2, lane)
            total += signed(x3, w3, lane)
        tl.store(to + lane.to(tl.int64) * count, total, mask=inside)
    else:
        b = tl.arange(0, 8)[:, None]
        t0 = tl.full((8, DIRECTIONS), 0.0, tl.float32)
        t1, t2, t3 = t0, t0, t0
        for row in range(lo // 32, (hi + 31) // 32):
            block = chunk * (_CHUNK // 4) + 8 * row + b
            e0, e1, e2, e3 = _drawn(block, k, key0, key1, mass, bound, KIND)
            x0, x1, x2, x3 = _four(x, from_ + 32 * row + 4 * b, 1, size)
            t0 += e0 * x0
            t1 += e1 * x1
            t2 += e2 * x2
            t3 += e3 * x3
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


@triton.jit
def _fold(sums, x, unit, start, size, width, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """sums[span, j] = sum of D[i] x[i] over the span's elements i with i mod width = j, in order."""
    s = tl.program_id(1).to(tl.int64)
    key0, key1, number, _, _ = _unit(unit)
    span = tl.cast(start, tl.int64) // _SPAN + s
    from_ = span * _SPAN - start  # the span's beginning in x
    blocks: tl.constexpr = COLUMNS // 128
    b = tl.arange(0, blocks)[None, :]
    bit = tl.arange(0, 32)[:, None]
    column = tl.program_id(0) * COLUMNS + 128 * b + bit
    block = (span * _SPAN + tl.program_id(0) * COLUMNS) // 128 + b
    t0 = tl.full((32, blocks), 0.0, tl.float32)
    t1, t2, t3 = t0, t0, t0
    lo = tl.maximum(-from_, 0)
    hi = tl.minimum(size - from_, _SPAN)
    for row in range(lo // width, (hi + width - 1) // width):
        w0, w1, w2, w3 = philox_words(block + row * (width // 128), number, 1, key0, key1)
        x0, x1, x2, x3 = _four(x, from_ + row * width + column, 32, size)
        t0 += signed(x0, w0, bit)
        t1 += signed(x1, w1, bit)
        t2 += signed(x2, w2, bit)
        t3 += signed(x3, w3, bit)
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
        kind: of all parts.
        numbers: 32-bit numbers: how many units there are, `_ROW` numbers for each, and, from a multiple of 32 on,
            coefficients (pairs of a direction's index and its coefficient's bits) or tables, one after the other.
    """

    def __init__(self, kind: int, numbers: NDArray[np.int32]) -> None:
        self.kind = kind
        self._numbers = torch.from_numpy(numbers)
        self._on: dict[torch.device, torch.Tensor] = {}

    def on(self, device: torch.device) -> torch.Tensor:
        """The numbers on a device."""
        if device not in self._on:
            self._on[device] = self._numbers.to(device)
        return self._on[device]


def _about(spec: Spec, number: int, length: int) -> list[int]:
    """What `_unit` reads: bits of the key's words, a number, and bits of erf(a / sqrt 2) and a."""
    words = (*split_seed(spec.seed), number)
    limits = reference.truncated_normal_constants(length) if spec.name == "truncated_normal" else (0.0, 0.0)
    return [*(int_bits(word, np.uint32) for word in words), *map(int_bits, limits)]


def prepare(parts: Sequence[Part], length: int) -> Prepared:
    """Prepares a sum of directions of one kind, in a block of `length` elements, for `combine` and `move`."""
    kind = _KINDS[parts[0].spec.name if parts else "rademacher"]
    units: list[tuple[list[int], NDArray[np.int32]]] = []  # what `_unit` reads, payload
    for spec, first, coefficients in parts:
        if spec.name == "hadamard":
            for number, table in reference.hadamard_tables(spec.tile, first, coefficients):
                wide = np.tile(table, max(1, _TILE[kind] // spec.tile))  # small tables side by side: see `_add_up`
                units.append((_about(spec, number, length), wide.view(np.int32)))
        else:
            values = np.ascontiguousarray(coefficients, dtype=np.float32)
            # the reference skips zeros; to add +-0 to a sum that began with +0 would change nothing
            used = np.flatnonzero(values)
            pairs = np.stack([(used + first).astype(np.uint32).view(np.int32), values[used].view(np.int32)], axis=1)
            if len(used):
                units.append((_about(spec, 0, length), pairs.reshape(-1)))
    position = -(-(1 + _ROW.value * len(units)) // 32) * 32
    head = [len(units)]
    for about, payload in units:
        head += [*about, position, position + len(payload)]
        position += len(payload)
    padded = np.array(head + [0] * (-len(head) % 32), dtype=np.int32)
    return Prepared(kind, np.concatenate([padded, *(payload for _, payload in units)]))


def _run(out: torch.Tensor, source: torch.Tensor, dtype: int, prepared: Prepared, scale: float, start: int) -> None:
    """Launches `_add_up`."""
    if not (size := len(out)):
        return
    if not (out.is_contiguous() and source.is_contiguous()):
        raise ValueError("Triton's kernels need contiguous tensors")
    tile, sums = _TILE[prepared.kind], prepared.on(out.device)
    grid = -(-(start + size) // tile) - start // tile
    launch(_add_up, (grid,), out, source, sums, int_bits(scale), size, start, HOW=prepared.kind + 4 * dtype)


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """16-bit weights as their bits."""
    return tensor if tensor.dtype == torch.float32 else tensor.view(torch.int16)


def combine(prepared: Prepared, start: int, stop: int) -> torch.Tensor:
    """The sum of all parts over elements start..stop, on the GPU if there is one."""
    out = torch.empty(stop - start, dtype=torch.float32, device=default_device())
    _run(out, out, _TOTAL.value, prepared, 1.0, start)
    return out


def move(out: torch.Tensor, source: torch.Tensor, dtype: str, prepared: Prepared, scale: float, start: int) -> None:
    """out = round(source + scale * sum), where source holds elements start, start + 1, ..., on the same device."""
    _run(_stored(out), _stored(source), _DTYPES[dtype], prepared, scale, start)


def add_sums(out: torch.Tensor, source: torch.Tensor, dtype: str, sums: torch.Tensor, scale: float) -> None:
    """out = round(source + scale * sums), where the sums over directions are there already."""
    if len(out):
        on = _stored(out), _stored(source).contiguous(), sums.contiguous()
        launch(_add_all, (-(-len(out) // 1024),), *on, int_bits(scale), len(out), DTYPE=_DTYPES[dtype], TILE=1024)


def project_sums(
    spec: Spec, first: int, count: int, x: torch.Tensor | NDArray[Any], start: int, length: int
) -> NDArray[np.float64]:
    """Returns the part of a projection that adds up over runs of elements (see the reference)."""
    if not isinstance(x, torch.Tensor):
        x = torch.from_numpy(np.require(x, dtype=np.float32, requirements=["C", "W"]))
    x = x.detach().reshape(-1)
    device = x.device if x.is_cuda else default_device()
    if spec.name != "hadamard":
        return _products(spec, first, count, x, start, length, device)
    numbers = range(first // spec.tile, -(-(first + count) // spec.tile))
    return np.concatenate([_folded(spec, number, x, start, length, device) for number in numbers] or [np.zeros(0)])


def _products(
    spec: Spec, first: int, count: int, x: torch.Tensor, start: int, length: int, device: torch.device
) -> NDArray[np.float64]:
    """Inner products with directions of an unstructured basis."""
    result = torch.zeros(count, dtype=torch.float64, device=device)
    group = max(1, min(count, _GROUP))
    per_span = entries.SPAN // entries.CHUNK
    tile = min(_DIRECTIONS, 1 << (group - 1).bit_length())
    warps = max(1, tile // 32)
    for piece, at, spans in _waves(x, start, SCRATCH // (per_span * entries.LANES * group), device):
        skipped = at % entries.SPAN // entries.CHUNK
        chunks = -(-(at + len(piece)) // entries.CHUNK) - at // entries.CHUNK
        lanes = torch.empty(chunks * entries.LANES * group, dtype=torch.float32, device=device)
        for j in range(0, count, group):
            n = min(group, count - j)
            grid = -(-n // tile)
            unit = _unit_on(device, spec, first + j, length)
            sums = torch.empty(spans, n, dtype=torch.float64, device=device)
            launch(
                _lane_sums, (chunks, grid), lanes, piece, unit, at, len(piece), n,
                KIND=_KINDS[spec.name], DIRECTIONS=tile, warps=warps,
            )  # fmt: skip
            launch(_span_sums, (spans, grid), sums, lanes, skipped, chunks, n, DIRECTIONS=tile, warps=warps)
            _add_in_order(result[j : j + n], sums)
    return result.cpu().numpy()


def _folded(
    spec: Spec, number: int, x: torch.Tensor, start: int, length: int, device: torch.device
) -> NDArray[np.float64]:
    """D * x folded into B sums."""
    width = max(spec.tile, entries.CHUNK)
    unit = _unit_on(device, spec, number, length)
    result = torch.zeros(width, dtype=torch.float64, device=device)
    for piece, at, spans in _waves(x, start, SCRATCH // width, device):
        sums = torch.empty(spans, width, dtype=torch.float32, device=device)
        launch(_fold, (width // _COLUMNS, spans), sums, piece, unit, at, len(piece), width, COLUMNS=_COLUMNS)
        _add_in_order(result, sums)
    return reference.fold_columns(result.cpu().numpy(), spec.tile)


def _unit_on(device: torch.device, spec: Spec, number: int, length: int) -> torch.Tensor:
    """A unit on a device; a copy that nobody waits for."""
    return torch.tensor(_about(spec, number, length), dtype=torch.int32).to(device, non_blocking=True)


def _waves(x: torch.Tensor, start: int, spans: int, device: torch.device) -> Iterator[tuple[torch.Tensor, int, int]]:
    """x in pieces of at most `spans` spans: (piece on the device, index of its first element, its spans)."""
    stop = start + len(x)
    at = start
    while at < stop:
        span = at // entries.SPAN
        end = min(stop, (span + max(1, spans)) * entries.SPAN)
        yield x[at - start : end - start].to(device, torch.float32).contiguous(), at, -(-end // entries.SPAN) - span
        at = end


def _add_in_order(out: torch.Tensor, sums: torch.Tensor) -> None:
    """out += the rows of `sums`, in order."""
    launch(_add_rows, (-(-sums.shape[1] // 128),), out, sums, sums.shape[0], sums.shape[1], COLUMNS=128)
