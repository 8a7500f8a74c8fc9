"""Random subspaces of the weight matrices, as FedKRSO trains in them.

Yang, Wu, Guo, Sun, Gong: "Federated K-Seed Random Subspace Optimization", INFOCOM 2026.

On a matrix W of m rows and n columns a subspace of rank r is spanned by the r rows of a matrix P,
as long as the matrix' longer side. Its entries are signs over the root of r, drawn from the shared
stream by the subspace's seed, so that E[P^T P] = I. A change of W is B P, or (B P)^T where the rows
are the longer side; B has as many rows as the shorter side; only B is trained and sent. With K
subspaces there are K matrices P and B. They are concatenated, so that B has K r columns.

It needs no torch: the coordinator, which has no model, counts and combines the entries of B.
"""

from dataclasses import dataclass
from math import prod, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedseed.randomness import kernels
from fedseed.randomness.kernels.reference import Floats, Spec
from fedseed.randomness.stream import Domain
from fedseed.weights.layout import Layout

# from this many numbers in its last dimension on, a tensor of three dimensions is a stack of
# matrices, such as the experts of a layer; below it is a matrix whose rows are filters
LEAST_COLUMNS_OF_STACK = 64


class MatrixView(NamedTuple):
    """A tensor as `stack` matrices of `rows` times `columns` numbers."""

    stack: int
    rows: int
    columns: int

    @property
    def shorter(self) -> int:
        """Return the length of the shorter side."""
        return min(self.rows, self.columns)

    @property
    def longer(self) -> int:
        """Return the length of the longer side."""
        return max(self.rows, self.columns)

    @property
    def rows_are_longer(self) -> bool:
        """Return whether a change is (B P)^T in place of B P."""
        return self.rows > self.columns


def matrices_of(shape: tuple[int, ...]) -> MatrixView:
    """Return the matrices of a tensor with two dimensions or more.

    A tensor of three dimensions whose last one is long is a stack of matrices (fused experts);
    otherwise the first dimension gives the rows, and all others the columns (filters).
    """
    if len(shape) == 3 and shape[-1] >= LEAST_COLUMNS_OF_STACK:
        return MatrixView(*shape)
    return MatrixView(1, shape[0], prod(shape[1:]))


@dataclass(frozen=True)
class RandomSubspace:
    """The subspaces of one seed, on every tensor of a layout.

    Args:
        seed: 64-bit seed that the signs are drawn by.
        rank: r, rows of P of one subspace.
        count: K, how many subspaces there are.
    """

    seed: int
    rank: int
    count: int = 1

    @property
    def width(self) -> int:
        """Return K r, the columns of B."""
        return self.rank * self.count

    def is_whole(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor is trained and sent as it is, without a projection.

        A vector is, and a matrix for which B would have at least as many entries.
        """
        return len(shape) < 2 or self.width >= matrices_of(shape).longer

    def factor_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of B: (stack, shorter side, K r), or the tensor's own if it is whole."""
        if self.is_whole(shape):
            return shape
        matrices = matrices_of(shape)
        return matrices.stack, matrices.shorter, self.width

    def factor_sizes(self, layout: Layout) -> list[int]:
        """Return how many entries B has, for each tensor of a layout."""
        return [prod(self.factor_shape(tensor.shape)) for tensor in layout.tensors]

    def signs(self, start: int, count: int, kind: str = "cpu") -> Floats:
        """Return the signs of P without the factor 1/sqrt(r), shape (K r, count), +1 or -1.

        Args:
            start: index of the matrix' first element in the parameter vector: no two matrices
                share signs.
            count: length of the matrix' longer side.
            kind: kind of the device whose kernels make them ("cpu", "cuda").
        """
        spec = Spec("lowrank", self.seed, 1)
        raw_signs = kernels.current(kind).signs(
            spec, range(self.width), Domain.SUBSPACE, start, count
        )
        array = raw_signs if isinstance(raw_signs, np.ndarray) else raw_signs.cpu().numpy()
        return array.reshape(self.width, count)

    @property
    def sign_scale(self) -> np.float32:
        """Return 1/sqrt(r), the magnitude of P's entries, in single precision."""
        return np.float32(1 / sqrt(self.rank))

    def squared_norm(self, layout: Layout, factors: list[Floats]) -> float:
        """Return the expected squared length of the change that factors make.

        E |B P|^2 = |B|^2 times the longer side over r, as rows of P are nearly orthogonal.
        """
        total = 0.0
        for tensor, factor in zip(layout.tensors, factors, strict=True):
            square = float(np.square(factor, dtype=np.float64).sum())
            if not self.is_whole(tensor.shape):
                square *= matrices_of(tensor.shape).longer / self.rank
            total += square
        return total

    def split(self, layout: Layout, values: NDArray[np.floating]) -> list[NDArray[np.floating]]:
        """Return B of each tensor from all entries in one vector, in the shapes of
        `factor_shape`.
        """
        factors, position = [], 0
        for tensor in layout.tensors:
            shape = self.factor_shape(tensor.shape)
            factors.append(values[position : position + prod(shape)].reshape(shape))
            position += prod(shape)
        return factors
