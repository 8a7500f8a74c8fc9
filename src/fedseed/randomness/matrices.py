"""Where the matrices of a parameter vector lie: needed by a basis of low-rank directions."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple


class Matrix(NamedTuple):
    """A tensor of shape (m, n, ...) seen as a matrix of m rows, or a vector (a tensor of one
    dimension or none).
    """

    start: int  # index of its first element in the parameter vector
    rows: int
    columns: int  # the product of all dimensions but the first; 0: a vector, with `rows` elements

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return self.rows * max(self.columns, 1)


class MatrixRun(NamedTuple):
    """Consecutive elements of one matrix or vector."""

    lo: int  # counted from where the cut run began
    hi: int
    matrix: Matrix

    def rows(self, start: int) -> tuple[int, int]:
        """(first row, one past the last) that this run touches; it counts from element `start`."""
        first = start + self.lo - self.matrix.start
        last = start + self.hi - self.matrix.start
        return first // self.matrix.columns, -(-last // self.matrix.columns)


class Matrices:
    """The tensors of a parameter vector, one after the other. Equal to itself alone.

    Args:
        shapes: the tensors' shapes, in the vector's order.
    """

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        self._all: list[Matrix] = []
        position = 0
        for shape in shapes:
            size = prod(shape)
            if size:
                whole = len(shape) < 2
                self._all.append(
                    Matrix(position, size if whole else shape[0], 0 if whole else size // shape[0])
                )
            position += size
        self._starts = [m.start for m in self._all]
        self.size = position

    def cut(self, start: int, stop: int) -> Iterator[MatrixRun]:
        """Elements start..stop, tensor by tensor.

        Raises:
            ValueError: they do not lie in the vector.
        """
        if not 0 <= start <= stop <= self.size:
            raise ValueError(f"elements {start}..{stop}: the tensors have {self.size}")
        index = bisect_right(self._starts, start) - 1
        position = start
        while position < stop:
            matrix = self._all[index]
            end = min(stop, matrix.start + matrix.size)
            yield MatrixRun(position - start, end - start, matrix)
            position, index = end, index + 1
