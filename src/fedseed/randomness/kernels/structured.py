"""Kernels that know where a vector's matrices lie: the low-rank basis over any implementation of
the others.

A run of elements is cut at the tensors' ends. On tensors of one dimension a low-rank direction is
one of `rademacher`; on a matrix its rows are summed a few at a time and added to the weights, so
that the sums stay in the cache.
"""

from collections.abc import Sequence
from itertools import chain
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from fedseed.randomness.kernels import lowrank_reference as plain
from fedseed.randomness.kernels.factors_reference import FactorJob
from fedseed.randomness.kernels.reference import (
    Floats,
    Job,
    Part,
    Spec,
    project_finish,
    sum_in_order,
)
from fedseed.randomness.matrices import Matrices, MatrixRun
from fedseed.randomness.stream import Domain

PIECE = 1 << 22  # elements whose sums are kept at a time, for many directions
FEW_PIECE = 1 << 17  # for a few: their sums are no work, so they should not leave the cache
FEW = 16


def _on_vectors(spec: Spec) -> Spec:
    """Return the basis of low-rank directions on tensors of one dimension."""
    return Spec("rademacher", spec.seed, 1)


class Sum(NamedTuple):
    """A prepared sum of low-rank directions."""

    matrices: Matrices
    vectors: Any  # what it is on tensors of one dimension, as the flat kernels prepared it
    pairs: plain.Pairs  # what it is on matrices


class Kernels:
    """An implementation of all bases; see `reference` for the meaning of the arguments.

    Attributes that have nothing to do with matrices come from the flat kernels: `TENSORS` (whether
    they take and give torch tensors in place of arrays), `draw` (rounds stochastically), `product`
    (None: make a copy).

    Args:
        flat: the implementation (a module) of the other bases.
        low: the implementation of sums of outer products of signs (a module, as
            `lowrank_reference`).
        factors: the implementation of products of two factors (a module, as `factors_reference`;
            `add_factors` in place of `outer_sums` where kernels take tensors).
    """

    def __init__(self, flat: Any, low: Any, factors: Any) -> None:
        self._flat = flat
        self._low = low
        self._factors = factors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flat, name)

    def prepare(self, parts: Sequence[Part], length: int) -> Any:
        """Prepare a sum of directions of one kind, in a block of `length` elements, for `combine`
        and `move`.
        """
        if not parts or parts[0].spec.name != "lowrank":
            return self._flat.prepare_steps([(parts, 1.0)], length)
        matrices = parts[0].spec.matrices
        if matrices is None or any(part.spec.matrices is not matrices for part in parts):
            raise ValueError(
                "a sum of lowrank directions: all of them on the same tensors, whose shapes are "
                "needed"
            )
        on_vectors = [Part(_on_vectors(part.spec), part.first, part.coefficients) for part in parts]
        return Sum(
            matrices, self._flat.prepare_steps([(on_vectors, 1.0)], length), plain.pairs(parts)
        )

    def direction(self, spec: Spec, k: int, start: int, stop: int, length: int) -> Any:
        """Elements start..stop of direction k."""
        prepared = self.prepare([Part(spec, k, np.ones(1, dtype=np.float32))], length)
        entries = self.combine(prepared, start, stop)
        if self.TENSORS:
            return entries.cpu().numpy()
        return entries

    def combine(self, prepared: Any, start: int, stop: int) -> Any:
        """Return the sum over elements start..stop."""
        if self.TENSORS:
            destination = self._flat.empty(stop - start)
            self.move_all([Job(destination, destination, "total", prepared, start)], 1.0)
        else:
            destination = np.zeros(stop - start, dtype=np.float32)
            self.move(destination, destination, "float32", prepared, 1.0, start)
        return destination

    def signs(
        self,
        spec: Spec,
        directions: Sequence[int],
        domain: Domain,
        start: int,
        count: int,
        *device: Any,
    ) -> Any:
        """Return signs start, start + 1, ... that low-rank directions are made of, shape
        (directions, rank, count).

        Args:
            spec: the basis, "lowrank".
            directions: their indices.
            domain: `LEFT` for u_j, `RIGHT` for w_j; `DIRECTION` (with a rank of 1) for tensors of
                one dimension.
            start: index of the tensor's first element in the vector.
            count: how many signs.
            device: where to make them, for kernels that work on tensors.
        """
        signs = self._low.signs(plain.pairs_of(spec, directions), domain, start, count, *device)
        return signs.reshape(len(directions), spec.rank, count)

    def move(
        self, destination: Any, source: Any, dtype: str, prepared: Any, scale: float, start: int
    ) -> None:
        """destination = round(source + scale * sum), where source holds elements start, start + 1,
        ...
        """
        self.move_all([Job(destination, source, dtype, prepared, start)], scale)

    def move_all(
        self, jobs: Sequence[Job], scale: float, rounding: tuple[int, int] | None = None
    ) -> None:
        """`move` for each job, in as few launches as there can be.

        Args:
            jobs: what to move. For kernels that take tensors the dtype may be "total": the sum
                itself, in float32.
            scale: multiplies the sums.
            rounding: round stochastically, by these seed and step of the shared stream; only for
                kernels that take tensors. None: to nearest.
        """
        flat, on_matrices = [], []
        for job in jobs:
            if isinstance(job.prepared, list):
                self._move_steps(job, scale)
            elif not isinstance(job.prepared, Sum):
                flat.append(job)
            else:
                for run in job.prepared.matrices.cut(job.start, job.start + len(job.source)):
                    destination, source, start = (
                        job.destination[run.lo : run.hi],
                        job.source[run.lo : run.hi],
                        job.start + run.lo,
                    )
                    if run.matrix.columns:
                        piece = Job(destination, source, job.dtype, job.prepared.pairs, start)
                        on_matrices.append((piece, run.matrix, *run.rows(job.start)))
                    else:
                        flat.append(
                            Job(destination, source, job.dtype, job.prepared.vectors, start)
                        )
        if self.TENSORS:
            self._flat.move_all(flat, scale, rounding)
            self._low.move_all(on_matrices, scale, rounding)
            return
        for job in flat:
            self._flat.move(*job[:4], scale, job.start)
        for job, matrix, first, last in on_matrices:
            step = max(1, (FEW_PIECE if len(job.prepared) <= FEW else PIECE) // matrix.columns)
            for a in range(first, last, step):
                sums = self._low.total(job.prepared, matrix, a, min(last, a + step)).reshape(-1)
                # index of the first of these rows in the run
                begin = matrix.start + a * matrix.columns - job.start
                lo, hi = max(0, begin), min(len(job.destination), begin + len(sums))
                sums = sums[lo - begin : hi - begin]
                self._flat.add_sums(
                    job.destination[lo:hi], job.source[lo:hi], job.dtype, sums, scale
                )

    def add_factors(
        self,
        jobs: Sequence[FactorJob],
        scale: float,
        rounding: tuple[int, int] | None = None,
    ) -> None:
        """destination = round(source + scale * (left @ right)) for each job.

        Args:
            jobs: what to move. For kernels that take tensors the dtype may be "total": the product
                itself, in float32.
            scale: multiplies the products.
            rounding: round stochastically, by these seed and step of the shared stream; only for
                kernels that take tensors. None: to nearest.
        """
        if self.TENSORS:
            self._factors.add_factors(jobs, scale, rounding)
            return
        for job in jobs:
            columns = job.right_factor.shape[1]
            rows_at_once = max(1, FEW_PIECE // columns)
            for first in range(0, len(job.left_factor), rows_at_once):
                left_rows = job.left_factor[first : first + rows_at_once]
                sums = self._factors.outer_sums(left_rows, job.right_factor).reshape(-1)
                begin, end = first * columns, (first + len(left_rows)) * columns
                self._flat.add_sums(
                    job.destination[begin:end], job.source[begin:end], job.dtype, sums, scale
                )

    def _move_steps(self, job: Job, scale: float) -> None:
        """Add one step after the other, in pieces that stay in a CPU's cache."""
        piece = max(1, len(job.destination)) if self.TENSORS else FEW_PIECE
        for lo in range(0, len(job.destination), piece):
            destination, source = job.destination[lo : lo + piece], job.source[lo : lo + piece]
            for prepared, step_scale in job.prepared:
                self.move(
                    destination, source, job.dtype, prepared, scale * step_scale, job.start + lo
                )
                source = destination

    def prepare_steps(self, steps: Sequence[tuple[Sequence[Part], float]], length: int) -> Any:
        """Prepare (parts, scale) of each step in a block of `length` elements.

        `move` rounds after each step.
        """
        all_parts = chain.from_iterable(parts for parts, _ in steps)
        names = {part.spec.name for part in all_parts}
        if "lowrank" not in names and (len(names) < 2 or not self.TENSORS):
            return self._flat.prepare_steps(steps, length)
        return [(self.prepare(parts, length), scale) for parts, scale in steps]

    def project(
        self, spec: Spec, first: int, count: int, x: Any, start: int, length: int
    ) -> Floats:
        """Inner products of x, which begins at element `start`, with directions."""
        return self.project_finish(
            spec, first, count, self.project_sums(spec, first, count, x, start, length)
        )

    def project_sums(
        self, spec: Spec, first: int, count: int, x: Any, start: int, length: int
    ) -> Any:
        """Return the part of a projection that adds up over runs of elements: for `lowrank`, the
        products.

        Returns:
            float64, where the kernels work: an array or a tensor.
        """
        if spec.name != "lowrank":
            return self._flat.project_sums(spec, first, count, x, start, length)
        assert spec.matrices is not None
        sums = np.zeros(count)
        for run in spec.matrices.cut(start, start + len(x)):
            values, begin = x[run.lo : run.hi], start + run.lo
            if run.matrix.columns:
                row, whole = self._whole_rows(run, start, values)
                pairs = self._low.products(spec, first, count, run.matrix, whole, row).reshape(
                    count, spec.rank
                )
                sums += sum_in_order(pairs, axis=1) * (1 / sqrt(spec.rank))
            else:
                run_sums = self._flat.project_sums(
                    _on_vectors(spec), first, count, values, begin, length
                )
                sums += run_sums.cpu().numpy() if self.TENSORS else run_sums
        return sums

    def _whole_rows(self, run: MatrixRun, start: int, values: Any) -> tuple[int, Any]:
        """(first row, rows), with zeros where the run has no elements."""
        first, last = run.rows(start)
        columns = run.matrix.columns
        elements_before = start + run.lo - run.matrix.start - first * columns
        size, run_values = (last - first) * columns, values
        if elements_before or len(run_values) != size:
            if isinstance(run_values, np.ndarray):
                values = np.zeros(size, np.float32)
            else:
                values = run_values.new_zeros(size)
            values[elements_before : elements_before + len(run_values)] = run_values
        return first, values.reshape(last - first, columns)

    def project_finish(self, spec: Spec, first: int, count: int, sums: Any) -> Floats:
        """Return the products, from what `project_sums` returned (or the sum of several such)."""
        sums = sums if isinstance(sums, np.ndarray) else sums.cpu().numpy()
        if spec.name != "lowrank":
            return project_finish(spec, first, count, sums, self._flat.hadamard_transform)
        return np.asarray(sums, dtype=np.float64).astype(np.float32)
