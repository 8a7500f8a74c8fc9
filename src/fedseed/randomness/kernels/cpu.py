"""Operations on directions for CPUs, compiled by numba: the reference's bits, without its temporary arrays.

A chunk of CHUNK elements at a time, small enough for the first-level cache: the sum over directions is made there and
added to the weights in the same pass, so that memory sees one read and one write of the weights. Chunks start at
multiples of CHUNK in the global index, which makes all blocks of random words whole; they are independent, so threads
share them out without changing a bit. Loops are written for LLVM's vectoriser; numba does not contract a
multiplication and an addition unless asked to, so each one rounds. All in one file, as numba's cache does not notice a
change in a compiled function of another file.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, get_num_threads, njit, prange, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from fedseed.randomness import entries
from fedseed.randomness.kernels import reference
from fedseed.randomness.kernels.reference import Floats, Part, Spec, Stored, truncated_normal_constants
from fedseed.randomness.stream import MULTIPLIER_0, MULTIPLIER_1, WEYL_0, WEYL_1, Domain, split_seed

TENSORS = False  # arrays in, arrays out

_U = np.uint32
_L = np.uint64
_F = np.float32
_M0, _M1 = _L(MULTIPLIER_0), _L(MULTIPLIER_1)
_W0, _W1 = _U(WEYL_0), _U(WEYL_1)
_S32 = _L(32)
_LOW = _L(0xFFFFFFFF)

NORMAL, TRUNCATED_NORMAL, SIGNS, TABLE = 0, 1, 2, 3
_KINDS = {"normal": NORMAL, "truncated_normal": TRUNCATED_NORMAL, "rademacher": SIGNS, "hadamard": TABLE}
_PART = 1024  # elements at a time where their entries are kept for a moment: with all else in the first-level cache
_RUN = 16 * entries.CHUNK  # elements that a thread takes at a time
_GROUP = 16  # directions that `project` takes at a time, so that their sums do not wait for each other
_CHUNK, _LANES, _SPAN = entries.CHUNK, entries.LANES, entries.SPAN

_LOG0, _LOG1, _LOG2, _LOG3, _LOG4, _LOG5 = entries.LOG
_SIN0, _SIN1, _SIN2, _SIN3 = entries.SIN
_COS0, _COS1, _COS2, _COS3 = entries.COS
_P0, _P1, _P2, _P3, _P4, _P5, _P6 = entries.PROBIT
_SQRT_HALF = np.int32(entries.SQRT_HALF_BITS)
_TWO_LN_2, _P30, _P31 = entries.TWO_LN_2, entries.TWO_POW_MINUS_30, entries.TWO_POW_MINUS_31
_HALF, _ONE, _TWO, _ZERO = _F(0.5), _F(1), _F(2), _F(0)


def _tile_shape() -> tuple[int, int]:
    """What a matrix product computes in registers: (numbers in one, rows of the matrix), by the processor's features.

    Rows times _WIDTH registers hold sums, _WIDTH more a row of the inputs each, and one an element of the matrix:
    28 of AVX-512's 32, all 16 of AVX2. (0, 0) where there is neither, or no fused multiply-add.
    """
    features = set(cpu_target.target_context.codegen().magic_tuple()[2].split(","))  # what numba compiles for
    if "+avx512f" in features:
        return 16, 8
    return (8, 4) if {"+avx2", "+fma"} <= features else (0, 0)


_REGISTER, _ROWS = _tile_shape()
_WIDTH = 3  # registers: inputs that a tile of a product is wide at most
_PANEL = _WIDTH * _REGISTER  # inputs
_STEPS = 4  # columns that a turn of a tile's loop takes
_DEPTH = 768  # columns of a matrix that a tile takes at a time
_SLAB = 1 << 16  # elements of a matrix that a thread perturbs at a time: a quarter of a second-level cache
_FEW = 4  # threads that pack all inputs each: taking them from another core's cache takes longer
_LEAST, _MOST = 4, 32  # times _ROWS rows of it at least, and at most


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


# -- the Walsh-Hadamard transform -------------------------------------------------------------------------------------


@njit(cache=True)
def _butterflies(x):  # type: ignore[no-untyped-def]
    width = 1
    while width < x.size:
        for at in range(0, x.size, 2 * width):
            left, right = x[at : at + width], x[at + width : at + 2 * width]
            for i in range(width):
                a, b = left[i], right[i]
                left[i], right[i] = a + b, a - b
        width *= 2


def hadamard_transform(values: NDArray[Any]) -> NDArray[np.float64]:
    """H x: the reference's, without its temporary arrays."""
    x = np.array(values, dtype=np.float64)
    _butterflies(x)
    return x


hadamard_tables = partial(reference.hadamard_tables, transform=hadamard_transform)
project_finish = partial(reference.project_finish, transform=hadamard_transform)

# -- random words, and entries made of them --------------------------------------------------------------------------


@njit(cache=True)
def fill_words(out, blocks, first, domain, k, key0, key1):  # type: ignore[no-untyped-def]
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
def _fill(v, words, unit, k, block, blocks):  # type: ignore[no-untyped-def]
    """v = the entries of `blocks` blocks of a unit's direction k from `block` on."""
    mass, bound = unit.mass, unit.bound
    fill_words(words, blocks, block, unit.domain, k, unit.key0, unit.key1)
    if unit.kind == NORMAL:
        for b in range(blocks):
            v[4 * b], v[4 * b + 1] = _box_muller(words[0, b], words[1, b])
            v[4 * b + 2], v[4 * b + 3] = _box_muller(words[2, b], words[3, b])
    else:
        for b in range(blocks):
            for w in range(4):
                v[4 * b + w] = _truncated(words[w, b], mass, bound)


@njit(inline="always")
def _signed(value, word, bit):  # type: ignore[no-untyped-def]
    """value, with its sign turned if that bit of the word is set: a bit moved to a float's sign bit."""
    return _as_float(_U(_U(_as_int(value)) ^ _U(_U(word << _U(31 - bit)) & _U(0x80000000))))


def _each(values, i):  # type: ignore[no-untyped-def]
    """Number i of an array; one number is for all."""


@overload(_each, inline="always")
def _each_typed(values, i):  # type: ignore[no-untyped-def]
    return (lambda values, i: values[i]) if isinstance(values, types.Array) else (lambda values, i: values)


@njit(cache=True)
def _add_signed(total, words, blocks, values):  # type: ignore[no-untyped-def]
    """total += signs * values."""
    for b in range(blocks):
        for w in range(4):
            word = words[w, b]
            at = 128 * b + 32 * w
            for i in range(32):
                total[at + i] += _signed(_each(values, at + i), word, i)


# -- sums of directions, a chunk at a time ---------------------------------------------------------------------------


@njit(cache=True)
def _add_scaled(total, v, count, coefficient):  # type: ignore[no-untyped-def]
    """total += coefficient * v."""
    for i in range(count):
        total[i] = total[i] + coefficient * v[i]


@njit(cache=True)
def _sum_chunk(total, v, words, base, lo, hi, units, payload):  # type: ignore[no-untyped-def]
    """total[lo..hi] = the sum of all units over elements base + lo .. base + hi; base is a multiple of CHUNK."""
    for i in range(lo // 128 * 128, (hi + 127) // 128 * 128):
        total[i] = _ZERO
    for u in range(units.size):
        unit = units[u]
        kind, begin, end = unit.kind, unit.begin, unit.end
        if kind == TABLE:
            from_, blocks = lo >> 7, ((hi + 127) >> 7) - (lo >> 7)
            fill_words(words, blocks, (base >> 7) + from_, unit.domain, unit.first, unit.key0, unit.key1)
            column = begin + (base & (end - begin - 1)) + 128 * from_
            _add_signed(total[128 * from_ :], words, blocks, payload[column:])
        elif kind == SIGNS:
            from_, blocks = lo >> 7, ((hi + 127) >> 7) - (lo >> 7)
            for j in range(end - begin):
                if payload[begin + j] != _ZERO:
                    fill_words(words, blocks, (base >> 7) + from_, unit.domain, unit.first + j, unit.key0, unit.key1)
                    _add_signed(total[128 * from_ :], words, blocks, payload[begin + j])
        else:
            from_, blocks = lo >> 2, ((hi + 3) >> 2) - (lo >> 2)
            for j in range(end - begin):
                coefficient = payload[begin + j]
                if coefficient != _ZERO:
                    _fill(v, words, unit, unit.first + j, (base >> 2) + from_, blocks)
                    _add_scaled(total[4 * from_ :], v, 4 * blocks, coefficient)


@njit(cache=True)
def _fill_lone(total, words, unit, base, lo, hi, payload):  # type: ignore[no-untyped-def]
    """`_sum_chunk` of one direction, but for the sign of a zero, which `_store` does not mind."""
    from_, blocks = lo >> 2, ((hi + 3) >> 2) - (lo >> 2)
    v, coefficient = total[4 * from_ :], payload[unit.begin]
    _fill(v, words, unit, unit.first, (base >> 2) + from_, blocks)
    if coefficient != _ONE:
        for i in range(4 * blocks):
            v[i] *= coefficient


# -- weights in their dtypes -----------------------------------------------------------------------------------------


@intrinsic
def _from_half(_context: Any, bits: Any) -> Any:
    """float16 bits as float32; one instruction for many elements where the processor has it."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(bits), generate


@intrinsic
def _to_half(_context: Any, value: Any) -> Any:
    """float16 bits of a float32, rounded to nearest, ties to even."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(value), generate


@njit(inline="always")
def _from_brain(bits):  # type: ignore[no-untyped-def]
    """bfloat16 bits as float32."""
    return _as_float(_U(_U(bits) << _U(16)))


@njit(inline="always")
def _to_brain(value):  # type: ignore[no-untyped-def]
    """bfloat16 bits of a float32, rounded to nearest, ties to even."""
    bits = _U(_as_int(value))
    rounded = _U(_U(bits + _U(0x7FFF) + _U(_U(bits >> _U(16)) & _U(1))) >> _U(16))
    return np.uint16(_U(0x7FC0) if _U(bits & _U(0x7FFFFFFF)) > _U(0x7F800000) else rounded)


def _get(source, i):  # type: ignore[no-untyped-def]
    """Weight i as a float32. Bits of bfloat16 are unsigned integers here, those of float16 signed ones (`bits`)."""


@overload(_get, inline="always")
def _get_typed(source, i):  # type: ignore[no-untyped-def]
    if source.dtype == types.float32:
        return lambda source, i: source[i]
    if source.dtype == types.uint16:
        return lambda source, i: _from_brain(source[i])
    return lambda source, i: _from_half(source[i])


def _put(out, i, value):  # type: ignore[no-untyped-def]
    """Weight i = value, rounded to its dtype."""


@overload(_put, inline="always")
def _put_typed(out, i, value):  # type: ignore[no-untyped-def]
    if out.dtype == types.float32:

        def put(out, i, value):  # type: ignore[no-untyped-def]
            out[i] = value
    elif out.dtype == types.uint16:

        def put(out, i, value):  # type: ignore[no-untyped-def]
            out[i] = _to_brain(value)
    else:

        def put(out, i, value):  # type: ignore[no-untyped-def]
            out[i] = _to_half(value)

    return put


def bits(array: Stored, dtype: str) -> Stored:
    """Weights as the loops take them."""
    return array.view(np.int16) if dtype == "float16" else array


def _old(source, out, i):  # type: ignore[no-untyped-def]
    """Weight i of the source; None: of `out`. Loops whose input may be their output are not vectorised otherwise."""


@overload(_old, inline="always")
def _old_typed(source, out, i):  # type: ignore[no-untyped-def]
    if isinstance(source, types.NoneType):
        return lambda source, out, i: _get(out, i)
    return lambda source, out, i: _get(source, i)


@njit(cache=True)
def _store(out, source, total, count, scale):  # type: ignore[no-untyped-def]
    """out[i] = round(source[i] + (scale * total[i] + 0))."""
    for i in range(count):
        _put(out, i, _old(source, out, i) + (scale * total[i] + _ZERO))


@njit(cache=True)
def _store_signs(out, source, words, blocks, table, scale):  # type: ignore[no-untyped-def]
    """out = round(source + (scale * (signs * table) + 0))."""
    for b in range(blocks):
        for w in range(4):
            word = words[w, b]
            at = 128 * b + 32 * w
            for i in range(32):
                change = _signed(scale * table[at + i], word, i)
                _put(out, at + i, _old(source, out, at + i) + (change + _ZERO))


# -- moving: w + scale * sum, in one pass ----------------------------------------------------------------------------


@njit(cache=True)
def _copy(out, source, count):  # type: ignore[no-untyped-def]
    """out[:count] = source[:count]; twice as fast as the assignment of a slice."""
    for i in range(count):
        out[i] = source[i]


@njit(cache=True)
def _move_run(out, to, source, at, start, count, step):  # type: ignore[no-untyped-def]
    """`move` for `count` elements from index `start` on: out[to ...] of source[at ...]; `step` is `_step`'s."""
    units, payload, scale = step
    words = np.empty((4, _CHUNK // 4), np.uint32)
    v = np.empty(_CHUNK, np.float32)
    total = np.empty(_CHUNK, np.float32)
    stop = start + count
    only = units[0]
    # one sign per element and nothing else to add up (a single direction, or all of a structured basis): no detour
    direct = units.size == 1 and (only.kind == TABLE or (only.kind == SIGNS and only.end - only.begin == 1))
    lone = units.size == 1 and only.kind < SIGNS and only.end - only.begin == 1
    if direct and only.kind == SIGNS:
        v[: min(count, _CHUNK)] = payload[only.begin]
    same = out.ctypes.data + to * out.itemsize == source.ctypes.data + at * source.itemsize
    begin = start
    while begin < stop:
        base = begin // _CHUNK * _CHUNK
        end = min(stop, base + _CHUNK)
        here, there = to + begin - start, at + begin - start
        first, last = (begin + 127) // 128 * 128, end // 128 * 128  # whole blocks of random words
        if direct and begin == first < last:
            end, blocks = last, (last - first) // 128
            fill_words(words, blocks, first >> 7, only.domain, only.first, only.key0, only.key1)
            column = only.begin + (base & (only.end - only.begin - 1)) + first - base
            table = v if only.kind == SIGNS else payload[column:]
            if same:
                _store_signs(out[here:], None, words, blocks, table, scale)
            else:
                _store_signs(out[here:], source[there:], words, blocks, table, scale)
        else:
            if direct and first < last:
                end = first
            elif only.kind < SIGNS:
                base = begin // _PART * _PART
                end = min(stop, base + _PART)
            if lone:
                _fill_lone(total, words, only, base, begin - base, end - base, payload)
            else:
                _sum_chunk(total, v, words, base, begin - base, end - base, units, payload)
            if same:
                _store(out[here:], None, total[begin - base :], end - begin, scale)
            else:
                _store(out[here:], source[there:], total[begin - base :], end - begin, scale)
        begin = end


@njit(cache=True)
def add_sums_run(out, source, total, scale, same):  # type: ignore[no-untyped-def]
    """`add_sums` without threads; `same`: `out` is `source`."""
    if same:
        _store(out, None, total, out.size, scale)
    else:
        _store(out, source, total, out.size, scale)


@njit(cache=True, parallel=True)
def _add_sums(out, source, total, scale, same):  # type: ignore[no-untyped-def]
    for run in prange((out.size + _RUN - 1) // _RUN):
        a, b = run * _RUN, min(out.size, (run + 1) * _RUN)
        add_sums_run(out[a:b], source[a:b], total[a:b], scale, same)


@intrinsic
def _elements(_context, address, like):  # type: ignore[no-untyped-def]
    """An address as a pointer to elements of the dtype that `like` has."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(address, like), generate


@njit(cache=True)
def _move_many(runs, like, step):  # type: ignore[no-untyped-def]
    for i in range(runs.shape[0]):
        to, from_, start, count = runs[i]
        out, source = carray(_elements(to, like), (count,)), carray(_elements(from_, like), (count,))
        _move_run(out, 0, source, 0, start, count, step)


@njit(cache=True, parallel=True)
def _move(out, source, start, step):  # type: ignore[no-untyped-def]
    stop = start + out.size
    first = start // _RUN
    for run in prange((stop + _RUN - 1) // _RUN - first):
        a = max(start, (first + run) * _RUN)
        b = min(stop, (first + run + 1) * _RUN)
        _move_run(out, a - start, source, a - start, a, b - a, step)


@njit(cache=True)
def _move_some_rows(out, source, rows, first, last, width, start, step):  # type: ignore[no-untyped-def]
    for i in range(first, last):
        at = rows[i] * width
        _move_run(out, i * width, source, at, start + at, width, step)


@njit(cache=True, parallel=True)
def _move_rows(out, source, rows, width, start, step):  # type: ignore[no-untyped-def]
    for i in prange(rows.size):
        _move_some_rows(out, source, rows, i, i + 1, width, start, step)


# -- a product with a matrix that is moved in the cache --------------------------------------------------------------


def _tile(width):  # type: ignore[no-untyped-def]
    """A function that computes a tile of a product in registers, for inputs `width` registers wide."""

    @intrinsic
    def tile(_context, sums, inputs, matrix, stride, columns, ahead):  # type: ignore[no-untyped-def]
        """sums[r, i] += matrix[r, k] * inputs[k, i] for _ROWS rows, one column k after the other, each sum fused.

        All arguments are integers. sums: address of _ROWS rows of _PANEL numbers. inputs: address of `columns` rows of
        `width` registers. matrix: address of the first row; `stride` elements from row to row. columns: a multiple of
        _STEPS. ahead: address of memory that will be wanted soon; columns / _STEPS lines of it are fetched into the
        second-level cache.
        """

        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            sums, inputs, matrix, stride, columns, ahead = arguments
            index, single, short = ir.IntType(64), ir.FloatType(), ir.IntType(32)
            register = ir.VectorType(single, _REGISTER)
            byte = ir.IntType(8).as_pointer()
            fused = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(register, [register] * 3), f"llvm.fma.v{_REGISTER}f32"
            )
            fetch = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(ir.VoidType(), [byte, short, short, short]), "llvm.prefetch.p0"
            )

            def at(address: Any, offset: Any, kind: Any) -> Any:
                offset = ir.Constant(index, offset) if isinstance(offset, int) else offset
                return builder.inttoptr(builder.add(address, offset), kind.as_pointer())

            def everywhere(address: Any, offset: Any) -> Any:
                number = builder.load(at(address, offset, single), align=4)
                one = builder.insert_element(ir.Constant(register, ir.Undefined), number, ir.Constant(short, 0))
                chosen = ir.Constant(ir.VectorType(short, _REGISTER), [0] * _REGISTER)
                return builder.shuffle_vector(one, ir.Constant(register, ir.Undefined), chosen)

            places = [4 * (row * _PANEL + part * _REGISTER) for row in range(_ROWS) for part in range(width)]
            held = [builder.load(at(sums, place, register), align=4) for place in places]
            step = builder.mul(stride, ir.Constant(index, 4))
            rows = [builder.add(matrix, builder.mul(step, ir.Constant(index, row))) for row in range(_ROWS)]
            before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
            builder.branch(loop)
            builder.position_at_end(loop)
            column = builder.phi(index)
            column.add_incoming(ir.Constant(index, 0), before)
            running = []
            for value in held:
                running.append(builder.phi(register))
                running[-1].add_incoming(value, before)
            total = list(running)
            line = at(ahead, builder.mul(column, ir.Constant(index, 64 // _STEPS)), ir.IntType(8))
            builder.call(fetch, [line, ir.Constant(short, 0), ir.Constant(short, 2), ir.Constant(short, 1)])
            here = builder.add(inputs, builder.mul(column, ir.Constant(index, 4 * width * _REGISTER)))
            offset = builder.mul(column, ir.Constant(index, 4))
            starts = [builder.add(row, offset) for row in rows]
            for turn in range(_STEPS):
                parts = [
                    builder.load(at(here, 4 * (turn * width + part) * _REGISTER, register), align=4)
                    for part in range(width)
                ]
                for row in range(_ROWS):
                    element = everywhere(starts[row], 4 * turn)
                    for part in range(width):
                        i = row * width + part
                        total[i] = builder.call(fused, [parts[part], element, total[i]])
            following = builder.add(column, ir.Constant(index, _STEPS))
            column.add_incoming(following, loop)
            for value, result in zip(running, total, strict=True):
                value.add_incoming(result, loop)
            builder.cbranch(builder.icmp_signed("<", following, columns), loop, after)
            builder.position_at_end(after)
            for result, place in zip(total, places, strict=True):
                builder.store(result, at(sums, place, register), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), generate

    return tile


_tile_1, _tile_2, _tile_3 = _tile(1), _tile(2), _tile(3)


@intrinsic
def _transpose(_context, source, from_row, out, to_row):  # type: ignore[no-untyped-def]
    """out[i, r] = source[r, i] for _ROWS rows of a register each; addresses, and bytes from row to row.

    Rows r and r + _ROWS / 2 are interleaved, log2(_ROWS) times: each time the index's first bit becomes its last.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, from_row, out, to_row = arguments
        index, short = ir.IntType(64), ir.IntType(32)
        register = ir.VectorType(ir.FloatType(), _REGISTER)

        def at(address: Any, step: Any, row: int, kind: Any) -> Any:
            offset = builder.mul(step, ir.Constant(index, row))
            return builder.inttoptr(builder.add(address, offset), kind.as_pointer())

        def picked(a: Any, b: Any, numbers: list[int]) -> Any:
            return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(short, len(numbers)), numbers))

        rows = [builder.load(at(source, from_row, row, register), align=4) for row in range(_ROWS)]
        for _ in range(_ROWS.bit_length() - 1):
            mixed = []
            for a, b in zip(rows[: _ROWS // 2], rows[_ROWS // 2 :], strict=True):
                for half in (0, _REGISTER // 2):
                    mixed.append(picked(a, b, [half + i // 2 + (i % 2) * _REGISTER for i in range(_REGISTER)]))
            rows = mixed
        each = _REGISTER // _ROWS  # rows of the result in a register
        for i in range(_REGISTER):
            row = rows[i // each]
            part = picked(row, row, [(i % each) * _ROWS + r for r in range(_ROWS)])
            builder.store(part, at(out, to_row, i, part.type), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@njit(cache=True)
def _pack_panel(packed, x, m, lo, hi):  # type: ignore[no-untyped-def]
    """Columns lo..hi of rows m, m + 1, ... of x as a panel, transposed: a row of `packed` for each column of x."""
    columns = x.shape[1]
    width = min(_PANEL, (x.shape[0] - m + _REGISTER - 1) // _REGISTER * _REGISTER)
    to = packed[m * columns :]
    from_, into = x.ctypes.data, to.ctypes.data  # addresses: slices would take longer to make than to use
    whole = min(width, (x.shape[0] - m) // _ROWS * _ROWS)
    for k in range(lo, hi, _REGISTER):
        for i in range(0, whole, _ROWS):
            _transpose(from_ + 4 * ((m + i) * columns + k), 4 * columns, into + 4 * (k * width + i), 4 * width)
        for j in range(k, min(k + _REGISTER, hi) if whole < width else k):
            for i in range(whole, width):
                to[j * width + i] = x[m + i, j] if m + i < x.shape[0] else _ZERO


@njit(cache=True)
def _multiply_slab(out, packed, slab, rows, n, sums, bias, ahead):  # type: ignore[no-untyped-def]
    """out[:, n : n + rows] = inputs times the rows that `slab` holds, plus bias.

    ahead: first and last address of the next slab's weights, fetched meanwhile: as many lines a tile as it takes turns.
    """
    (count, total), columns = out.shape, slab.shape[1]
    groups = (rows + _ROWS - 1) // _ROWS
    line, lines = 0, (ahead[1] - ahead[0]) // 64
    # addresses: slices would take longer to make than to use
    inputs, of = packed.ctypes.data, slab.ctypes.data
    to, into = sums.ctypes.data, out.ctypes.data
    for m in range(0, count, _PANEL):
        width = min(_PANEL, (count - m + _REGISTER - 1) // _REGISTER * _REGISTER)
        for k in range(0, columns, _DEPTH):
            depth = min(_DEPTH, columns - k)
            x = inputs + 4 * (m * columns + k * width)
            for g in range(groups):
                row = g * _ROWS
                near = ahead[0] + 64 * max(0, min(line, lines - depth // _STEPS))
                line += depth // _STEPS
                tile, matrix = to + 4 * row * _PANEL, of + 4 * (row * columns + k)
                if k == 0:
                    for r in range(row, row + _ROWS):
                        sums[r, :width] = bias[n + r]
                if width == 3 * _REGISTER:
                    _tile_3(tile, x, matrix, columns, depth, near)
                elif width == 2 * _REGISTER:
                    _tile_2(tile, x, matrix, columns, depth, near)
                else:
                    _tile_1(tile, x, matrix, columns, depth, near)
        whole, full = min(_PANEL, (count - m) // _REGISTER * _REGISTER), rows // _ROWS * _ROWS
        for i in range(0, whole, _REGISTER):
            for row in range(0, full, _ROWS):
                _transpose(to + 4 * (row * _PANEL + i), 4 * _PANEL, into + 4 * ((m + i) * total + n + row), 4 * total)
        for row in range(rows):
            for i in range(whole if row < full else 0, min(_PANEL, count - m)):
                out[m + i, n + row] = sums[row, i]


@intrinsic
def _ticket(_context: Any, address: Any) -> Any:
    """The number at an address, which is one more afterwards: no other thread gets the same."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number = ir.IntType(64)
        place = builder.inttoptr(arguments[0], number.as_pointer())
        return builder.atomic_rmw("add", place, number(1), "monotonic")

    return types.int64(address), generate


@njit(cache=True, parallel=True)
def _product(out, x, source, bias, start, step, room):  # type: ignore[no-untyped-def]
    """Slabs go to threads as they come for them: one that has to wait for its processor holds up nobody."""
    packed, slabs, sums, taken = room
    count, columns = x.shape
    total = out.shape[1]
    panels, pieces = (count + _PANEL - 1) // _PANEL, (columns + 63) // 64  # pieces of a panel
    for piece in prange(packed.shape[0] * panels * pieces):
        panel, lo = piece // pieces, piece % pieces * 64
        _pack_panel(packed[panel // panels], x, panel % panels * _PANEL, lo, min(columns, lo + 64))
    threads, rows = slabs.shape[0], slabs.shape[1]
    for thread in prange(threads):
        n = _ticket(taken.ctypes.data) * rows
        while n < total:
            here = min(rows, total - n)
            begin = start + n * columns
            slab = slabs[thread]
            _move_run(slab.reshape(-1), 0, source, n * columns, begin, here * columns, step)
            slab[here : (here + _ROWS - 1) // _ROWS * _ROWS] = _ZERO
            after = _ticket(taken.ctypes.data) * rows
            next_ = source.ctypes.data + 4 * min(after, total) * columns
            ahead = (next_, next_ + 4 * max(0, min(rows, total - after)) * columns)
            _multiply_slab(out, packed[thread % packed.shape[0]], slab, here, n, sums[thread], bias, ahead)
            n = after


# -- many steps in one pass, each rounded ----------------------------------------------------------------------------


@njit(cache=True)
def _read(current, source, count):  # type: ignore[no-untyped-def]
    """current = the first `count` weights of source, as float32."""
    for i in range(count):
        current[i] = _get(source, i)


@njit(cache=True)
def _write(out, current, count):  # type: ignore[no-untyped-def]
    """The first `count` weights of out = current, rounded."""
    for i in range(count):
        _put(out, i, current[i])


def _round(out, current, count):  # type: ignore[no-untyped-def]
    """current = what is left of it in the dtype of out, which gets it too where it is a 16-bit one."""


@overload(_round)
def _round_typed(out, current, count):  # type: ignore[no-untyped-def]
    if out.dtype == types.float32:
        return lambda out, current, count: None

    def sixteen(out, current, count):  # type: ignore[no-untyped-def]
        _write(out, current, count)
        _read(current, out, count)

    return sixteen


@njit(cache=True)
def _steps_run(out, start, begin, end, prepared):  # type: ignore[no-untyped-def]
    """`move_steps` for elements begin..end of a vector whose element `start` is out[0]."""
    units, payload, ends, scales = prepared
    words = np.empty((4, _CHUNK // 4), np.uint32)
    v = np.empty(_CHUNK, np.float32)
    total = np.empty(_CHUNK, np.float32)
    current = np.zeros(_CHUNK, np.float32)
    base = begin // _CHUNK * _CHUNK
    while base < end:
        lo, hi = max(begin - base, 0), min(end - base, _CHUNK)
        here = out[base + lo - start :]
        _read(current[lo:], here, hi - lo)
        from_, blocks = lo >> 7, ((hi + 127) >> 7) - (lo >> 7)
        first = 0
        for step in range(ends.size):
            only = units[first]
            scale = scales[step]
            single = ends[step] - first == 1 and only.kind == SIGNS and only.end - only.begin == 1
            change = scale * payload[only.begin] if single else _ZERO
            if change != _ZERO:  # zero would have to be a positive one
                fill_words(words, blocks, (base >> 7) + from_, only.domain, only.first, only.key0, only.key1)
                _add_signed(current[128 * from_ :], words, blocks, change)
            else:
                _sum_chunk(total, v, words, base, lo, hi, units[first : ends[step]], payload)
                for i in range(lo, hi):
                    current[i] = current[i] + (scale * total[i] + _ZERO)
            if step + 1 < ends.size:
                _round(here, current[lo:], hi - lo)
            first = ends[step]
        _write(here, current[lo:], hi - lo)
        base += _CHUNK


@njit(cache=True, parallel=True)
def _steps(out, start, prepared):  # type: ignore[no-untyped-def]
    stop = start + out.size
    first = start // _CHUNK
    for chunk in prange((stop + _CHUNK - 1) // _CHUNK - first):
        a = max(start, (first + chunk) * _CHUNK)
        b = min(stop, (first + chunk + 1) * _CHUNK)
        _steps_run(out, start, a, b, prepared)


# -- the sum alone ---------------------------------------------------------------------------------------------------


@njit(cache=True)
def _combine_run(out, start, begin, end, units, payload):  # type: ignore[no-untyped-def]
    """out[begin - start ...] = the sum over elements begin..end."""
    words = np.empty((4, _CHUNK // 4), np.uint32)
    v = np.empty(_CHUNK, np.float32)
    total = np.empty(_CHUNK, np.float32)
    base = begin // _CHUNK * _CHUNK
    while base < end:
        lo, hi = max(begin - base, 0), min(end - base, _CHUNK)
        _sum_chunk(total, v, words, base, lo, hi, units, payload)
        _copy(out[base + lo - start :], total[lo:], hi - lo)
        base += _CHUNK


@njit(cache=True, parallel=True)
def _combine(out, start, units, payload):  # type: ignore[no-untyped-def]
    stop = start + out.size
    first = start // _RUN
    for run in prange((stop + _RUN - 1) // _RUN - first):
        a = max(start, (first + run) * _RUN)
        _combine_run(out, start, a, min(stop, (first + run + 1) * _RUN), units, payload)


# -- inner products --------------------------------------------------------------------------------------------------


@njit(cache=True)
def _load(chunk, x, base, lo, hi, start):  # type: ignore[no-untyped-def]
    """chunk = elements base, base + 1, ... of x, zero outside lo..hi."""
    chunk[:lo] = _ZERO
    _copy(chunk[lo:], x[base + lo - start :], hi - lo)
    chunk[hi:] = _ZERO


@njit(cache=True)
def _sum_signed(lanes, words, count, chunk):  # type: ignore[no-untyped-def]
    """lanes[j, i] += sign of direction j * element i mod LANES, element by element."""
    for b in range(_CHUNK // 128):
        for w in range(4):
            row = chunk[128 * b + 32 * w :]
            for j in range(count):
                word = words[j, w, b]
                for i in range(32):
                    lanes[j, i] += _signed(row[i], word, i)


@intrinsic
def _sum_rows(_context, lanes, v, chunk, rows):  # type: ignore[no-untyped-def]
    """lanes[i] += v[r, i] * chunk[r, i], row after row of _LANES; addresses. Sums stay in registers meanwhile."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        lanes, v, chunk, rows = arguments
        index, row_of = ir.IntType(64), ir.VectorType(ir.FloatType(), _LANES)

        def at(address: Any, row: Any) -> Any:
            offset = builder.mul(row, ir.Constant(index, 4 * _LANES))
            return builder.inttoptr(builder.add(address, offset), row_of.as_pointer())

        zero = ir.Constant(index, 0)
        begin = builder.load(at(lanes, zero), align=4)
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        row, total = builder.phi(index), builder.phi(row_of)
        product = builder.fmul(builder.load(at(v, row), align=4), builder.load(at(chunk, row), align=4))
        added, following = builder.fadd(total, product), builder.add(row, ir.Constant(index, 1))
        for phi, first, later in ((row, zero, following), (total, begin, added)):
            phi.add_incoming(first, before)
            phi.add_incoming(later, loop)
        builder.cbranch(builder.icmp_signed("<", following, rows), loop, after)
        builder.position_at_end(after)
        builder.store(added, at(lanes, zero), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@njit(cache=True)
def _sum_products(lanes, v, chunk):  # type: ignore[no-untyped-def]
    """lanes[i mod LANES] += v[i] * chunk[i], _PART elements."""
    _sum_rows(lanes.ctypes.data, v.ctypes.data, chunk.ctypes.data, _PART // _LANES)


@njit(cache=True)
def _project_task(sums, task, units, x, start):  # type: ignore[no-untyped-def]
    """sums[s, j] = the part of <direction j, x> that lies in span s, for a span and a group of directions."""
    unit, directions = units[0], sums.shape[1]
    groups = (directions + _GROUP - 1) // _GROUP
    stop = start + x.size
    first_span = start // _SPAN
    span = first_span + task // groups
    words = np.empty((_GROUP, 4, _CHUNK // 4), np.uint32)
    v = np.empty(_CHUNK, np.float32)
    chunk = np.empty(_CHUNK, np.float32)
    lanes = np.empty((_GROUP, _LANES), np.float32)
    j0 = (task % groups) * _GROUP
    count = min(_GROUP, directions - j0)
    base = max(start, span * _SPAN) // _CHUNK * _CHUNK
    end = min(stop, (span + 1) * _SPAN)
    while base < end:
        lo, hi = max(start - base, 0), min(end - base, _CHUNK)
        _load(chunk, x, base, lo, hi, start)
        lanes[:count] = _ZERO
        if unit.kind == SIGNS:
            for j in range(count):
                fill_words(words[j], _CHUNK // 128, base >> 7, unit.domain, unit.first + j0 + j, unit.key0, unit.key1)
            _sum_signed(lanes, words, count, chunk)
        else:
            for j in range(count):
                for part in range(0, _CHUNK, _PART):
                    _fill(v, words[0], unit, unit.first + j0 + j, (base + part) >> 2, _PART // 4)
                    _sum_products(lanes[j], v, chunk[part:])
        for j in range(count):
            total = 0.0
            for lane in range(_LANES):
                total += np.float64(lanes[j, lane])
            sums[span - first_span, j0 + j] += total
        base += _CHUNK


@njit(cache=True)
def _project_some(sums, first, last, units, x, start):  # type: ignore[no-untyped-def]
    for task in range(first, last):
        _project_task(sums, task, units, x, start)


@njit(cache=True, parallel=True)
def _project(sums, tasks, units, x, start):  # type: ignore[no-untyped-def]
    for task in prange(tasks):
        _project_task(sums, task, units, x, start)


@njit(cache=True)
def _fold_span(sums, s, units, x, start, from_span):  # type: ignore[no-untyped-def]
    unit = units[0]
    width = sums.shape[1]
    stop = start + x.size
    words = np.empty((4, _CHUNK // 4), np.uint32)
    chunk = np.empty(_CHUNK, np.float32)
    base = max(start, (from_span + s) * _SPAN) // _CHUNK * _CHUNK
    end = min(stop, (from_span + s + 1) * _SPAN)
    while base < end:
        lo, hi = max(start - base, 0), min(end - base, _CHUNK)
        fill_words(words, _CHUNK // 128, base >> 7, unit.domain, unit.first, unit.key0, unit.key1)
        if hi - lo == _CHUNK:
            _add_signed(sums[s, base & (width - 1) :], words, _CHUNK // 128, x[base - start :])
        else:
            _load(chunk, x, base, lo, hi, start)
            _add_signed(sums[s, base & (width - 1) :], words, _CHUNK // 128, chunk)
        base += _CHUNK


@njit(cache=True, parallel=True)
def _fold(sums, units, x, start, from_span):  # type: ignore[no-untyped-def]
    """sums[s, j] = sum of D[i] x[i] over the elements i of span from_span + s with i mod width = j, in order."""
    for s in prange(sums.shape[0]):
        _fold_span(sums, s, units, x, start, from_span)


@njit(cache=True)
def _add_rows(out, rows):  # type: ignore[no-untyped-def]
    """out += the rows, one after the other."""
    for row in range(rows.shape[0]):
        for i in range(out.size):
            out[i] += rows[row, i]


# -- words for the host ----------------------------------------------------------------------------------------------


@njit(cache=True)
def _fill_element_words(out, domain, k, key0, key1, start):  # type: ignore[no-untyped-def]
    """out = the words of elements start, start + 1, ...: four to a Philox block."""
    first = start // 4
    blocks = (start + out.size + 3) // 4 - first
    words, ordered = np.empty((4, blocks), np.uint32), np.empty(4 * blocks, np.uint32)
    fill_words(words, blocks, first, domain, k, key0, key1)
    for b in range(blocks):
        for w in range(4):
            ordered[4 * b + w] = words[w, b]
    _copy(out, ordered[start - 4 * first :], out.size)


@njit(cache=True, parallel=True)
def _element_words(out, domain, k, key0, key1, start):  # type: ignore[no-untyped-def]
    for chunk in prange((out.size + _CHUNK - 1) // _CHUNK):
        a = chunk * _CHUNK
        _fill_element_words(out[a : a + _CHUNK], domain, k, key0, key1, start + a)


def element_words(seed: int, domain: int, k: int, start: int, stop: int) -> NDArray[np.uint32]:
    """One random 32-bit word for each of the elements start..stop."""
    out = np.empty(stop - start, dtype=np.uint32)
    key0, key1 = split_seed(seed)
    fill = _fill_element_words if len(out) <= _RUN else _element_words  # threads would take longer to start
    fill(out, int(domain), k, _L(key0), _L(key1), start)
    return out


@njit(cache=True)
def _draw_brain(out, values, words, count):  # type: ignore[no-untyped-def]
    """bfloat16 bits of floor(value / spacing + word / 2**32) * spacing, in whole numbers.

    Of a word the upper 16 bits decide: what is added to a magnitude whose last 16 bits are cut off then, or, below
    zero, their complement. A zero has no sign.
    """
    for i in range(count):
        bits = _U(_as_int(values[i]))
        magnitude = _U(bits & _U(0x7FFFFFFF))
        sign = _U(bits >> _U(31))
        drawn = _U(_U(words[i] >> _U(16)) ^ _U(sign * _U(0xFFFF)))
        kept = _U(_U(magnitude + drawn) >> _U(16))
        signed = _U(kept | _U(sign << _U(15))) if kept != _U(0) else _U(0)
        out[i] = np.uint16(_U(0x7FC0) if magnitude > _U(0x7F800000) else signed)


@njit(cache=True)
def _draw_half(out, values, words, count):  # type: ignore[no-untyped-def]
    """float16 bits of the same, in doubles: below 2**-14 a value may have bits that whole numbers have no room for."""
    for i in range(count):
        exponent = max((_as_int(values[i]) >> np.int32(23)) & np.int32(0xFF), np.int32(127 - 14))
        spacing = np.float64(_as_float(_U(_U(exponent - np.int32(10)) << _U(23))))
        inverse = np.float64(_as_float(_U(_U(np.int32(264) - exponent) << _U(23))))
        whole = np.floor(np.float64(values[i]) * inverse + np.float64(words[i]) * 2.0**-32)
        out[i] = _to_half(_F(whole * spacing))


@njit(cache=True, parallel=True)
def _draw(out, values, half, domain, k, key0, key1, start):  # type: ignore[no-untyped-def]
    for chunk in prange((out.size + _CHUNK - 1) // _CHUNK):
        a, b = chunk * _CHUNK, min(out.size, (chunk + 1) * _CHUNK)
        words = np.empty(b - a, np.uint32)
        _fill_element_words(words, domain, k, key0, key1, start + a)
        if half:
            _draw_half(out[a:b], values[a:b], words, b - a)
        else:
            _draw_brain(out[a:b], values[a:b], words, b - a)


def draw(out: NDArray[np.uint16], values: Floats, dtype: str, seed: int, domain: int, k: int, start: int) -> None:
    """out = values rounded up or down, by the words of `element_words`."""
    key0, key1 = split_seed(seed)
    _draw(out, values, dtype == "float16", int(domain), k, _L(key0), _L(key1), start)


_UNIT = np.dtype(
    [("kind", "i8"), ("domain", "i8"), ("key0", "u8"), ("key1", "u8"), ("first", "i8"), ("begin", "i8"), ("end", "i8"),
     ("mass", "f4"), ("bound", "f4")]
)  # fmt: skip


# -- the host's side: what the other kernels offer, too --------------------------------------------------------------


class Prepared(NamedTuple):
    """Parts as the compiled loops take them: a row per unit, and coefficients or tables one after the other."""

    units: NDArray[Any]
    payload: Floats


def _constants(spec: Spec, length: int) -> tuple[int, int, tuple[int, int], np.float32, np.float32]:
    kind = _KINDS[spec.name]
    mass, bound = truncated_normal_constants(length) if kind == TRUNCATED_NORMAL else (_ZERO, _ZERO)
    domain = Domain.SIGNS if spec.name == "hadamard" else Domain.DIRECTION
    return kind, int(domain), split_seed(spec.seed), mass, bound


def prepare(parts: Sequence[Part], length: int) -> Prepared:
    """Prepares a sum of directions in a block of `length` elements, for `combine` and `move`."""
    rows, payload = [(SIGNS, 0, 0, 0, 0, 0, 0, _ZERO, _ZERO)], [np.zeros(0, np.float32)]  # nothing: there is always one
    position = 0
    for spec, first, coefficients in parts:
        kind, domain, keys, mass, bound = _constants(spec, length)
        if kind == TABLE:
            # small tables side by side, so that a chunk's columns are one run
            named = [
                (number, np.tile(table, max(1, _CHUNK // spec.tile)))
                for number, table in hadamard_tables(spec.tile, first, coefficients)
            ]
        else:
            named = [(first, np.ascontiguousarray(coefficients, dtype=np.float32))]
        for number, values in named:
            rows.append((kind, domain, *keys, number, position, position + len(values), mass, bound))
            payload.append(values)
            position += len(values)
    return Prepared(np.array(rows[1:] or rows, dtype=_UNIT), np.concatenate(payload))


def combine(prepared: Prepared, start: int, stop: int) -> Floats:
    """The sum of all parts over elements start..stop, added up term by term in their order."""
    out = np.empty(stop - start, dtype=np.float32)
    if len(out) <= _RUN:  # threads would take longer to start
        _combine_run(out, start, start, stop, prepared.units, prepared.payload)
    else:
        _combine(out, start, prepared.units, prepared.payload)
    return out


def _step(prepared: Prepared, scale: float) -> tuple[NDArray[Any], Floats, np.float32]:
    """What the loops that move weights take: units, payload, scale."""
    return prepared.units, prepared.payload, _F(scale)


def move(out: Stored, source: Stored, dtype: str, prepared: Prepared, scale: float, start: int) -> None:
    """out = round(source + scale * sum), where source holds elements start, start + 1, ..."""
    step, out, source = _step(prepared, scale), bits(out, dtype), bits(source, dtype)
    if len(out) <= _RUN:  # threads would take longer to start
        _move_run(out, 0, source, 0, start, len(out), step)
    else:
        _move(out, source, start, step)


def add_sums(out: Stored, source: Stored, dtype: str, sums: Floats, scale: float) -> None:
    """out = round(source + scale * sums), where the sums over directions are there already."""
    same = out.ctypes.data == source.ctypes.data
    act = add_sums_run if len(out) <= _RUN else _add_sums  # threads would take longer to start
    act(bits(out, dtype), bits(source, dtype), sums, _F(scale), same)


def move_many(moves: Sequence[tuple[Stored, Stored, int]], dtype: str, prepared: Prepared, scale: float) -> None:
    """`move` for each (out, source, start), without threads: calls take longer than what they do for a small run."""
    runs = [(out.ctypes.data, source.ctypes.data, start, len(out)) for out, source, start in moves]
    if runs:
        _move_many(np.array(runs), bits(moves[0][0], dtype), _step(prepared, scale))


class PreparedSteps(NamedTuple):
    """Several sums, one after the other: step s has the units up to ends[s]."""

    units: NDArray[Any]
    payload: Floats
    ends: NDArray[np.int64]
    scales: Floats


def prepare_steps(steps: Sequence[tuple[Sequence[Part], float]], length: int) -> PreparedSteps:
    """Prepares (parts, scale) of each step in a block of `length` elements, for `move_steps`."""
    units, payload, ends = [], [], []
    position = 0
    for parts, _ in steps:
        prepared = prepare(parts, length)
        prepared.units["begin"] += position
        prepared.units["end"] += position
        position += len(prepared.payload)
        units.append(prepared.units)
        payload.append(prepared.payload)
        ends.append(len(prepared.units))
    scales = np.array([scale for _, scale in steps], dtype=np.float32)
    return PreparedSteps(np.concatenate(units), np.concatenate(payload), np.cumsum(ends), scales)


def move_steps(out: Stored, dtype: str, prepared: PreparedSteps, start: int) -> None:
    """`move` in place for one step after the other, each rounded, in one pass over the weights."""
    if len(out) <= _CHUNK:
        _steps_run(bits(out, dtype), start, start, start + len(out), tuple(prepared))
    else:
        _steps(bits(out, dtype), start, tuple(prepared))


def move_rows(
    out: Stored, source: Stored, rows: NDArray[np.int64], dtype: str, prepared: Prepared, scale: float, start: int
) -> None:
    """out[i] = what `move` makes of row rows[i] of `source`, a matrix whose first element has index `start`."""
    to, from_, width = bits(out.reshape(-1), dtype), bits(source.reshape(-1), dtype), source.shape[1]
    if out.size <= _RUN:
        _move_some_rows(to, from_, rows, 0, len(rows), width, start, _step(prepared, scale))
    else:
        _move_rows(to, from_, rows, width, start, _step(prepared, scale))


def _multiply(
    out: Floats,
    x: Floats,
    source: Floats,
    bias: Floats | None,
    prepared: Prepared,
    scale: float,
    start: int,
    room: Callable[[int], Floats],
) -> None:
    """`product` of the reference, and never more of the matrix that it multiplies by than a slab for each thread.

    The sums are taken column after column with fused multiply-adds, whatever the number of threads. A tile is _ROWS
    rows of the matrix by up to _PANEL inputs, which are packed first, so that it reads them in order; while a slab is
    multiplied, the weights of the next one are fetched.
    """
    count, columns = x.shape
    threads, rows = get_num_threads(), _ROWS * min(_MOST, max(_LEAST, _SLAB // columns // _ROWS))
    rows = min(rows, -(-out.shape[1] // (threads * _ROWS)) * _ROWS)  # some for each of many threads
    biases = np.zeros(-(-out.shape[1] // _ROWS) * _ROWS, np.float32)
    if bias is not None:
        biases[: len(bias)] = bias
    copies = threads if threads <= _FEW else 1
    first = copies * -(-count // _REGISTER) * _REGISTER * columns
    second = first + threads * rows * columns
    memory = room(second + threads * rows * _PANEL)
    packed, slabs, sums = memory[:first], memory[first:second], memory[second : second + threads * rows * _PANEL]
    slabs, sums = slabs.reshape(threads, rows, columns), sums.reshape(threads, rows, _PANEL)
    kept = packed.reshape(copies, -1), slabs, sums, np.zeros(1, np.int64)
    _product(out, x, source.reshape(-1), biases, start, _step(prepared, scale), kept)


product = _multiply if _REGISTER else None


def project_sums(spec: Spec, first: int, count: int, x: Floats, start: int, length: int) -> NDArray[np.float64]:
    """Returns the part of a projection that adds up over runs of elements (see the reference)."""
    kind, domain, keys, mass, bound = _constants(spec, length)
    units = np.array([(kind, domain, *keys, first, 0, 0, mass, bound)], dtype=_UNIT)
    x = np.ascontiguousarray(x, dtype=np.float32)
    spans = -(-(start + x.size) // _SPAN) - start // _SPAN if x.size else 0
    if kind != TABLE:
        sums = np.zeros((spans, count))
        tasks = spans * -(-count // _GROUP)
        if x.size * count <= _RUN:
            _project_some(sums, 0, tasks, units, x, start)
        else:
            _project(sums, tasks, units, x, start)
        result = np.zeros(count)
        _add_rows(result, sums)
        return result
    width = max(spec.tile, _CHUNK)
    columns = []
    for number in range(first // spec.tile, -(-(first + count) // spec.tile)):
        folded, units["first"] = np.zeros(width), number
        wave = max(1, (1 << 22) // width)  # spans at a time: bounds the memory for their sums by 16 MiB
        for from_span in range(0, spans, wave):
            sums = np.zeros((min(wave, spans - from_span), width), dtype=np.float32)
            if len(sums) == 1:
                _fold_span(sums, 0, units, x, start, start // _SPAN + from_span)
            else:
                _fold(sums, units, x, start, start // _SPAN + from_span)
            _add_rows(folded, sums)
        column = np.zeros(spec.tile)
        _add_rows(column, folded.reshape(-1, spec.tile))
        columns.append(column)
    return np.concatenate(columns) if columns else np.zeros(0)
