"""Plain reference of the operations on directions: NumPy, short enough to check by eye.

Every other implementation gives the same bits as this one (`tests/randomness/test_kernels.py`).
Functions take a `Spec`, which names the basis without depending on it, and work on one run of
elements [start, stop) of the parameter vector, counted from the vector's beginning. `length` is the
size of the block the run belongs to.

Sums of directions are given as `Part`s and prepared once (`prepare_steps`), then used on any number
of runs of a block.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedseed.randomness import entries
from fedseed.randomness.matrices import Matrices
from fedseed.randomness.stream import Domain, words

TENSORS = False  # arrays in, arrays out
product = None  # a product is one of a copy

Floats = NDArray[np.float32]
Stored = NDArray[Any]  # float32, or the bits of a 16-bit dtype as uint16


class Spec(NamedTuple):
    """What a kernel needs to know of a basis."""

    name: str
    seed: int
    tile: int  # B, the Hadamard matrix' size; 1 for unstructured bases
    rank: int = 1  # r, of "lowrank"
    matrices: Matrices | None = None  # where the vector's matrices lie: "lowrank" needs it


class Part(NamedTuple):
    """sum_j coefficients[j] * direction(first + j) of one basis."""

    spec: Spec
    first: int
    coefficients: Floats


# what `project_all` of kernels on tensors takes for squares in place of products
SQUARES = Spec("squares", 0, 1)


class Job(NamedTuple):
    """One `move` of many (`structured.Kernels.move_all`)."""

    destination: Any
    source: Any
    dtype: str
    prepared: Any
    start: int


class Operand(NamedTuple):
    """A run of elements whose products with directions are wanted: of a - b, in single
    precision.
    """

    a: Any
    b: Any  # None: of a
    start: int  # index of the first element
    block: int
    directions: int
    length: int  # elements of the block


class Prepared(NamedTuple):
    """Steps ready for use in a block of `length` elements.

    Other implementations have their own form.
    """

    steps: Sequence[tuple[Sequence[Part], float]]
    length: int


def _polynomial(x: Floats, coefficients: tuple[np.float32, ...]) -> Floats:
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient  # two roundings: NumPy does not fuse them
    return value


def _normal(block_words: NDArray[np.uint32]) -> Floats:
    """Return Box and Muller's transform of words in pairs, in single precision."""
    w = block_words.reshape(-1, 2)
    # radius: sqrt(-2 ln p) with p = (31 bits + 1/2) / 2^31, so that |z| reaches 6.6
    f = (w[:, 0] >> 1).astype(np.int32).astype(np.float32) + entries.F(0.5)
    bits = f.view(np.int32) - np.int32(entries.SQRT_HALF_BITS)
    exponent = bits >> 23
    mantissa = ((bits & 0x7FFFFF) + np.int32(entries.SQRT_HALF_BITS)).view(np.float32)
    s = mantissa - entries.F(1.0)
    square = s * s
    log = (s - entries.F(0.5) * square) + (square * s) * _polynomial(s, entries.LOG)
    q = (31 - exponent).astype(np.float32) * entries.TWO_LN_2 - entries.F(2.0) * log
    radius = np.sqrt(np.maximum(q, entries.F(0.0)))
    # angle: a quarter from the top two bits, and x in [-1/2, 1/2) quarters from the other thirty
    quarter = w[:, 1] >> 30
    x = ((w[:, 1] & 0x3FFFFFFF).astype(np.int32) - np.int32(1 << 29)).astype(
        np.float32
    ) * entries.TWO_POW_MINUS_30
    square = x * x
    sine = x * _polynomial(square, entries.SIN)
    cosine = _polynomial(square, entries.COS)
    odd = (quarter & 1).astype(bool)
    first = np.where(odd, sine, cosine) * np.where(
        (quarter == 1) | (quarter == 2), entries.F(-1), entries.F(1)
    )
    second = np.where(odd, cosine, sine) * np.where(quarter >= 2, entries.F(-1), entries.F(1))
    return np.stack([radius * first, radius * second], axis=-1).reshape(-1)


def truncated_normal_constants(length: int) -> tuple[np.float32, np.float32]:
    """Return (erf(a / sqrt 2), a) in single precision, a rounded towards zero so that no entry
    exceeds 1/sqrt(d).
    """
    exact = entries.bound(length)
    bound = np.float32(exact)
    if float(bound) > exact:
        bound = np.nextafter(bound, np.float32(0))
    return np.float32(entries.central_mass(length)), bound


def _truncated_normal(block_words: NDArray[np.uint32], length: int) -> Floats:
    """Return sqrt(2) erfinv(u erf(a / sqrt 2)), u uniform on [-1, 1]: the inverse distribution
    function.
    """
    mass, bound = truncated_normal_constants(length)
    u = block_words.reshape(-1).view(np.int32).astype(np.float32) * entries.TWO_POW_MINUS_31
    y = u * mass
    return np.clip(y * _polynomial(y * y, entries.PROBIT), -bound, bound)


def _signs(block_words: NDArray[np.uint32]) -> Floats:
    """Return +1 for a bit 0 and -1 for a bit 1, lowest bit of the first word first."""
    bits = (block_words.reshape(-1, 1) >> np.arange(32, dtype=np.uint32)) & np.uint32(1)
    return entries.F(1) - entries.F(2) * bits.reshape(-1).astype(np.float32)


def signs(seed: int, domain: int, k: int, start: int, stop: int) -> Floats:
    """Return elements start..stop of a vector of signs."""
    first = start // 128
    return _signs(words(seed, domain, k, first, -(-stop // 128) - first))[start - first * 128 :][
        : stop - start
    ]


def _unstructured(spec: Spec, k: int, start: int, stop: int, length: int) -> Floats:
    """Return elements of a direction of an unstructured basis, or of the sign vector D of
    `hadamard`.
    """
    per_block = entries.ENTRIES_PER_BLOCK[spec.name]
    domain = Domain.SIGNS if spec.name == "hadamard" else Domain.DIRECTION
    first = start // per_block
    block_words = words(spec.seed, domain, k, first, -(-stop // per_block) - first)
    if spec.name == "normal":
        values = _normal(block_words)
    elif spec.name == "truncated_normal":
        values = _truncated_normal(block_words, length)
    else:
        values = _signs(block_words)
    return values[start - first * per_block :][: stop - start]


def element_words(seed: int, domain: int, k: int, start: int, stop: int) -> NDArray[np.uint32]:
    """Return a random 32-bit word for each of the elements start..stop: four elements share a
    Philox call.
    """
    first = start // 4
    return words(seed, domain, k, first, -(-stop // 4) - first).reshape(-1)[start - 4 * first :][
        : stop - start
    ]


Transform = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def hadamard_transform(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return H x for the Hadamard matrix H[k, j] = (-1)^popcount(k AND j), by butterflies of width
    1, 2, 4, ...

    The transform is its own transpose.
    """
    x = np.array(values, dtype=np.float64)
    width = 1
    while width < x.size:
        first_half, right = x.reshape(-1, 2, width).transpose(1, 0, 2)
        first_half[:], right[:] = first_half + right, first_half - right
        width *= 2
    return x


def hadamard_tables(
    tile: int, first: int, coefficients: Floats, transform: Transform = hadamard_transform
) -> list[tuple[int, Floats]]:
    """Return (number, H^T c) for each basis number that the directions first, first + 1, ...
    touch.

    Direction k is row k mod B of the basis with number k div B (B = `tile`).

    Args:
        tile: B.
        first: index of the first direction.
        coefficients: one for each direction.
        transform: `hadamard_transform`, or what has its bits.
    """
    stop = first + len(coefficients)
    tables = []
    for number in range(first // tile, -(-stop // tile)):
        lo, hi = max(first, number * tile), min(stop, (number + 1) * tile)
        padded = np.zeros(tile)
        padded[lo - number * tile : hi - number * tile] = coefficients[lo - first : hi - first]
        if padded.any():
            tables.append((number, transform(padded).astype(np.float32)))
    return tables


def prepare_steps(steps: Sequence[tuple[Sequence[Part], float]], length: int) -> Prepared:
    """Prepare (parts, scale) of each step in a block of `length` elements, for `move`."""
    return Prepared(steps, length)


def combine(parts: Sequence[Part], length: int, start: int, stop: int) -> Floats:
    """Return the sum of all parts over elements start..stop, added up term by term in their order.

    Directions with coefficient zero are skipped. The directions of a `hadamard` part that share a
    basis number make one term, D * tile(H^T c).
    """
    total = np.zeros(stop - start, dtype=np.float32)
    for spec, first, coefficients in parts:
        if spec.name == "hadamard":
            column = np.arange(start, stop) % spec.tile
            for number, table in hadamard_tables(spec.tile, first, coefficients):
                total += _unstructured(spec, number, start, stop, length) * table[column]
            continue
        for j, coefficient in enumerate(coefficients):
            if coefficient != 0:
                total += coefficient * _unstructured(spec, first + j, start, stop, length)
    return total


def move(
    destination: Stored, source: Stored, dtype: str, prepared: Prepared, scale: float, start: int
) -> None:
    """Set destination = round(source + scale * sum), all operations in single precision, rounded to
    the dtype at the end.

    Further steps are added to what the one before has left.

    Args:
        destination: where the result goes, 1-D; may be `source`. 16-bit dtypes are given as their
        bits
            (uint16).
        source: elements start, start + 1, ... of the weights.
        dtype: "float32", "bfloat16" or "float16".
        prepared: the sums of directions, and their own scales.
        scale: multiplies these.
        start: index of the first element in the parameter vector.
    """
    for parts, step_scale in prepared.steps:
        add_sums(
            destination,
            source,
            dtype,
            combine(parts, prepared.length, start, start + len(source)),
            scale * step_scale,
        )
        source = destination


def add_sums(destination: Stored, source: Stored, dtype: str, sums: Floats, scale: float) -> None:
    """Set destination = round(source + scale * sums), where the sums over directions are computed
    already.
    """
    change = sums * entries.F(scale) + entries.F(0)  # no negative zero
    destination[:] = from_float(to_float(source, dtype) + change, dtype)


def to_float(values: Stored, dtype: str) -> Floats:
    """Return stored weights as float32, exactly."""
    if dtype == "float32":
        return values
    if dtype == "float16":
        return values.view(np.float16).astype(np.float32)
    return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)


def from_float(values: Floats, dtype: str) -> Stored:
    """Rounds to nearest, ties to even; what is beyond the dtype's range becomes infinite."""
    if dtype == "float32":
        return values
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def draw(
    destination: Stored, values: Floats, dtype: str, rounding: tuple[int, int], start: int
) -> None:
    """Set destination = values, rounded up or down by the words of elements start, start + 1, ...,
    of a seed and a step.
    """
    words = element_words(rounding[0], Domain.ROUNDING, rounding[1], start, start + len(values))
    with np.errstate(over="ignore", invalid="ignore"):
        destination[:] = from_float(stochastic(values, words, dtype), dtype)


def stochastic(values: Floats, bits: NDArray[np.uint32], dtype: str) -> Floats:
    """Rounds each value to one of its two neighbours in a 16-bit dtype, right on average.

    Args:
        values: float32.
        bits: a random word for each: uniform on [0, 1) when divided by 2**32.
        dtype: "bfloat16" or "float16".

    Returns:
        float32 values that the dtype holds exactly (beyond its range: that round to infinity).
    """
    mantissa, least = (7, -126) if dtype == "bfloat16" else (10, -14)
    exact = values.astype(np.float64)
    exponent = np.maximum(np.frexp(exact)[1] - 1, least)  # |x| in [2^e, 2^(e + 1))
    spacing = np.ldexp(1.0, exponent - mantissa)
    return (np.floor(exact / spacing + bits * 2.0**-32) * spacing).astype(np.float32)


def sum_in_order(
    values: NDArray[np.float32] | NDArray[np.float64], axis: int
) -> NDArray[np.float64]:
    """Return the strictly sequential sum in the array's own precision.

    + 0 makes a negative zero positive.
    """
    return np.take(np.add.accumulate(values, axis=axis), -1, axis=axis) + values.dtype.type(0)


def _spans(start: int, stop: int) -> list[tuple[int, int]]:
    """Return [start, stop) cut at multiples of SPAN."""
    cuts = [start, *range((start // entries.SPAN + 1) * entries.SPAN, stop, entries.SPAN), stop]
    return [(a, b) for a, b in pairwise(cuts) if b > a]


def _align(values: Floats, start: int, unit: int) -> Floats:
    """Return `values` with zeros before and after, so that it covers whole units of the global
    index.
    """
    zeros_before = start % unit
    zeros_after = -(start + len(values)) % unit
    return np.pad(values, (zeros_before, zeros_after))


def project_sums(
    spec: Spec, first: int, count: int, x: Floats, start: int, length: int
) -> NDArray[np.float64]:
    """Return the part of a projection that adds up over runs of elements, in double precision.

    For `hadamard` these are B sums for each basis number, folded from the sums over each span
    (single precision, at most 256 numbers each); one transform then serves all directions. For
    other bases: the products themselves.
    """
    spans = _spans(start, start + len(x))
    if spec.name == "hadamard":
        # small tiles: several side by side, so that the work is the same
        width = max(spec.tile, entries.CHUNK)
        columns = []
        for number in range(first // spec.tile, -(-(first + count) // spec.tile)):
            folded = np.zeros(width)
            for a, b in spans:
                products = _unstructured(spec, number, a, b, length) * x[a - start : b - start]
                folded += sum_in_order(_align(products, a, width).reshape(-1, width), axis=0)
            # those that a tile puts together
            columns.append(sum_in_order(folded.reshape(-1, spec.tile), axis=0))
        if columns:
            return np.concatenate(columns)
        return np.zeros(0)
    result = np.zeros(count, dtype=np.float64)
    for j in range(count):
        for a, b in spans:
            products = _unstructured(spec, first + j, a, b, length) * x[a - start : b - start]
            rows = _align(products, a, entries.CHUNK).reshape(
                -1, entries.CHUNK // entries.LANES, entries.LANES
            )
            lanes = sum_in_order(rows, axis=1).astype(np.float64)
            result[j] += sum_in_order(sum_in_order(lanes, axis=1), axis=0)
    return result


def project_finish(
    spec: Spec,
    first: int,
    count: int,
    sums: NDArray[np.float64],
    transform: Transform = hadamard_transform,
) -> Floats:
    """Return the products, from what `project_sums` returned (or the sum of several such).

    `transform`: `hadamard_transform`, or what has its bits.
    """
    if spec.name != "hadamard":
        return sums.astype(np.float32)
    products = np.concatenate([transform(c) for c in sums.reshape(-1, spec.tile)] or [np.zeros(0)])
    begin = first % spec.tile
    return products[begin : begin + count].astype(np.float32)
