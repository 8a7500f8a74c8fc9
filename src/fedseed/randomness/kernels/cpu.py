"""Operations on directions for CPUs, compiled by numba: the reference's bits, without its temporary
arrays.

A chunk of CHUNK elements at a time, small enough for the first-level cache: the sum over directions
is made there and added to the weights in the same pass, so that memory sees one read and one write
of the weights. Chunks start at multiples of CHUNK in the global index, which makes all blocks of
random words whole; they are independent, so threads share them out without changing a bit. Loops
are written for LLVM's vectoriser; numba does not contract a multiplication and an addition unless
asked to, so each one rounds. All in one file, as numba's cache does not notice a change in a
compiled function of another file.
"""

import itertools
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import get_num_threads, njit, prange, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from fedseed.randomness import entries
from fedseed.randomness.kernels import reference
from fedseed.randomness.kernels.reference import Floats, Part, Spec, Stored
from fedseed.randomness.stream import MULTIPLIER_0, MULTIPLIER_1, WEYL_0, WEYL_1, Domain, split_seed

TENSORS = False  # arrays in, arrays out
Room = Callable[[int], Floats]

_U = np.uint32
_L = np.uint64
_F = np.float32
_M0, _M1 = _L(MULTIPLIER_0), _L(MULTIPLIER_1)
_W0, _W1 = _U(WEYL_0), _U(WEYL_1)
_S32 = _L(32)
_LOW = _L(0xFFFFFFFF)

NORMAL, TRUNCATED_NORMAL, SIGNS, TABLE = 0, 1, 2, 3
_KINDS = {
    "normal": NORMAL,
    "truncated_normal": TRUNCATED_NORMAL,
    "rademacher": SIGNS,
    "hadamard": TABLE,
}
# elements at a time where their entries are kept for a moment: with all else in the first-level
# cache
_PART = 1024
_RUN = 16 * entries.CHUNK  # elements that a thread takes at a time
# directions that `project` takes at a time, so that their sums do not wait for each other
_GROUP = 16
_CHUNK, _LANES, _SPAN = entries.CHUNK, entries.LANES, entries.SPAN
# columns of a Hadamard matrix from which a fold goes through the vector chunk of columns by chunk
# of columns: as many tasks as machines have threads
_WIDE = 16 * _CHUNK

_LOG0, _LOG1, _LOG2, _LOG3, _LOG4, _LOG5 = entries.LOG
_SIN0, _SIN1, _SIN2, _SIN3 = entries.SIN
_COS0, _COS1, _COS2, _COS3 = entries.COS
_P0, _P1, _P2, _P3, _P4, _P5, _P6 = entries.PROBIT
_SQRT_HALF = np.int32(entries.SQRT_HALF_BITS)
_TWO_LN_2, _P30, _P31 = entries.TWO_LN_2, entries.TWO_POW_MINUS_30, entries.TWO_POW_MINUS_31
_HALF, _ONE, _TWO, _ZERO = _F(0.5), _F(1), _F(2), _F(0)


def _tile_shape() -> tuple[int, int]:
    """(numbers in a register, rows of a matrix that a product takes): 28 of AVX-512's 32 registers,
    AVX2's 16; or 0.
    """
    # what numba compiles for
    features = set(cpu_target.target_context.codegen().magic_tuple()[2].split(","))
    return (
        (16, 8) if "+avx512f" in features else (8, 4) if {"+avx2", "+fma"} <= features else (0, 0)
    )


_REGISTER, _ROWS = _tile_shape()
_WIDTH = 3  # registers: inputs that a tile of a product is wide at most
_PANEL = _WIDTH * _REGISTER  # inputs
_STEPS = 4  # columns that a turn of a tile's loop takes
_DEPTH = 768  # columns of a matrix that a tile takes at a time
# elements of a matrix that a thread perturbs at a time: a quarter of a second-level cache
_SLAB = 1 << 16
_LEAST, _MOST = 4, 32  # times _ROWS rows of it at least, and at most


# -- instructions that Python has no words for
# -----------------------------------------------------------------------

_INDEX, _SHORT, _NUMBER, _HALF_NUMBER = (
    ir.IntType(64),
    ir.IntType(32),
    ir.FloatType(),
    ir.HalfType(),
)


def _instruction(result: Any, build: Callable[[Any, Any], Any]) -> Any:
    """Return a function of one argument, for which `build` writes instructions."""

    @intrinsic
    def instruction(_context, value):
        return result(value), lambda _context, builder, _signature, arguments: build(
            builder, arguments[0]
        )

    return instruction


# 32 integer bits as a float32, and back; 16 bits of a float16, and back, rounded to nearest, ties
# to even
_as_float = _instruction(types.float32, lambda builder, bits: builder.bitcast(bits, _NUMBER))
_as_int = _instruction(types.int32, lambda builder, value: builder.bitcast(value, _SHORT))
_from_half = _instruction(
    types.float32, lambda builder, bits: builder.fpext(builder.bitcast(bits, _HALF_NUMBER), _NUMBER)
)
_to_half = _instruction(
    types.uint16,
    lambda builder, value: builder.bitcast(builder.fptrunc(value, _HALF_NUMBER), ir.IntType(16)),
)
# the number at an address, which is one more afterwards: no other thread gets the same
_ticket = _instruction(
    types.int64,
    lambda builder, address: builder.atomic_rmw(
        "add", builder.inttoptr(address, _INDEX.as_pointer()), _INDEX(1), "monotonic"
    ),
)


def _pointer_to(builder: Any, address: Any, step: Any, row: int, kind: Any, offset: int = 0) -> Any:
    """Return a pointer to what lies `row` steps and an offset of bytes from an address."""
    place = builder.add(address, builder.add(builder.mul(step, _INDEX(row)), _INDEX(offset)))
    return builder.inttoptr(place, kind.as_pointer())


def _loop(
    builder: Any,
    values: list[Any],
    stop: Any,
    step: int,
    turn: Callable[[Any, list[Any]], list[Any]],
) -> Any:
    """Write a loop over i = 0, step, ... below `stop`.

    Returns the values after all calls of `turn(i, values)`.
    """
    entry, loop, exit_block = (
        builder.block,
        builder.append_basic_block(),
        builder.append_basic_block(),
    )
    builder.branch(loop)
    builder.position_at_end(loop)
    kinds = [_INDEX, *(value.type for value in values)]
    i, *current = running = [builder.phi(kind) for kind in kinds]
    next_values = turn(i, current)
    following = builder.add(i, _INDEX(step))
    for phi, first, later in zip(
        running, [_INDEX(0), *values], [following, *next_values], strict=True
    ):
        phi.add_incoming(first, entry)
        phi.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", following, stop), loop, exit_block)
    builder.position_at_end(exit_block)
    return next_values


# -- random words, and entries made of them
# --------------------------------------------------------------------------


@njit(cache=True)
def fill_words(destination, blocks, first, domain, k, key0, key1):
    """destination[w, b] = word w of Philox block first + b."""
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
        destination[0, b] = c0
        destination[1, b] = c1
        destination[2, b] = c2
        destination[3, b] = c3


@njit(inline="always")
def _box_muller(u, v):
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
def _truncated(word, mass, bound):
    y = (_F(np.int32(word)) * _P31) * mass
    square = y * y
    p = (
        ((((_P6 * square + _P5) * square + _P4) * square + _P3) * square + _P2) * square + _P1
    ) * square + _P0
    return min(max(y * p, -bound), bound)


@njit(cache=True)
def _fill(v, words, unit, k, block, blocks):
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
def signed(value, word, bit):
    """Return value with its sign turned if that bit of the word is set: the bit is moved to a
    float's sign bit.
    """
    return _as_float(_U(_U(_as_int(value)) ^ _U(_U(word << _U(31 - bit)) & _U(0x80000000))))


def _element_of(values, i):
    """Return number i of an array; one number is for all."""


@overload(_element_of, inline="always")
def _each_typed(values, i):
    return (
        (lambda values, i: values[i])
        if isinstance(values, types.Array)
        else (lambda values, i: values)
    )


@njit(cache=True)
def _add_signed(total, words, blocks, values):
    """total += signs * values."""
    for b in range(blocks):
        for w in range(4):
            word = words[w, b]
            element = 128 * b + 32 * w
            for i in range(32):
                total[element + i] += signed(_element_of(values, element + i), word, i)


# -- sums of directions, a chunk at a time
# ---------------------------------------------------------------------------


@njit(cache=True)
def _add_scaled(total, v, count, coefficient):
    """total += coefficient * v."""
    for i in range(count):
        total[i] = total[i] + coefficient * v[i]


@njit(cache=True)
def _sum_chunk(total, v, words, begin, count, units, payload):
    """total[i + (begin & 127)] = the sum of all units on element begin + i.

    Whole blocks of words, or a part of one.
    """
    lo = begin & 127
    block, blocks = begin >> 7, (lo + count + 127) >> 7
    first_entry, entry_count = (
        lo & ~3,
        ((lo + count + 3) >> 2) - (lo >> 2),
    )  # of entries that come in fours
    total[: 128 * blocks] = _ZERO
    for u in range(units.size):
        unit = units[u]
        if unit.kind == TABLE:
            fill_words(words, blocks, block, unit.domain, unit.first, unit.key0, unit.key1)
            _add_signed(
                total,
                words,
                blocks,
                payload[unit.begin + ((begin - lo) & (unit.end - unit.begin - 1)) :],
            )
            continue
        for j in range(unit.end - unit.begin):
            coefficient = payload[unit.begin + j]
            if coefficient != _ZERO and unit.kind == SIGNS:
                fill_words(words, blocks, block, unit.domain, unit.first + j, unit.key0, unit.key1)
                _add_signed(total, words, blocks, coefficient)
            elif coefficient != _ZERO:
                _fill(v, words, unit, unit.first + j, begin >> 2, entry_count)
                _add_scaled(total[first_entry:], v, 4 * entry_count, coefficient)


# -- weights in their dtypes
# -----------------------------------------------------------------------------------------


@njit(inline="always")
def _from_brain(bits):
    """bfloat16 bits as float32."""
    return _as_float(_U(_U(bits) << _U(16)))


@njit(inline="always")
def _to_brain(value):
    """bfloat16 bits of a float32, rounded to nearest, ties to even."""
    bits = _U(_as_int(value))
    rounded = _U(_U(bits + _U(0x7FFF) + _U(_U(bits >> _U(16)) & _U(1))) >> _U(16))
    return np.uint16(_U(0x7FC0) if _U(bits & _U(0x7FFFFFFF)) > _U(0x7F800000) else rounded)


def _get(source, i):
    """Weight i as a float32.

    Bits of bfloat16 are unsigned integers here, those of float16 signed ones (`bits`).
    """


@overload(_get, inline="always")
def _get_typed(source, i):
    if source.dtype == types.float32:
        return lambda source, i: source[i]
    if source.dtype == types.uint16:
        return lambda source, i: _from_brain(source[i])
    return lambda source, i: _from_half(source[i])


def _put(destination, i, value):
    """Weight i = value, rounded to its dtype."""


@overload(_put, inline="always")
def _put_typed(destination, i, value):
    if destination.dtype == types.float32:

        def put(destination, i, value):
            destination[i] = value
    elif destination.dtype == types.uint16:

        def put(destination, i, value):
            destination[i] = _to_brain(value)
    else:

        def put(destination, i, value):
            destination[i] = _to_half(value)

    return put


def bits(array: Stored, dtype: str) -> Stored:
    """Weights as the loops take them."""
    return array.view(np.int16) if dtype == "float16" else array


def _old(source, destination, i):
    """Weight i of the source; None: of `destination`.

    Loops whose input may be their output are not vectorised otherwise.
    """


@overload(_old, inline="always")
def _old_typed(source, destination, i):
    if isinstance(source, types.NoneType):
        return lambda source, destination, i: _get(destination, i)
    return lambda source, destination, i: _get(source, i)


@njit(cache=True)
def _store(destination, source, total, coefficient, scale):
    """destination[i] = round(source[i] + (scale * (coefficient * total[i]) + 0))."""
    for i in range(destination.size):
        _put(
            destination,
            i,
            _old(source, destination, i) + (scale * (coefficient * total[i]) + _ZERO),
        )


@njit(cache=True)
def _store_signs(destination, source, words, values, scale):
    """destination = round(source + (scale * (signs * values) + 0)), for whole blocks of random
    words.
    """
    for b in range(destination.size >> 7):
        for w in range(4):
            word = words[w, b]
            element = 128 * b + 32 * w
            for i in range(32):
                change = signed(scale * _element_of(values, element + i), word, i)
                _put(
                    destination,
                    element + i,
                    _old(source, destination, element + i) + (change + _ZERO),
                )


@njit(cache=True)
def _copy(destination, source, count):
    """destination[:count] = source[:count]; twice as fast as the assignment of a slice."""
    for i in range(count):
        destination[i] = source[i]


# -- moving: w + scale * sum, in one pass
# ----------------------------------------------------------------------------


@njit(cache=True)
def _add_sum(destination, source, begin, units, payload, scale, words, room):
    """destination = round(source + scale * sum of the units).

    Destination[0] is element `begin`, and whole blocks or a part of one.
    """
    first_unit = units[0]
    # no sum takes a detour then
    single = units.size == 1 and (
        first_unit.kind == TABLE or first_unit.end - first_unit.begin == 1
    )
    if single and first_unit.kind >= SIGNS and destination.size & 127 == 0:
        fill_words(
            words,
            destination.size >> 7,
            begin >> 7,
            first_unit.domain,
            first_unit.first,
            first_unit.key0,
            first_unit.key1,
        )
        if first_unit.kind == SIGNS:
            _store_signs(destination, source, words, payload[first_unit.begin], scale)
        else:
            _store_signs(
                destination,
                source,
                words,
                payload[first_unit.begin + (begin & (first_unit.end - first_unit.begin - 1)) :],
                scale,
            )
    elif single and first_unit.kind < SIGNS:
        v = room[0]
        _fill(
            v,
            words,
            first_unit,
            first_unit.first,
            begin >> 2,
            ((begin & 3) + destination.size + 3) >> 2,
        )
        _store(destination, source, v[begin & 3 :], payload[first_unit.begin], scale)
    else:
        total = room[1]
        _sum_chunk(total, room[0], words, begin, destination.size, units, payload)
        _store(destination, source, total[begin & 127 :], _ONE, scale)


@njit(cache=True)
def _move_run(destination, source, start, step, scale):
    """`move`, or `move_steps`: one sum after the other is added to what the last one left.

    `step` is a `Prepared`.
    """
    units, payload, ends, scales = step
    words, room = np.empty((4, _CHUNK // 4), np.uint32), np.empty((2, _CHUNK), np.float32)
    size = _PART if units[0].kind < SIGNS else _CHUNK
    begin, stop = start, start + destination.size
    in_place = destination.ctypes.data == source.ctypes.data
    while begin < stop:
        end = min(stop, begin // size * size + size)
        if begin & 127 or end - begin < 128:  # a part of a block of random words
            end = min(end, (begin | 127) + 1)
        else:
            end &= ~127
        part = destination[begin - start : end - start]
        first = 0
        for s in range(ends.size):
            if s or in_place:
                _add_sum(
                    part,
                    None,
                    begin,
                    units[first : ends[s]],
                    payload,
                    scale * scales[s],
                    words,
                    room,
                )
            else:
                _add_sum(
                    part,
                    source[begin - start :],
                    begin,
                    units[: ends[s]],
                    payload,
                    scale * scales[s],
                    words,
                    room,
                )
            first = ends[s]
        begin = end


@njit(cache=True, parallel=True)
def _move(destination, source, start, step, scale):
    first, stop = start // _RUN, start + destination.size
    for run in prange((stop + _RUN - 1) // _RUN - first):
        a, b = max(start, (first + run) * _RUN), min(stop, (first + run + 1) * _RUN)
        _move_run(destination[a - start : b - start], source[a - start : b - start], a, step, scale)


@njit(cache=True)
def _add_sums_run(destination, source, total, scale):
    """`add_sums` without threads."""
    if destination.ctypes.data == source.ctypes.data:
        _store(destination, None, total, _ONE, scale)
    else:
        _store(destination, source, total, _ONE, scale)


@njit(cache=True, parallel=True)
def _add_sums(destination, source, total, scale):
    for run in prange((destination.size + _RUN - 1) // _RUN):
        a, b = run * _RUN, min(destination.size, (run + 1) * _RUN)
        _add_sums_run(destination[a:b], source[a:b], total[a:b], scale)


# -- a product with a matrix that is moved in the cache
# --------------------------------------------------------------


def _tile(width):
    """Return a function that computes a tile of a product in registers, for inputs `width`
    registers wide.
    """

    @intrinsic
    def tile(_context, sums, inputs, row_bytes, matrix, stride, columns, ahead):
        """sums[r, i] += matrix[r, k] * inputs[k, i] for _ROWS rows, one column k after the other,
        each sum fused.

        All arguments are integers: addresses of the first sum, input and element of the matrix;
        bytes between rows of sums or inputs, and between rows of the matrix; how many columns, a
        multiple of _STEPS. `ahead`: address of memory that will be wanted soon; columns / _STEPS
        lines of it are fetched into the second-level cache.
        """

        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            sums, inputs, row_bytes, matrix, stride, columns, ahead = arguments
            register = ir.VectorType(_NUMBER, _REGISTER)
            fused = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(register, [register] * 3),
                f"llvm.fma.v{_REGISTER}f32",
            )
            byte = ir.IntType(8).as_pointer()
            fetch = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [byte, _SHORT, _SHORT, _SHORT]),
                "llvm.prefetch.p0",
            )
            parts = [4 * part * _REGISTER for part in range(width)]
            places = [
                _pointer_to(builder, sums, row_bytes, row, register, part)
                for row, part in itertools.product(range(_ROWS), parts)
            ]

            def everywhere(pointer: Any) -> Any:
                one = builder.insert_element(
                    register(ir.Undefined), builder.load(pointer, align=4), _SHORT(0)
                )
                return builder.shuffle_vector(
                    one, one, ir.VectorType(_SHORT, _REGISTER)([0] * _REGISTER)
                )

            def turn(column: Any, sums_so_far: list[Any]) -> list[Any]:
                total = list(sums_so_far)
                input_row = builder.add(inputs, builder.mul(column, row_bytes))
                start = builder.add(matrix, builder.mul(column, _INDEX(4)))
                line = _pointer_to(builder, ahead, column, 64 // _STEPS, ir.IntType(8))
                builder.call(fetch, [line, _SHORT(0), _SHORT(2), _SHORT(1)])
                for step in range(_STEPS):
                    values = [
                        builder.load(
                            _pointer_to(builder, input_row, row_bytes, step, register, p), align=4
                        )
                        for p in parts
                    ]
                    for row in range(_ROWS):
                        element = everywhere(
                            _pointer_to(builder, start, stride, row, _NUMBER, 4 * step)
                        )
                        for part, value in enumerate(values, row * width):
                            total[part] = builder.call(fused, [value, element, total[part]])
                return total

            total = _loop(
                builder, [builder.load(place, align=4) for place in places], columns, _STEPS, turn
            )
            for result, place in zip(total, places, strict=True):
                builder.store(result, place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return tile


_tile_1, _tile_2, _tile_3 = _tile(1), _tile(2), _tile(3)


@intrinsic
def _turn_tile(_context, target, row_bytes, source, stride):
    """to[i, r] = source[r, i] for _ROWS rows of a register each.

    Addresses, and bytes from row to row.

    Rows r and r + _ROWS / 2 are interleaved, log2(_ROWS) times: each time the index's first bit
    becomes its last.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, row_bytes, source, stride = arguments
        register = ir.VectorType(_NUMBER, _REGISTER)

        def pick(a: Any, b: Any, numbers: list[int]) -> Any:
            return builder.shuffle_vector(a, b, ir.VectorType(_SHORT, len(numbers))(numbers))

        rows = [
            builder.load(_pointer_to(builder, source, stride, row, register), align=4)
            for row in range(_ROWS)
        ]
        for _ in range(_ROWS.bit_length() - 1):
            pairs = zip(rows[: _ROWS // 2], rows[_ROWS // 2 :], strict=True)
            rows = []
            for a, b in pairs:
                for half in (0, _REGISTER // 2):
                    numbers = [half + i // 2 + i % 2 * _REGISTER for i in range(_REGISTER)]
                    rows.append(pick(a, b, numbers))
        for i in range(_REGISTER):
            row, first = rows[i * _ROWS // _REGISTER], i * _ROWS % _REGISTER
            part = pick(row, row, list(range(first, first + _ROWS)))
            builder.store(part, _pointer_to(builder, target, row_bytes, i, part.type), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@njit(cache=True)
def _turn(destination, source, rows):
    """destination[:, :rows] = the transpose of source[:rows].

    Rows are a multiple of _ROWS, columns of _REGISTER.
    """
    row_bytes, stride = destination.strides[0], source.strides[0]
    for i in range(0, source.shape[1], _REGISTER):
        for r in range(0, rows, _ROWS):  # addresses: slices would take longer to make than to use
            target = destination.ctypes.data + i * row_bytes + 4 * r
            origin = source.ctypes.data + r * stride + 4 * i
            _turn_tile(target, row_bytes, origin, stride)


@njit(cache=True)
def _multiply_slab(sums, x, slab, rows, ahead, last):
    """sums += slab times x, for a multiple of _ROWS rows.

    What lies from `ahead` to `last` is fetched meanwhile.
    """
    columns, count = x.shape
    for m in range(0, count, _PANEL):
        for k in range(0, columns, _DEPTH):
            depth = min(_DEPTH, columns - k)
            for row in range(0, rows, _ROWS):
                target, inputs = (
                    sums.ctypes.data + 4 * (row * count + m),
                    x.ctypes.data + 4 * (k * count + m),
                )
                matrix, near = (
                    slab.ctypes.data + 4 * (row * columns + k),
                    min(ahead, last - depth * 64 // _STEPS),
                )
                ahead += depth * 64 // _STEPS
                if count - m >= 3 * _REGISTER:
                    _tile_3(target, inputs, 4 * count, matrix, 4 * columns, depth, near)
                elif count - m == 2 * _REGISTER:
                    _tile_2(target, inputs, 4 * count, matrix, 4 * columns, depth, near)
                else:
                    _tile_1(target, inputs, 4 * count, matrix, 4 * columns, depth, near)


@njit(cache=True, parallel=True)
def _product(destination, x, source, bias, start, step, scale, room):
    """Slabs go to threads as they come for them: one that has to wait for its processor holds up
    nobody.
    """
    turned, slabs, sums, ticket = room
    columns, rows = x.shape[1], slabs.shape[1]
    for piece in prange(columns // 16):
        _turn(turned[16 * piece : 16 * piece + 16], x[:, 16 * piece : 16 * piece + 16], len(x))
    for thread in prange(len(slabs)):
        slab, slab_sums = slabs[thread], sums[thread]
        n = _ticket(ticket.ctypes.data) * rows
        while n < bias.size:
            row_count = min(rows, bias.size - n)
            begin, end = n * columns, min(source.size, (n + row_count) * columns)
            _move_run(
                slab.reshape(-1)[: end - begin], source[begin:end], start + begin, step, scale
            )
            for row in range(row_count):
                slab_sums[row] = bias[n + row]
            next_row = _ticket(ticket.ctypes.data) * rows
            ahead = source.ctypes.data + 4 * columns * min(next_row, bias.size)
            last = source.ctypes.data + 4 * columns * min(next_row + rows, bias.size)
            _multiply_slab(slab_sums, turned, slab, row_count, ahead, last)
            _turn(destination[:, n:], slab_sums, row_count)
            n = next_row


# -- inner products
# ------------------------------------------------------------------------------------------------


@njit(cache=True)
def _load(chunk, x, base, lo, hi, start):
    """chunk = elements base, base + 1, ... of x, zero outside lo..hi."""
    chunk[:lo] = _ZERO
    _copy(chunk[lo:], x[base + lo - start :], hi - lo)
    chunk[hi:] = _ZERO


@njit(cache=True)
def _sum_signed(lanes, words, count, chunk):
    """lanes[j, i] += sign of direction j * element i mod LANES, element by element."""
    for b in range(_CHUNK // 128):
        for w in range(4):
            row = chunk[128 * b + 32 * w :]
            for j in range(count):
                word = words[j, w, b]
                for i in range(32):
                    lanes[j, i] += signed(row[i], word, i)


@intrinsic
def _sum_rows(_context, lanes, v, chunk, rows):
    """lanes[i] += v[r, i] * chunk[r, i], row after row of _LANES; addresses.

    Sums stay in registers meanwhile.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        lanes, v, chunk, rows = arguments
        row_of = ir.VectorType(_NUMBER, _LANES)

        def turn(row: Any, current: list[Any]) -> list[Any]:
            a, b = (
                builder.load(_pointer_to(builder, array, row, 4 * _LANES, row_of), align=4)
                for array in (v, chunk)
            )
            return [builder.fadd(current[0], builder.fmul(a, b))]

        place = builder.inttoptr(lanes, row_of.as_pointer())
        [total] = _loop(builder, [builder.load(place, align=4)], rows, 1, turn)
        builder.store(total, place, align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@njit(cache=True)
def _project_span(sums, span, j0, units, x, start):
    """sums[j] = the part of <direction j, x> that lies in a span, for the group of directions from
    j0 on.
    """
    unit, count = units[0], min(_GROUP, sums.size - j0)
    words, lanes = (
        np.empty((_GROUP, 4, _CHUNK // 4), np.uint32),
        np.empty((_GROUP, _LANES), np.float32),
    )
    v, chunk = np.empty(_PART, np.float32), np.empty(_CHUNK, np.float32)
    base, end = max(start, span * _SPAN) // _CHUNK * _CHUNK, min(start + x.size, (span + 1) * _SPAN)
    while base < end:
        _load(chunk, x, base, max(start - base, 0), min(end - base, _CHUNK), start)
        lanes[:count] = _ZERO
        if unit.kind == SIGNS:
            for j in range(count):
                fill_words(
                    words[j],
                    _CHUNK // 128,
                    base >> 7,
                    unit.domain,
                    unit.first + j0 + j,
                    unit.key0,
                    unit.key1,
                )
            _sum_signed(lanes, words, count, chunk)
        else:
            for j in range(count):
                for part in range(0, _CHUNK, _PART):
                    _fill(v, words[0], unit, unit.first + j0 + j, (base + part) >> 2, _PART // 4)
                    _sum_rows(
                        lanes[j].ctypes.data,
                        v.ctypes.data,
                        chunk[part:].ctypes.data,
                        _PART // _LANES,
                    )
        for j in range(count):
            total = 0.0
            for lane in range(_LANES):
                total += np.float64(lanes[j, lane])
            sums[j0 + j] += total
        base += _CHUNK


@njit(cache=True)
def _fold_span(sums, span, units, x, start):
    """sums[j] = sum of D[i] x[i] over the elements i of a span with i mod width = j, in order."""
    unit, width = units[0], sums.size
    words, chunk = np.empty((4, _CHUNK // 4), np.uint32), np.empty(_CHUNK, np.float32)
    base, end = max(start, span * _SPAN) // _CHUNK * _CHUNK, min(start + x.size, (span + 1) * _SPAN)
    while base < end:
        lo, hi = max(start - base, 0), min(end - base, _CHUNK)
        fill_words(words, _CHUNK // 128, base >> 7, unit.domain, unit.first, unit.key0, unit.key1)
        if hi - lo == _CHUNK:
            _add_signed(sums[base & (width - 1) :], words, _CHUNK // 128, x[base - start :])
        else:
            _load(chunk, x, base, lo, hi, start)
            _add_signed(sums[base & (width - 1) :], words, _CHUNK // 128, chunk)
        base += _CHUNK


@njit(cache=True)
def _project_run(sums, tasks, units, x, start, from_span, first=0):
    """Project some tasks; a task is a span of a fold, or a span and a group of directions."""
    groups = (sums.shape[1] + _GROUP - 1) // _GROUP
    for task in range(first, first + tasks):
        if units[0].kind == TABLE:
            _fold_span(sums[task], from_span + task, units, x, start)
        else:
            row = task // groups
            _project_span(sums[row], from_span + row, (task % groups) * _GROUP, units, x, start)


@njit(cache=True, parallel=True)
def _project(sums, tasks, units, x, start, from_span):
    for task in prange(tasks):
        _project_run(sums, 1, units, x, start, from_span, task)


@njit(cache=True)
def _fold_columns(folded, tasks, units, x, start, first):
    """folded[j] += the sums over spans that `_fold_span` makes of column j, span after span.

    A task is a chunk of columns: its sums stay in the cache, however many columns there are.
    """
    unit, across = units[0], folded.size // _CHUNK
    words, chunk = np.empty((4, _CHUNK // 4), np.uint32), np.empty(_CHUNK, np.float32)
    sums = np.empty(_CHUNK, np.float32)
    begin, end = start // _CHUNK, (start + x.size + _CHUNK - 1) // _CHUNK
    for task in range(first, first + tasks):
        columns = folded[(begin + task) % across * _CHUNK :]
        number = begin + task
        while number < end:
            span = number * _CHUNK // _SPAN
            sums[:] = _ZERO
            while number < end and number * _CHUNK // _SPAN == span:
                base = number * _CHUNK
                lo, hi = max(start - base, 0), min(start + x.size - base, _CHUNK)
                fill_words(
                    words, _CHUNK // 128, base >> 7, unit.domain, unit.first, unit.key0, unit.key1
                )
                if hi - lo == _CHUNK:
                    _add_signed(sums, words, _CHUNK // 128, x[base - start :])
                else:
                    _load(chunk, x, base, lo, hi, start)
                    _add_signed(sums, words, _CHUNK // 128, chunk)
                number += across
            for i in range(_CHUNK):
                columns[i] += sums[i]


@njit(cache=True, parallel=True)
def _fold_columns_by_threads(folded, tasks, units, x, start, first):
    for task in prange(tasks):
        _fold_columns(folded, 1, units, x, start, first + task)


@njit(cache=True)
def _transform(x):
    """x = H x, in the reference's order: first all widths that fit into a chunk, chunk by chunk."""
    for lo in range(0, x.size, _CHUNK):
        _butterflies(x[lo : lo + _CHUNK], 1)
    if x.size > _CHUNK:
        _butterflies(x, _CHUNK)


@njit(cache=True)
def _butterflies(x, width):
    while width < x.size:
        for begin in range(0, x.size, 2 * width):
            for i in range(begin, begin + width):
                first, second = x[i], x[i + width]
                x[i], x[i + width] = first + second, first - second
        width *= 2


def hadamard_transform(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the same transform as the reference, bit for bit."""
    x = np.array(values, dtype=np.float64)
    _transform(x)
    return x


# -- words for the host
# ----------------------------------------------------------------------------------------------


@njit(cache=True)
def _add_rows(destination, rows):
    # added in order; for few numbers `np.add.accumulate` takes three times as long
    for row in range(len(rows)):
        for i in range(destination.size):
            destination[i] += rows[row, i]


@njit(cache=True)
def _fill_element_words(destination, domain, k, key0, key1, start):
    """destination = the words of elements start, start + 1, ...: four to a Philox block."""
    first = start // 4
    blocks = (start + destination.size + 3) // 4 - first
    words, ordered = np.empty((4, blocks), np.uint32), np.empty(4 * blocks, np.uint32)
    fill_words(words, blocks, first, domain, k, key0, key1)
    for b in range(blocks):
        for w in range(4):
            ordered[4 * b + w] = words[w, b]
    _copy(destination, ordered[start - 4 * first :], destination.size)


@njit(cache=True)
def _draw_brain(destination, values, words, count):
    """bfloat16 bits of floor(value / spacing + word / 2**32) * spacing, in whole numbers."""
    # add the word's upper half to the magnitude; for a negative value, add its complement
    for i in range(count):
        bits = _U(_as_int(values[i]))
        magnitude = _U(bits & _U(0x7FFFFFFF))
        sign = _U(bits >> _U(31))
        noise = _U(_U(words[i] >> _U(16)) ^ _U(sign * _U(0xFFFF)))
        upper = _U(_U(magnitude + noise) >> _U(16))
        signed = _U(upper | _U(sign << _U(15))) if upper != _U(0) else _U(0)  # a zero has no sign
        destination[i] = np.uint16(_U(0x7FC0) if magnitude > _U(0x7F800000) else signed)


@njit(cache=True)
def _draw_half(destination, values, words, count):
    """float16 bits of the same formula, computed in doubles: below 2**-14 a value may have more
    bits than whole numbers can hold.
    """
    for i in range(count):
        exponent = max((_as_int(values[i]) >> np.int32(23)) & np.int32(0xFF), np.int32(127 - 14))
        spacing = np.float64(_as_float(_U(_U(exponent - np.int32(10)) << _U(23))))
        inverse = np.float64(_as_float(_U(_U(np.int32(264) - exponent) << _U(23))))
        whole = np.floor(np.float64(values[i]) * inverse + np.float64(words[i]) * 2.0**-32)
        destination[i] = _to_half(_F(whole * spacing))


@njit(cache=True, parallel=True)
def _draw(destination, values, half, domain, k, key0, key1, start):
    for chunk in prange((destination.size + _CHUNK - 1) // _CHUNK):
        a, b = chunk * _CHUNK, min(destination.size, (chunk + 1) * _CHUNK)
        words = np.empty(b - a, np.uint32)
        _fill_element_words(words, domain, k, key0, key1, start + a)
        if half:
            _draw_half(destination[a:b], values[a:b], words, b - a)
        else:
            _draw_brain(destination[a:b], values[a:b], words, b - a)


def draw(
    destination: NDArray[np.uint16],
    values: Floats,
    dtype: str,
    rounding: tuple[int, int],
    start: int,
) -> None:
    """destination = values rounded up or down, by the words of elements start, start + 1, ..."""
    key0, key1 = split_seed(rounding[0])
    _draw(
        destination,
        values,
        dtype == "float16",
        int(Domain.ROUNDING),
        rounding[1],
        _L(key0),
        _L(key1),
        start,
    )


_UNIT = np.dtype(
    [
        ("kind", "i8"),
        ("domain", "i8"),
        ("key0", "u8"),
        ("key1", "u8"),
        ("first", "i8"),
        ("begin", "i8"),
        ("end", "i8"),
        ("mass", "f4"),
        ("bound", "f4"),
    ]
)


# -- the host's side: what the other kernels offer, too
# --------------------------------------------------------------


class Prepared(NamedTuple):
    """Sums as the compiled loops take them: a row per unit, and coefficients or tables one after
    the other.
    """

    units: NDArray[Any]
    payload: Floats
    ends: NDArray[np.int64]  # sum s has the units up to ends[s]
    scales: Floats  # what each sum is multiplied by


def _constants(spec: Spec, length: int) -> tuple[int, int, tuple[int, int], np.float32, np.float32]:
    kind = _KINDS[spec.name]
    mass, bound = (
        reference.truncated_normal_constants(length) if kind == TRUNCATED_NORMAL else (_ZERO, _ZERO)
    )
    domain = Domain.SIGNS if spec.name == "hadamard" else Domain.DIRECTION
    return kind, int(domain), split_seed(spec.seed), mass, bound


def prepare_steps(steps: Sequence[tuple[Sequence[Part], float]], length: int) -> Prepared:
    """Prepare (parts, scale) of each step in a block of `length` elements, for `move`."""
    rows: list[Any] = []
    payload, ends = [np.zeros(0, np.float32)], []
    position = 0
    for parts, _ in steps:
        first_row = len(rows)
        for spec, first, coefficients in parts:
            kind, domain, keys, mass, bound = _constants(spec, length)
            units = [(first, np.ascontiguousarray(coefficients, dtype=np.float32))]
            if kind == TABLE:  # small tables side by side, so that a chunk's columns are one run
                tables = reference.hadamard_tables(
                    spec.tile, first, coefficients, hadamard_transform
                )
                units = [
                    (number, np.tile(table, max(1, _CHUNK // spec.tile)))
                    for number, table in tables
                ]
            for number, values in units:
                rows.append(
                    (kind, domain, *keys, number, position, position + len(values), mass, bound)
                )
                payload.append(values)
                position += len(values)
        if len(rows) == first_row:  # nothing to add up; there is always a unit
            rows.append((NORMAL, 0, 0, 0, 0, position, position, _ZERO, _ZERO))
        ends.append(len(rows))
    scales = np.array([scale for _, scale in steps], dtype=np.float32)
    return Prepared(np.array(rows, dtype=_UNIT), np.concatenate(payload), np.array(ends), scales)


def move(
    destination: Stored, source: Stored, dtype: str, prepared: Prepared, scale: float, start: int
) -> None:
    """destination = round(source + scale * sum), where source holds elements start, start + 1, ...

    steps in one pass.
    """
    act = _move_run if len(destination) <= _RUN else _move  # threads would take longer to start
    act(bits(destination, dtype), bits(source, dtype), start, tuple(prepared), _F(scale))


def add_sums(destination: Stored, source: Stored, dtype: str, sums: Floats, scale: float) -> None:
    """destination = round(source + scale * sums), where the sums over directions are there
    already.
    """
    act = (
        _add_sums_run if len(destination) <= _RUN else _add_sums
    )  # threads would take longer to start
    act(bits(destination, dtype), bits(source, dtype), sums, _F(scale))


def _multiply(
    x: Floats,
    source: Floats,
    bias: Floats | None,
    prepared: Prepared,
    scale: float,
    start: int,
    room: Room,
) -> Floats:
    """Return x times the transpose of what `move` makes of `source`, plus bias: shape (n, rows).

    There is never more of that matrix than a slab for each thread. The sums are taken column after
    column with fused multiply-adds, whatever the number of threads. `x` has shape (n, columns),
    `source` (rows, columns), in C order; columns are a multiple of 16; `bias`, of shape (rows,), is
    added as it is. `room` gives memory for as many numbers as asked for; what it held is lost. The
    rest is as `move` takes it.
    """
    (count, columns), total, threads = x.shape, len(source), get_num_threads()
    rows = _ROWS * min(_MOST, max(_LEAST, _SLAB // columns // _ROWS))
    rows = min(rows, -(-total // (threads * _ROWS)) * _ROWS)  # some for each of many threads
    x = np.pad(x, ((0, -count % _REGISTER), (0, 0))) if count % _REGISTER else x
    biases = np.zeros(total + -total % _ROWS, np.float32)
    if bias is not None:
        biases[:total] = bias
    destination = np.empty((len(x), biases.size), np.float32)
    shapes = (1, columns, len(x)), (threads, rows, columns), (threads, rows, len(x))
    ends = [0, *accumulate(prod(shape) for shape in shapes)]
    memory = room(ends[-1])
    turned, slabs, sums = (
        memory[a:b].reshape(shape) for (a, b), shape in zip(pairwise(ends), shapes, strict=True)
    )
    workspace = turned[0], slabs, sums, np.zeros(1, np.int64)
    _product(
        destination, x, source.reshape(-1), biases, start, tuple(prepared), _F(scale), workspace
    )
    return destination[:count, :total]


def _fold_wide(
    spec: Spec, first: int, count: int, units: NDArray[Any], x: Floats, start: int
) -> NDArray[np.float64]:
    """Return a fold's sums where there are more columns than a cache has room for."""
    chunks = -(-(start + x.size) // _CHUNK) - start // _CHUNK if x.size else 0
    tasks = min(chunks, spec.tile // _CHUNK)
    act = _fold_columns if x.size <= _RUN else _fold_columns_by_threads
    columns = []
    for number in range(first // spec.tile, -(-(first + count) // spec.tile)):
        units["first"] = number
        columns.append(np.zeros(spec.tile))
        act(columns[-1], tasks, units, x, start, 0)
    return columns[0] if len(columns) == 1 else np.concatenate(columns or [np.zeros(0)])


product = _multiply if _REGISTER else None


def project_sums(
    spec: Spec, first: int, count: int, x: Floats, start: int, length: int
) -> NDArray[np.float64]:
    """Return the part of a projection that adds up over runs of elements (see the reference)."""
    kind, domain, keys, mass, bound = _constants(spec, length)
    units = np.array([(kind, domain, *keys, first, 0, 0, mass, bound)], dtype=_UNIT)
    x = np.ascontiguousarray(x, dtype=np.float32)
    spans = -(-(start + x.size) // _SPAN) - start // _SPAN if x.size else 0
    is_small = (
        x.size * (1 if kind == TABLE else count) <= _RUN
    )  # threads would take longer to start
    act = _project_run if is_small else _project
    if kind != TABLE:
        sums = np.zeros((max(1, spans), count))
        act(sums, spans * -(-count // _GROUP), units, x, start, start // _SPAN)
        return reference.sum_in_order(sums, axis=0)
    if spec.tile >= _WIDE:
        return _fold_wide(spec, first, count, units, x, start)
    width = max(spec.tile, _CHUNK)
    columns = []
    for number in range(first // spec.tile, -(-(first + count) // spec.tile)):
        folded, units["first"] = np.zeros(width), number
        # spans at a time: bounds the memory for their sums by 16 MiB
        wave = max(1, (1 << 22) // width)
        for from_span in range(0, spans, wave):
            sums = np.zeros((min(wave, spans - from_span), width), dtype=np.float32)
            act(sums, len(sums), units, x, start, start // _SPAN + from_span)
            _add_rows(folded, sums)
        columns.append(np.zeros(spec.tile))
        _add_rows(columns[-1], folded.reshape(-1, spec.tile))
    return np.concatenate(columns) if columns else np.zeros(0)
