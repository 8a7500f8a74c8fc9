"""Ferret's coefficients by least squares (its Eq. 5), for a few directions."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedseed.methods.payload import Floats
from fedseed.randomness import Basis
from fedseed.randomness.matrices import Matrices
from fedseed.weights.layout import Layout

EXACT_LIMIT = 512  # K_l^2 inner products of length d_l and K_l^2 numbers of memory are needed
GRAM_PIECE = 1 << 17  # elements of each direction held at a time


def least_squares(
    basis: Basis, block: int, products: Floats, start: int, stop: int, matrices: Matrices | None = None
) -> Floats:
    """gamma = (V^T V)^-1 V^T Delta, in double precision.

    Args:
        basis: the directions.
        block: the block's number, for errors.
        products: V^T Delta, shape (K_l,).
        start: where the block begins in the parameter vector.
        stop: where it ends.
        matrices: where the vector's matrices lie.

    Raises:
        ValueError: more than EXACT_LIMIT directions.
    """
    count = len(products)
    if count > EXACT_LIMIT:
        raise ValueError(f"exact: {count} directions in block {block}; at most {EXACT_LIMIT} are possible")
    gram = np.zeros((count, count))
    for a in range(start, stop, GRAM_PIECE):
        b = min(a + GRAM_PIECE, stop)
        v = np.stack([basis.direction(k, a, b, stop - start, matrices) for k in range(count)]).astype(np.float64)
        gram += v @ v.T
    solution: NDArray[np.floating] = np.linalg.lstsq(gram, products.astype(np.float64), rcond=None)[0]
    return solution.astype(np.float32)


def scaled(layout: Layout, basis: Basis, products: Sequence[Floats], exact: bool) -> list[Floats]:
    """gamma_l from V_l^T Delta_l: Eqs. 6 and 8 with K_l, or Eq. 5 if `exact`."""
    if exact:
        blocks = enumerate(pairwise(layout.boundaries))
        return [least_squares(basis, block, products[block], a, b, layout.matrices) for block, (a, b) in blocks]
    return [
        (p.astype(np.float64) / (basis.variance(size) * len(p))).astype(np.float32)
        for p, size in zip(products, layout.block_sizes, strict=True)
    ]
