"""Plain reference of the low-rank basis: sums of outer products of signs, in NumPy.

On a matrix of m rows and n columns, direction k is sum_j u_j w_j^T / sqrt(r) over j < r, with u_j
of m signs and w_j of n; element e = j 2^44 + start + a of the stream's domain LEFT is u_j[a], and
likewise w_j[b] of RIGHT, where `start` is the index of the matrix' first element, so that no two
matrices share numbers. Vectors have the entries of `rademacher`, whatever the rank.

Sums are taken in single precision in an order that every implementation follows. All pairs
(direction, j) with a coefficient other than zero are counted through, in order; eight of them make
a group; a group is added up term by term, and the groups one after the other. (A table of the 2^8
sums of a group then serves all rows of a matrix.)
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseed.randomness.kernels import reference
from fedseed.randomness.kernels.reference import Floats, Part, Spec
from fedseed.randomness.matrices import Matrix
from fedseed.randomness.stream import Domain

GROUP = 8  # pairs of a group, and columns of a group in a projection
TILE = 16  # rows whose products a projection adds up before it adds them to the others'
PLACE = 44  # elements of u_j begin at j 2^44


Pairs = NDArray[Any]  # coefficient * u_j w_j^T each
PAIR = np.dtype([("seed", "u8"), ("k", "i8"), ("j", "i8"), ("coefficient", "f4")])


def pairs_of(spec: Spec, directions: Any, coefficients: Any = 1.0) -> Pairs:
    """Return the pairs of some directions, each of which has one coefficient for all of its
    pairs.
    """
    pairs = np.empty((spec.rank, len(directions)), dtype=PAIR)
    pairs["seed"], pairs["k"], pairs["j"] = spec.seed, directions, np.arange(spec.rank)[:, None]
    pairs["coefficient"] = coefficients
    return pairs.T.reshape(-1)


def pairs(parts: Sequence[Part]) -> Pairs:
    """Return all pairs of a sum that are not multiplied by zero, in order."""
    parts_found = [np.empty(0, dtype=PAIR)]
    for spec, first, coefficients in parts:
        scaled = np.asarray(coefficients, dtype=np.float32) * np.float32(1 / sqrt(spec.rank))
        nonzero = np.flatnonzero(scaled)
        parts_found.append(pairs_of(spec, first + nonzero, scaled[nonzero]))
    return np.concatenate(parts_found)


def factor(seed: int, domain: Domain, k: int, j: int, start: int, count: int) -> Floats:
    """Return `count` signs of u_j or w_j of a matrix whose first element has index `start`."""
    first = (j << PLACE) + start
    return reference.signs(seed, domain, k, first, first + count)


def signs(pairs: Pairs, domain: Domain, start: int, count: int) -> Floats:
    """Return signs start, start + 1, ... of every pair's factor in a domain, shape (pairs,
    count).
    """
    rows = [factor(seed, domain, k, j, start, count) for seed, k, j, _ in pairs.tolist()]
    if rows:
        return np.stack(rows)
    return np.zeros((0, count), dtype=np.float32)


def total(pairs: Pairs, matrix: Matrix, first: int, last: int) -> Floats:
    """Return the sum on rows first..last of a matrix, shape (last - first, columns)."""
    destination = np.zeros((last - first, matrix.columns), dtype=np.float32)
    for begin in range(0, len(pairs), GROUP):
        group = np.zeros_like(destination)
        for seed, k, j, coefficient in pairs[begin : begin + GROUP].tolist():
            u = factor(seed, Domain.LEFT, k, j, matrix.start, matrix.rows)[first:last]
            w = factor(seed, Domain.RIGHT, k, j, matrix.start, matrix.columns)
            group += u[:, None] * (coefficient * w)  # exact: signs
        destination += group
    return destination


def products(
    spec: Spec, first: int, count: int, matrix: Matrix, x: Floats, row: int
) -> NDArray[np.float64]:
    """Return <u_j w_j^T, x> for the r pairs of each direction first + i, i < count, on rows row,
    row + 1, ...

    Single precision along a row: groups of eight columns, each added up column by column, one group
    after the other.
    Double precision across rows: tiles of sixteen (row index div 16), each added up row by row, one
    tile after the other.

    Args:
        spec: the basis.
        first: index of the first direction.
        count: how many.
        matrix: where it lies.
        x: shape (rows, columns).
        row: which row of the matrix its first one is.
    """
    columns = np.pad(x, ((0, 0), (0, -x.shape[1] % GROUP)))
    rows_before, rows_after = row % TILE, -(row + len(x)) % TILE
    sums = np.zeros((count, spec.rank))
    for i, j in np.ndindex(sums.shape):
        w = factor(spec.seed, Domain.RIGHT, first + i, j, matrix.start, matrix.columns)
        terms = columns * np.pad(w, (0, -len(w) % GROUP))
        groups = reference.sum_in_order(terms.reshape(len(x), -1, GROUP), axis=2)
        rows = reference.sum_in_order(groups, axis=1).astype(np.float64)
        u = factor(spec.seed, Domain.LEFT, first + i, j, matrix.start, matrix.rows)[
            row : row + len(x)
        ]
        tiles = np.pad(rows * u, (rows_before, rows_after)).reshape(-1, TILE)
        sums[i, j] += reference.sum_in_order(reference.sum_in_order(tiles, axis=1), axis=0)
    return sums.reshape(-1)
