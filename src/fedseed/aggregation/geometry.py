"""Lengths and distances of clients' vectors, from all products of two of them; and the steps
before a rule.

Each step before a rule is a matrix M, so that the rule sees M X:

nearest neighbours   x_i <- the mean of the n - f vectors nearest to x_i, itself among them
                     Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: "Fixing by Mixing",
                     AISTATS 2023, Alg. 2
bucketing            shuffle, then the mean of s in a row; the last bucket may be smaller
                     Karimireddy, He, Jaggi: "Byzantine-Robust Learning on Heterogeneous Datasets
                     via Bucketing",
                     ICLR 2022, Algorithm 1
ARC                  the k = floor(2 (f / n) (n - f)) longest vectors are clipped to the length of
the next one
                     Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan: "Adaptive Gradient Clipping
                     for Robust
                     Federated Learning", ICLR 2025, Algorithm 2
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedseed.aggregation.base import Part, Vector, check_vectors
from fedseed.randomness import Domain, permutation

Matrix = NDArray[np.float64]

AT_A_TIME = 1 << 21  # numbers in double precision: 16 MiB
# a squared distance this far below the squared lengths is a zero with rounding errors
ROUNDING = 1e-12
# how far off a product of two vectors may be on another processor, as a share of their lengths'
# product: sums of 2^24 terms that are added up in another order and are off by 2^-53 each are off
# by the root of their number times that
PRODUCT_ROUNDING = 2.0**-41
# whole numbers below it add up without rounding
EXACT = 2.0**53


def columns(part: Part) -> Iterator[Matrix]:
    """Yield some entries of all vectors at a time, in double precision, (n, m)."""
    check_vectors(part, [0.0] * len(part))
    step = max(1, AT_A_TIME // len(part))
    for lo in range(0, len(part[0]), step):
        points = np.empty((len(part), min(step, len(part[0]) - lo)))
        for row, vector in zip(points, part, strict=True):
            row[:] = vector[lo : lo + step]
        yield points


def gram_of(parts: Iterable[Part], n: int) -> Matrix:
    """Return all products of two of n vectors, (n, n)."""
    total = np.zeros((n, n))
    for part in parts:
        for points in columns(part):
            total += points @ points.T
    return total


def with_rounding(gram: Matrix, seed: int) -> Matrix:
    """Return products as another processor may find them; those of whole numbers as they are.

    Args:
        gram: all products of two vectors, (n, n).
        seed: draws how far each is off.
    """
    if np.array_equal(gram, np.rint(gram)) and np.abs(gram).max(initial=0.0) < EXACT:
        return gram
    offsets = np.random.default_rng(seed).uniform(-PRODUCT_ROUNDING, PRODUCT_ROUNDING, gram.shape)
    offsets = np.triu(offsets) + np.triu(offsets, 1).T  # a product is the same in either order
    norms = lengths(gram)
    return gram + offsets * np.outer(norms, norms)


def apply_mixing(mixing: Matrix, points: Matrix) -> Matrix:
    """Return M X. Where M is diagonal, this needs no product of matrices."""
    scales = np.diagonal(mixing)
    is_square = len(scales) == len(points) == len(mixing)
    if is_square and np.count_nonzero(mixing) == np.count_nonzero(scales):
        return scales[:, None] * points
    return mixing @ points


def mix_gram(mixing: Matrix, gram: Matrix) -> Matrix:
    """Return the products of M X from those of X."""
    return apply_mixing(mixing, apply_mixing(mixing, gram).T)


def lengths(gram: Matrix) -> NDArray[np.float64]:
    """Return |x_i|, (n,)."""
    return np.sqrt(np.maximum(np.diagonal(gram), 0.0))


def squared_distances(gram: Matrix) -> Matrix:
    """Return |x_i - x_j|^2, (n, n)."""
    squares = np.diagonal(gram)
    sums = squares[:, None] + squares[None]
    distances = sums - 2 * gram
    distances[distances < ROUNDING * sums] = 0.0
    return distances


def distances_to(gram: Matrix, point: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return |x_i - z| for z = sum_j a_j x_j, (n,).

    Args:
        gram: the products.
        point: a, (n,).
    """
    along = gram @ point
    squares, square = np.diagonal(gram), float(point @ along)
    distances = squares - 2 * along + square
    distances[distances < ROUNDING * (squares + abs(square))] = 0.0
    return np.sqrt(distances)


def nearest_neighbours(gram: Matrix, liars: int) -> Matrix:
    """Return nearest-neighbour mixing, (n, n), from products of two.

    Among vectors that are equally near, the first count.
    """
    squares, count = squared_distances(gram), len(gram) - liars
    np.fill_diagonal(squares, -1.0)  # itself comes first
    nearest = np.argsort(squares, axis=1, kind="stable")[:, :count]
    mixing = np.zeros_like(squares)
    np.put_along_axis(mixing, nearest, 1.0 / count, axis=1)
    return mixing


def buckets(n: int, size: int, seed: int, round: int) -> Matrix:
    """Return bucketing, (n / s rounded up, n).

    Args:
        n: how many vectors.
        size: s.
        seed: the run's seed, which with the round decides which vectors share a bucket.
        round: the round's number.
    """
    order = permutation(seed, Domain.BUCKETS, n, round)
    mixing = np.zeros((-(-n // size), n))
    for bucket, row in enumerate(mixing):
        members = order[bucket * size : (bucket + 1) * size]
        row[members] = 1.0 / len(members)
    return mixing


def adaptive_clipping(gram: Matrix, liars: int) -> Matrix:
    """Return ARC, (n, n), from the products of two vectors, where f of them are liars'."""
    n, norms = len(gram), lengths(gram)
    clipped = int(2 * liars / n * (n - liars))
    bound = np.sort(norms)[n - clipped - 1]
    return np.diag(clipping(norms, bound))


def clipping(norms: Vector, bound: float | Literal["median"]) -> Vector:
    """Return min(1, bound / length) for each length; the bound may be their median."""
    bound = float(np.median(norms)) if bound == "median" else bound
    return np.minimum(1.0, bound / np.maximum(norms, np.finfo(float).tiny))
