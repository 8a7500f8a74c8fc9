"""Ferret's coefficients by least squares (its Eq. 5), for a few directions."""

import numpy as np
from numpy.typing import NDArray

from fedseed.methods.payload import Floats
from fedseed.randomness import Basis
from fedseed.randomness.matrices import Matrices

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
