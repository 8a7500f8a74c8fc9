"""Operations on directions for CPUs, compiled by numba: the reference's bits, without its temporary arrays.

A chunk of CHUNK elements at a time, small enough for the first-level cache: its entries are generated into a
buffer, then used. Chunks are independent, so threads share them out without changing a bit. Loops are written for
LLVM's vectoriser; numba does not contract a multiplication and an addition unless asked to, so each one rounds.
"""

from typing import Any

import numpy as np
from numba import njit, prange, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedseed.randomness import entries
from fedseed.randomness.kernels.reference import (
    Floats,
    Spec,
    hadamard_tables,
    hadamard_transform,
    truncated_normal_constants,
)
from fedseed.randomness.stream import MULTIPLIER_0, MULTIPLIER_1, WEYL_0, WEYL_1, Domain, split_seed

_U = np.uint32
_L = np.uint64
_F = np.float32
_M0, _M1 = _L(MULTIPLIER_0), _L(MULTIPLIER_1)
_W0, _W1 = _U(WEYL_0), _U(WEYL_1)
_S32 = _L(32)
_LOW = _L(0xFFFFFFFF)

NORMAL, TRUNCATED_NORMAL, SIGNS = 0, 1, 2
_KINDS = {"normal": NORMAL, "truncated_normal": TRUNCATED_NORMAL, "rademacher": SIGNS, "hadamard": SIGNS}
_CHUNK, _LANES, _SPAN = entries.CHUNK, entries.LANES, entries.SPAN

_LOG0, _LOG1, _LOG2, _LOG3, _LOG4, _LOG5 = entries.LOG
_SIN0, _SIN1, _SIN2, _SIN3 = entries.SIN
_COS0, _COS1, _COS2, _COS3 = entries.COS
_P0, _P1, _P2, _P3, _P4, _P5, _P6 = entries.PROBIT
_SQRT_HALF = np.int32(entries.SQRT_HALF_BITS)
_TWO_LN_2, _P30, _P31 = entries.TWO_LN_2, entries.TWO_POW_MINUS_30, entries.TWO_POW_MINUS_31
_HALF, _ONE, _TWO, _ZERO = _F(0.5), _F(1), _F(2), _F(0)


@intrinsic
def _as_float(_context: Any, bits: Any) -> Any:
    """Reinterpret 32 integer bits as a float32."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(bits), generate


@intrinsic
def _as_int(_context: Any, value: Any) -> Any:
    """Reinterpret a float32 as an int32."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.int32))

    return types.int32(value), generate


@njit(cache=True)
def _fill_words(out, blocks, first, domain, k, key0, key1):  # type: ignore[no-untyped-def]
    """out[w, b] = word w of Philox block first + b."""
    for b in range(blocks):
        index = _L(first + b)
        c0, c1, c2, c3 = _U(index & _LOW), _U(index >> _S32), _U(k), _U(domain)
        k0, k1 = _U(key0), _U(key1)
        for _ in range(10):
            product0 = _M0 * _L(c0)
            product1 = _M1 * _L(c2)
            c0, c1, c2, c3 = (
                _U(product1 >> _S32) ^ c1 ^ k0,
                _U(product1 & _LOW),
                _U(product0 >> _S32) ^ c3 ^ k1,
                _U(product0 & _LOW),
            )
            k0 = _U(k0 + _W0)
            k1 = _U(k1 + _W1)
        out[0, b] = c0
        out[1, b] = c1
        out[2, b] = c2
        out[3, b] = c3


@njit(inline="always")
def _box_muller(u, v):  # type: ignore[no-untyped-def]
    """Two normal entries from two words; the reference explains each line."""
    f = _F(np.int32(u >> _U(1))) + _HALF
    bits = np.int32(_as_int(f) - _SQRT_HALF)
    exponent = np.int32(bits >> np.int32(23))
    s = _as_float(np.int32((bits & np.int32(0x7FFFFF)) + _SQRT_HALF)) - _ONE
    square = s * s
    p = ((((_LOG5 * s + _LOG4) * s + _LOG3) * s + _LOG2) * s + _LOG1) * s + _LOG0
    log = (s - _HALF * square) + (square * s) * p
    q = _F(np.int32(np.int32(31) - exponent)) * _TWO_LN_2 - _TWO * log
    radius = np.sqrt(max(q, _ZERO))
    x = _F(np.int32(np.int32(v & _U(0x3FFFFFFF)) - np.int32(1 << 29))) * _P30
    square = x * x
    sine = x * (((_SIN3 * square + _SIN2) * square + _SIN1) * square + _SIN0)
    cosine = ((_COS3 * square + _COS2) * square + _COS1) * square + _COS0
    # quarter = top two bits: swap for an odd one; signs + - - + and + + - -
    odd = (v & _U(0x40000000)) != _U(0)
    sign_first = _U((v ^ _U(v << _U(1))) & _U(0x80000000))
    sign_second = _U(v & _U(0x80000000))
    first = sine if odd else cosine
    second = cosine if odd else sine
    first = _as_float(_U(_U(_as_int(first)) ^ sign_first))
    second = _as_float(_U(_U(_as_int(second)) ^ sign_second))
    return radius * first, radius * second


@njit(inline="always")
def _truncated(word, mass, bound):  # type: ignore[no-untyped-def]
    y = (_F(np.int32(word)) * _P31) * mass
    square = y * y
    p = (((((_P6 * square + _P5) * square + _P4) * square + _P3) * square + _P2) * square + _P1) * square + _P0
    return min(max(y * p, -bound), bound)


@njit(cache=True)
def _fill(out, scratch, kind, domain, k, key0, key1, first, count, mass, bound):  # type: ignore[no-untyped-def]
    """out[i] = entry first + i of direction k, rounded outwards to whole Philox blocks; returns where `first` is."""
    if kind == SIGNS:
        block = first // 128
        blocks = (first + count + 127) // 128 - block
        _fill_words(scratch, blocks, block, domain, k, key0, key1)
        for b in range(blocks):
            for w in range(4):
                word = scratch[w, b]
                base = 128 * b + 32 * w
                for i in range(32):
                    sign = _U(_U(word << _U(31 - i)) & _U(0x80000000))
                    out[base + i] = _as_float(_U(sign | _U(0x3F800000)))
        return first - 128 * block
    block = first // 4
    blocks = (first + count + 3) // 4 - block
    _fill_words(scratch, blocks, block, domain, k, key0, key1)
    if kind == NORMAL:
        for b in range(blocks):
            z0, z1 = _box_muller(scratch[0, b], scratch[1, b])
            z2, z3 = _box_muller(scratch[2, b], scratch[3, b])
            out[4 * b] = z0
            out[4 * b + 1] = z1
            out[4 * b + 2] = z2
            out[4 * b + 3] = z3
    else:
        for b in range(blocks):
            for w in range(4):
                out[4 * b + w] = _truncated(scratch[w, b], mass, bound)
    return first - 4 * block


@njit(cache=True, parallel=True)
def _combine(out, kind, domain, first_k, c, key0, key1, start, mass, bound):  # type: ignore[no-untyped-def]
    count = out.size
    chunks = (count + _CHUNK - 1) // _CHUNK
    for chunk in prange(chunks):
        a = chunk * _CHUNK
        n = min(_CHUNK, count - a)
        scratch = np.empty((4, _CHUNK // 4 + 2), np.uint32)
        v = np.empty(_CHUNK + 256, np.float32)
        total = np.zeros(_CHUNK, np.float32)
        for j in range(c.size):
            cj = c[j]
            if cj != _ZERO:
                at = _fill(v, scratch, kind, domain, first_k + j, key0, key1, start + a, n, mass, bound)
                for i in range(n):
                    total[i] = total[i] + cj * v[at + i]
        for i in range(n):
            out[a + i] = total[i]


@njit(cache=True, parallel=True)
def _combine_table(out, domain, number, table, key0, key1, start, add):  # type: ignore[no-untyped-def]
    """out = (out +) D * tile(table)."""
    count = out.size
    tile = table.size
    chunks = (count + _CHUNK - 1) // _CHUNK
    for chunk in prange(chunks):
        a = chunk * _CHUNK
        n = min(_CHUNK, count - a)
        scratch = np.empty((4, _CHUNK // 4 + 2), np.uint32)
        v = np.empty(_CHUNK + 256, np.float32)
        at = _fill(v, scratch, SIGNS, domain, number, key0, key1, start + a, n, _ZERO, _ZERO)
        if add:
            for i in range(n):
                out[a + i] = out[a + i] + v[at + i] * table[(start + a + i) & (tile - 1)]
        else:
            for i in range(n):
                out[a + i] = _ZERO + v[at + i] * table[(start + a + i) & (tile - 1)]


@njit(cache=True, parallel=True)
def _project(sums, kind, domain, first_k, x, key0, key1, start, mass, bound):  # type: ignore[no-untyped-def]
    """sums[s, j] = the part of <direction j, x> that lies in span s, in the order that `entries` fixes."""
    spans, directions = sums.shape
    group = max(1, min(16, directions // 4))  # directions a thread takes at a time
    groups = (directions + group - 1) // group
    stop = start + x.size
    first_span = start // _SPAN
    for task in prange(spans * groups):
        span = task // groups
        scratch = np.empty((4, _CHUNK // 4 + 2), np.uint32)
        v = np.empty(_CHUNK + 256, np.float32)
        a = max(start, (first_span + span) * _SPAN)
        end = min(stop, (first_span + span + 1) * _SPAN)
        j0 = (task % groups) * group
        j1 = min(j0 + group, directions)
        while a < end:
            n = min(end, (a // _CHUNK + 1) * _CHUNK) - a
            for j in range(j0, j1):
                at = _fill(v, scratch, kind, domain, first_k + j, key0, key1, a, n, mass, bound)
                lanes = np.zeros(_LANES, np.float32)
                i = 0
                while i < n and (a + i) % _LANES != 0:  # up to the first whole row of lanes
                    lanes[(a + i) % _LANES] += v[at + i] * x[a - start + i]
                    i += 1
                rows = (n - i) // _LANES
                for r in range(rows):
                    base = i + r * _LANES
                    for lane in range(_LANES):
                        lanes[lane] += v[at + base + lane] * x[a - start + base + lane]
                i += rows * _LANES
                while i < n:
                    lanes[(a + i) % _LANES] += v[at + i] * x[a - start + i]
                    i += 1
                total = 0.0
                for lane in range(_LANES):
                    total += np.float64(lanes[lane])
                sums[span, j] += total
            a += n


@njit(cache=True, parallel=True)
def _fold(sums, domain, number, x, key0, key1, start, from_span):  # type: ignore[no-untyped-def]
    """sums[s, j] = sum of D[i] x[i] over the elements i of span from_span + s with i mod B = j, in order."""
    spans, tile = sums.shape
    stop = start + x.size
    for s in prange(spans):
        scratch = np.empty((4, _CHUNK // 4 + 2), np.uint32)
        v = np.empty(_CHUNK + 256, np.float32)
        a = max(start, (from_span + s) * _SPAN)
        end = min(stop, (from_span + s + 1) * _SPAN)
        while a < end:
            n = min(end, (a // _CHUNK + 1) * _CHUNK) - a
            at = _fill(v, scratch, SIGNS, domain, number, key0, key1, a, n, _ZERO, _ZERO)
            for i in range(n):
                sums[s, (a + i) & (tile - 1)] += np.float64(v[at + i] * x[a - start + i])
            a += n


@njit(cache=True, parallel=True)
def _element_words(out, domain, k, key0, key1, start):  # type: ignore[no-untyped-def]
    count = out.size
    for chunk in prange((count + _CHUNK - 1) // _CHUNK):
        a = chunk * _CHUNK
        n = min(_CHUNK, count - a)
        scratch = np.empty((4, _CHUNK // 4 + 2), np.uint32)
        block = (start + a) // 4
        _fill_words(scratch, (start + a + n + 3) // 4 - block, block, domain, k, key0, key1)
        at = start + a - 4 * block
        for i in range(n):
            out[a + i] = scratch[(at + i) & 3, (at + i) >> 2]


def element_words(seed: int, domain: int, k: int, start: int, stop: int) -> NDArray[np.uint32]:
    """One random 32-bit word for each of the elements start..stop."""
    out = np.empty(stop - start, dtype=np.uint32)
    key0, key1 = split_seed(seed)
    _element_words(out, int(domain), k, _L(key0), _L(key1), start)
    return out


def _arguments(spec: Spec, length: int) -> tuple[int, int, tuple[int, int], Any, Any]:
    kind = _KINDS[spec.name]
    mass, bound = truncated_normal_constants(length) if kind == TRUNCATED_NORMAL else (_ZERO, _ZERO)
    domain = Domain.SIGNS if spec.name == "hadamard" else Domain.DIRECTION
    return kind, int(domain), split_seed(spec.seed), mass, bound


def direction(spec: Spec, k: int, start: int, stop: int, length: int) -> Floats:
    """Elements start..stop of direction k."""
    return combine(spec, k, np.ones(1, dtype=np.float32), start, stop, length)


def combine(spec: Spec, first: int, coefficients: Floats, start: int, stop: int, length: int) -> Floats:
    """sum_j coefficients[j] * direction(first + j) over elements start..stop, added up in this order."""
    kind, domain, (key0, key1), mass, bound = _arguments(spec, length)
    if spec.name != "hadamard":
        out = np.empty(stop - start, dtype=np.float32)
        c = np.ascontiguousarray(coefficients, dtype=np.float32)
        _combine(out, kind, domain, first, c, _L(key0), _L(key1), start, mass, bound)
        return out
    out = np.zeros(stop - start, dtype=np.float32)
    for position, (number, table) in enumerate(hadamard_tables(spec.tile, first, coefficients)):
        _combine_table(out, domain, number, table, _L(key0), _L(key1), start, position > 0)
    return out


def project(spec: Spec, first: int, count: int, x: Floats, start: int, length: int) -> Floats:
    """<direction(first + j), x> for j < count, where x holds elements start, start + 1, ..."""
    kind, domain, (key0, key1), mass, bound = _arguments(spec, length)
    x = np.ascontiguousarray(x, dtype=np.float32)
    spans = -(-(start + x.size) // _SPAN) - start // _SPAN if x.size else 0
    if spec.name != "hadamard":
        sums = np.zeros((spans, count))
        _project(sums, kind, domain, first, x, _L(key0), _L(key1), start, mass, bound)
        result = np.zeros(count)
        for row in sums:  # strictly in order
            result += row
        return result.astype(np.float32)
    result32 = np.zeros(count, dtype=np.float32)
    tile = spec.tile
    for number in range(first // tile, -(-(first + count) // tile)):
        folded = np.zeros(tile)
        wave = max(1, (1 << 24) // tile)  # spans at a time: bounds the memory for their sums by 128 MiB
        for from_span in range(0, spans, wave):
            sums = np.zeros((min(wave, spans - from_span), tile))
            _fold(sums, domain, number, x, _L(key0), _L(key1), start, start // _SPAN + from_span)
            for row in sums:
                folded += row
        transformed = hadamard_transform(folded)
        low, high = max(first, number * tile), min(first + count, (number + 1) * tile)
        result32[low - first : high - first] = transformed[low - number * tile : high - number * tile]
    return result32
