"""Kernels that know where a vector's matrices lie: the low-rank basis over any implementation of the others.

A run of elements is cut at the tensors' ends. On tensors of one dimension a low-rank direction is one of `rademacher`;
on a matrix its rows are summed a few at a time and added to the weights, so that the sums stay in the cache.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from fedseed.randomness.kernels import lowrank_reference as plain
from fedseed.randomness.kernels.reference import Floats, Job, Part, Spec, project_finish, sum_in_order
from fedseed.randomness.matrices import Matrices, Run
from fedseed.randomness.stream import Domain

PIECE = 1 << 22  # elements whose sums are kept at a time, for many directions
FEW_PIECE = 1 << 17  # for a few: their sums are no work, so they should not leave the cache
FEW = 16


class Sum(NamedTuple):
    """A prepared sum of low-rank directions."""

    matrices: Matrices
    vectors: Any  # what it is on tensors of one dimension, as the flat kernels prepared it
    records: Any  # what it is on matrices, as the implementation takes it
    piece: int  # elements of a matrix to work on at a time


class Kernels:
    """An implementation of all bases; see `reference` for the meaning of the arguments.

    What has nothing to do with matrices is the flat kernels' own: `TENSORS` (whether they take and give torch tensors
    in place of arrays), `draw` (rounds stochastically), `product` (None: make a copy).

    Args:
        flat: the implementation (a module) of the other bases.
        low: that of sums of outer products of signs (a module, as `lowrank_reference`).
    """

    def __init__(self, flat: Any, low: Any) -> None:
        self._flat = flat
        self._low = low

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flat, name)

    def prepare(self, parts: Sequence[Part], length: int) -> Any:
        """Prepares a sum of directions of one kind, in a block of `length` elements, for `combine` and `move`."""
        if not parts or parts[0].spec.name != "lowrank":
            return self._flat.prepare(parts, length)
        pairs = plain.pairs(parts)
        vectors = self._flat.prepare(plain.on_vectors(parts), length)
        piece = FEW_PIECE if len(pairs) <= FEW else PIECE
        return Sum(plain.matrices_of(parts), vectors, self._low.as_records(pairs), piece)

    def direction(self, spec: Spec, k: int, start: int, stop: int, length: int) -> Any:
        """Elements start..stop of direction k."""
        prepared = self.prepare([Part(spec, k, np.ones(1, dtype=np.float32))], length)
        entries = self.combine(prepared, start, stop)
        return entries.cpu().numpy() if self.TENSORS else entries

    def combine(self, prepared: Any, start: int, stop: int) -> Any:
        """The sum over elements start..stop."""
        if self.TENSORS:
            out = self._flat.empty(stop - start)
            self.move_all([Job(out, out, "total", prepared, start)], 1.0)
            return out
        if not isinstance(prepared, Sum):
            return self._flat.combine(prepared, start, stop)
        parts = []
        for run in prepared.matrices.cut(start, stop):
            if not run.matrix.columns:
                parts.append(self._flat.combine(prepared.vectors, start + run.lo, start + run.hi))
            else:
                parts += [sums for _, _, sums in self._sums(prepared, run, start)]
        return np.concatenate([np.zeros(0, dtype=np.float32), *parts])

    def signs(self, spec: Spec, directions: Sequence[int], domain: Domain, start: int, count: int, *device: Any) -> Any:
        """Signs start, start + 1, ... that low-rank directions are made of, shape (directions, rank, count).

        Args:
            spec: the basis, "lowrank".
            directions: their indices.
            domain: `LEFT` for u_j, `RIGHT` for w_j; `DIRECTION` (with a rank of 1) for tensors of one dimension.
            start: index of the tensor's first element in the vector.
            count: how many signs.
            device: where to make them, for kernels that work on tensors.
        """
        one = np.float32(1)
        pairs = [plain.Pair(spec.seed, k, j, one) for k in directions for j in range(spec.rank)]
        made = self._low.signs(self._low.as_records(pairs), domain, start, count, *device)
        return made.reshape(len(directions), spec.rank, count)

    def _sums(self, prepared: Sum, run: Run, start: int) -> Any:
        """(lo, hi, sums) for pieces of a run on a matrix, counted as the run's own ends are."""
        first, last = run.rows(start)
        step = max(1, prepared.piece // run.matrix.columns)
        for a in range(first, last, step):
            b = min(last, a + step)
            sums = self._low.total(prepared.records, run.matrix, a, b).reshape(-1)
            begin = run.matrix.start + a * run.matrix.columns - start  # of the first of these rows
            lo, hi = max(run.lo, begin), min(run.hi, begin + len(sums))
            yield lo, hi, sums[lo - begin : hi - begin]

    def move(self, out: Any, source: Any, dtype: str, prepared: Any, scale: float, start: int) -> None:
        """out = round(source + scale * sum), where source holds elements start, start + 1, ..."""
        if self.TENSORS:
            self.move_all([Job(out, source, dtype, prepared, start)], scale)
        elif not isinstance(prepared, Sum):
            self._flat.move(out, source, dtype, prepared, scale, start)
        else:
            for run in prepared.matrices.cut(start, start + len(source)):
                if not run.matrix.columns:
                    to, own = out[run.lo : run.hi], source[run.lo : run.hi]
                    self._flat.move(to, own, dtype, prepared.vectors, scale, start + run.lo)
                    continue
                for lo, hi, sums in self._sums(prepared, run, start):
                    self._flat.add_sums(out[lo:hi], source[lo:hi], dtype, sums, scale)

    def move_all(self, jobs: Sequence[Job], scale: float, rounding: tuple[int, int] | None = None) -> None:
        """`move` for each job, in as few launches as there can be.

        Args:
            jobs: what to move. For kernels that take tensors the dtype may be "total": the sum itself, in float32.
            scale: multiplies the sums, but for those of several steps (`prepare_steps`), which have their own.
            rounding: round stochastically, by these seed and step of the shared stream; only for kernels that take
                tensors. None: to nearest.
        """
        if not self.TENSORS:
            for job in jobs:
                self.move(*job[:4], scale, job.start)
            return
        flat, on_matrices = [], []
        for job in jobs:
            if not isinstance(job.prepared, Sum):
                flat.append(job)
                continue
            for run in job.prepared.matrices.cut(job.start, job.start + len(job.source)):
                columns, start = run.matrix.columns, job.start + run.lo
                own = Job(
                    job.out[run.lo : run.hi], job.source[run.lo : run.hi], job.dtype,
                    job.prepared.records if columns else job.prepared.vectors, start,
                )  # fmt: skip
                if columns:
                    on_matrices.append((own, run.matrix, *run.rows(job.start)))
                else:
                    flat.append(own)
        self._flat.move_all(flat, scale, rounding)
        self._low.move_all(on_matrices, scale, rounding)

    def prepare_steps(self, steps: Sequence[tuple[Sequence[Part], float]], length: int) -> Any:
        """Prepares (parts, scale) of each step in a block of `length` elements, for `move_steps`."""
        in_one_pass = getattr(self._flat, "prepare_steps", None)
        names = {part.spec.name for parts, _ in steps for part in parts}
        if in_one_pass is not None and "lowrank" not in names and (len(names) < 2 or not self.TENSORS):
            return in_one_pass(steps, length)
        return [(self.prepare(parts, length), scale) for parts, scale in steps]

    def move_steps(self, out: Any, dtype: str, prepared: Any, start: int) -> None:
        """`move` in place for one step after the other, each rounded."""
        if not isinstance(prepared, list):
            if self.TENSORS:
                self.move(out, out, dtype, prepared, 1.0, start)  # each step has a scale of its own
            else:
                self._flat.move_steps(out, dtype, prepared, start)
            return
        piece = max(1, len(out)) if self.TENSORS else FEW_PIECE  # which stays in a CPU's cache
        for lo in range(0, len(out), piece):
            part = out[lo : lo + piece]
            for sums, scale in prepared:
                self.move(part, part, dtype, sums, scale, start + lo)

    def project(self, spec: Spec, first: int, count: int, x: Any, start: int, length: int) -> Floats:
        """Inner products of x, which begins at element `start`, with directions."""
        return self.project_finish(spec, first, count, self.project_sums(spec, first, count, x, start, length))

    def project_sums(self, spec: Spec, first: int, count: int, x: Any, start: int, length: int) -> Any:
        """Returns the part of a projection that adds up over runs of elements: for `lowrank`, the products.

        Returns:
            float64, where the kernels work: an array or a tensor.
        """
        if spec.name != "lowrank":
            return self._flat.project_sums(spec, first, count, x, start, length)
        vectors = Spec("rademacher", spec.seed, 1)
        sums = np.zeros(count)
        for run in plain.matrices_of([Part(spec, first, np.zeros(0, np.float32))]).cut(start, start + len(x)):
            values, at = x[run.lo : run.hi], start + run.lo
            if run.matrix.columns:
                row, whole = self._whole_rows(run, start, values)
                pairs = self._low.products(spec, first, count, run.matrix, whole, row).reshape(count, spec.rank)
                sums += sum_in_order(pairs, axis=1) * (1 / sqrt(spec.rank))
            else:
                own = self._flat.project_sums(vectors, first, count, values, at, length)
                sums += own.cpu().numpy() if self.TENSORS else own
        return sums

    def _whole_rows(self, run: Run, start: int, values: Any) -> tuple[int, Any]:
        """(first row, rows), with zeros where the run has no elements."""
        first, last = run.rows(start)
        columns = run.matrix.columns
        before = start + run.lo - run.matrix.start - first * columns
        size, own = (last - first) * columns, values
        if before or len(own) != size:
            values = np.zeros(size, np.float32) if isinstance(own, np.ndarray) else own.new_zeros(size)
            values[before : before + len(own)] = own
        return first, values.reshape(last - first, columns)

    def project_finish(self, spec: Spec, first: int, count: int, sums: Any) -> Floats:
        """The products, from what `project_sums` returned (or the sum of several such)."""
        sums = sums if isinstance(sums, np.ndarray) else sums.cpu().numpy()
        if spec.name != "lowrank":
            return project_finish(spec, first, count, sums)
        return np.asarray(sums, dtype=np.float64).astype(np.float32)
