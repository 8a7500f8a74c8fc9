"""ParameterSpace: a model's trainable tensors as one vector in blocks, and what can be done to it."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedseed.optimizers.moments import Moments, Rule
from fedseed.randomness import Basis, Domain, kernels
from fedseed.randomness.kernels.reference import Part
from fedseed.weights.layout import ITEM_BYTES, BlockRule, Layout, TensorEntry, cut
from fedseed.weights.offload import Spilled
from fedseed.weights.perturbation import SMALL, PerturbedUse, can_exchange

Floats = NDArray[np.float32]
Coefficients = NDArray[Any] | Sequence[float] | Sequence[NDArray[Any]]

PIECE = 1 << 22  # elements worked on at a time where a buffer is needed: bounds it by 16 MiB


@dataclass(frozen=True)
class Term:
    """sum_j coefficients[j] * direction(first + j) of one basis.

    `coefficients` is 1-D, or one 1-D array per block.
    """

    basis: Basis
    coefficients: Coefficients
    first: int = 0


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's elements in order, as bytes, on the CPU."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _hash_tensors(named: Sequence[tuple[str, torch.Tensor]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in named:
        digest.update(f"{name}|{_dtype_name(tensor)}|{list(tensor.shape)}|".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def base_digest(model: torch.nn.Module) -> str:
    """Hex digest of a whole model: names, shapes, dtypes and bytes of all parameters and saved buffers."""
    return digest_tensors(model.state_dict(keep_vars=True).items())


def digest_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Hex digest of tensors with their names; of tied ones the first counts."""
    once: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in named:
        once.setdefault(id(tensor), (name, tensor))
    return _hash_tensors(list(once.values()))


class ParameterSpace:
    """The trainable tensors of a model, in `named_parameters` order, as one vector of length d in L blocks.

    Args:
        model: any torch module; parameters with `requires_grad` belong to the space, tied ones once.
        blocks: "one", "tensor", "packed" or a number (see `fedseed.weights.layout.cut`).

    Raises:
        ValueError: nothing is trainable, a dtype is not float32, bfloat16 or float16, or the block rule is wrong.
    """

    def __init__(self, model: torch.nn.Module, blocks: BlockRule = "one") -> None:
        self.model = model
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        for name, p in named:
            if _dtype_name(p) not in ("float32", "bfloat16", "float16"):
                raise ValueError(f"parameter {name} is {_dtype_name(p)}: float32, bfloat16 or float16 is needed")
        self.parameters: list[torch.nn.Parameter] = [p for _, p in named]
        entries = tuple(TensorEntry(name, tuple(p.shape), _dtype_name(p)) for name, p in named)
        self.layout = Layout(entries, cut([e.size for e in entries], blocks))
        self._base: Sequence[torch.Tensor] | None = None
        self._moments: Moments | None = None
        ends = list(accumulate(e.size for e in entries))
        self._starts = {id(p): end - p.numel() for p, end in zip(self.parameters, ends, strict=True)}
        self._scratch: dict[torch.dtype, torch.Tensor] = {}  # where perturbed copies are made
        self._operands: dict[int, tuple[int, bool, Any]] = {}  # see `_operand`

    @property
    def size(self) -> int:
        """d, the number of trainable parameters."""
        return self.layout.size

    # -- steps -------------------------------------------------------------------------------------------------

    def add(self, basis: Basis, coefficients: Coefficients, scale: float = 1.0, first: int = 0) -> None:
        """w += scale * sum_k coefficients[k] * direction(first + k), in one pass over w.

        The sum is taken in single precision in the order of the directions, multiplied by `scale`, added to w
        in single precision and rounded once to each tensor's dtype.

        Args:
            basis: where the directions come from.
            coefficients: 1-D, used on all blocks; or one 1-D array per block.
            scale: multiplies the sum.
            first: index of the first direction.

        Raises:
            ValueError: a coefficient or the scale is not finite, or the number of arrays is not that of the blocks.
        """
        self.add_terms([Term(basis, coefficients, first)], scale)

    def add_terms(self, terms: Sequence[Term], scale: float = 1.0, rounding: tuple[int, int] | None = None) -> None:
        """Like `add` for several bases: their sums are added up in order before the one rounding to the dtype.

        Args:
            terms: what to add up.
            scale: multiplies the sum.
            rounding: (seed, step): round stochastically to 16-bit dtypes, up or down with odds that make it right on
                average, so that steps below half a unit in the last place are not lost. The odds' random numbers come
                from the shared stream, so that a replay rounds alike. None: to nearest. float32 is always to nearest.
        """
        self._move(terms, scale, None, rounding)

    def add_steps(self, steps: Sequence[tuple[Sequence[Term], float]]) -> None:
        """`add_terms` for one step after the other, in one pass over w: the same roundings, so the same bits.

        Args:
            steps: (terms, scale) of each step.

        Raises:
            ValueError: as `add` does; the weights are unchanged then.
        """
        checked = []
        for terms, scale in steps:
            if not np.isfinite(scale):
                raise ValueError(f"scale = {scale}: a finite number is needed")
            checked.append(([(t.basis.spec, t.first, self._per_block(t.coefficients)) for t in terms], scale))
        if not checked:
            return
        kernel = self._kernel()
        for index, lo, hi, start, prepared in self._tensors(
            lambda block, length: kernel.prepare_steps(
                [([Part(s, first, c[block]) for s, first, c in terms], scale) for terms, scale in checked], length
            )
        ):
            p = self.parameters[index]
            flat = _flat(p)
            kernel.move_steps(_operand(kernel, flat[lo:hi]), _dtype_name(p), prepared, start)
            _keep(p, flat)

    def average_steps(self, branches: Sequence[tuple[float, Sequence[tuple[Sequence[Term], float]]]]) -> None:
        """w <- sum_i c_i w_i, where w_i is w after the steps of branch i, each step rounded in its turn.

        The bits are those of clients that each take their steps and send their weights to be averaged: the average is
        summed in double precision and rounded once. Needs a copy of the weights and their double-precision sum.

        Args:
            branches: (c_i, steps as `add_steps` takes them) of each branch.

        Raises:
            ValueError: as `add` does; the weights are unchanged then.
        """
        start = self.snapshot()
        totals = [torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in self.parameters]
        try:
            for share, steps in branches:
                self.restore(start)
                self.add_steps(steps)
                for total, p in zip(totals, self.parameters, strict=True):
                    total += p.detach().double() * share
        except ValueError:
            self.restore(start)
            raise
        self.restore([total.float() for total in totals])

    def descend(self, terms: Sequence[Term], rule: Rule, rounding: tuple[int, int] | None = None) -> None:
        """Give the sum of the terms to momentum or Adam as a gradient; the running averages are kept here.

        Args:
            terms: what to add up.
            rule: the optimiser; the same one each time.
            rounding: as in `add_terms`.
        """
        if self._moments is None or self._moments.rule != rule:
            self._moments = Moments(rule, self.size, self.parameters[0].device)
        self._moments.steps += 1
        self._move_by_pieces(terms, 1.0, None, rounding, self._moments)

    def keep_base(self, spill: bool = False) -> None:
        """Keep a copy of the weights as they are: what `rebuild` starts from.

        Args:
            spill: in a temporary file, which is read at each `rebuild`, not in memory.
        """
        self._base = Spilled(self.parameters) if spill else self.snapshot()

    def rebuild(self, terms: Sequence[Term], scale: float = 1.0) -> None:
        """w = w0 + scale * sum of the terms, in one pass and one rounding, where w0 is what `keep_base` kept.

        However small single steps are, none is lost: they meet in the coefficients, not in the weights.

        Raises:
            ValueError: `keep_base` was not called, or as `add` does.
        """
        if self._base is None:
            raise ValueError("rebuild needs keep_base first")
        self._move(terms, scale, self._base, None)
        if isinstance(self._base, Spilled):
            self._base.let_go()

    def restore_base(self) -> None:
        """w = w0.

        Raises:
            ValueError: `keep_base` was not called.
        """
        if self._base is None:
            raise ValueError("restore_base needs keep_base first")
        self.restore(self._base)

    def _move(
        self,
        terms: Sequence[Term],
        scale: float,
        base: Sequence[torch.Tensor] | None,
        rounding: tuple[int, int] | None,
    ) -> None:
        """w = round((base or w) + scale * sum of the terms): one read and one write of the weights."""
        if rounding is not None:
            self._move_by_pieces(terms, scale, base, rounding, None)
            return
        kernel = self._kernel()
        small: _Moves = {}
        for index, lo, hi, start, prepared in self._runs(terms, scale):
            p = self.parameters[index]
            flat = None if p.is_contiguous() else _flat(p)
            out = (self._operand(kernel, p) if flat is None else _operand(kernel, flat))[lo:hi]
            source = out if base is None else _operand(kernel, _flat(base[index]).to(p.device)[lo:hi])
            if flat is None and hi - lo <= SMALL:
                small.setdefault((_dtype_name(p), id(prepared)), (prepared, []))[1].append((out, source, start))
                continue
            kernel.move(out, source, _dtype_name(p), prepared, scale, start)
            if flat is not None:
                _keep(p, flat)
        _move_small(kernel, small, scale)

    def _move_by_pieces(
        self,
        terms: Sequence[Term],
        scale: float,
        base: Sequence[torch.Tensor] | None,
        rounding: tuple[int, int] | None,
        moments: Moments | None,
    ) -> None:
        """`_move` with a buffer, for what the kernels do not do: stochastic rounding, optimisers."""
        kernel = self._kernel()
        for index, first, last, begin, prepared in self._runs(terms, scale):
            p = self.parameters[index]
            flat = _flat(p)
            source = flat if base is None else _flat(base[index]).to(flat.device)
            for lo in range(first, last, PIECE):
                hi = min(lo + PIECE, last)
                start = begin + lo - first
                total = torch.as_tensor(kernel.combine(prepared, start, start + hi - lo)).to(p.device)
                change = total * float(np.float32(scale)) + 0.0 if moments is None else moments.change(total, start)
                value = source[lo:hi].float() + change
                if rounding is not None and p.dtype != torch.float32:
                    words = kernels.load("cpu").element_words(
                        rounding[0], Domain.ROUNDING, rounding[1], start, start + hi - lo
                    )
                    value = torch.from_numpy(stochastic(value.cpu().numpy(), words, _dtype_name(p))).to(p.device)
                flat[lo:hi].copy_(value)
            _keep(p, flat)

    def project(
        self, delta: torch.Tensor | Floats, basis: Basis, count: int | Sequence[int], first: int = 0
    ) -> Floats | list[Floats]:
        """V^T delta: inner products with `count` directions.

        Args:
            delta: vector of length d (float32, bfloat16 or float16 tensor, or float32 array). If the weights are on a
                GPU, a tensor there is used where it is.
            basis: where the directions come from.
            count: how many directions for the whole vector, or one number per block.
            first: index of the first direction.

        Returns:
            float32 array of shape (count,), or for one number per block a list with one array per block.

        Raises:
            ValueError: delta has not length d, or the number of counts is not that of the blocks.
        """
        kernel = self._kernel()
        if isinstance(delta, torch.Tensor):
            delta = delta.detach().reshape(-1)
            if not kernel.TENSORS:
                delta = delta.to("cpu", torch.float32).numpy()
        if delta.shape != (self.size,):
            raise ValueError(f"delta has shape {tuple(delta.shape)}, the space has {self.size} parameters")
        blocks = len(self.layout.block_sizes)
        whole = isinstance(count, int | np.integer)
        counts = [int(count)] * blocks if isinstance(count, int | np.integer) else [int(c) for c in count]
        if len(counts) != blocks:
            raise ValueError(f"{len(counts)} counts for {blocks} blocks")
        parts = []
        for block, length in enumerate(self.layout.block_sizes):
            start = self.layout.boundaries[block]
            x = delta[start : start + length]
            parts.append(kernel.project(basis.spec, first, counts[block], x, start, length))
        if not whole:
            return parts
        total = np.zeros(counts[0], dtype=np.float64)
        for part in parts:
            total += part
        return total.astype(np.float32)

    def project_change(self, saved: Sequence[torch.Tensor], basis: Basis, counts: Sequence[int]) -> list[Floats]:
        """V^T (saved - w), block by block, without a vector of length d.

        Args:
            saved: what `snapshot` returned.
            basis: where the directions come from.
            counts: K_l for each block.

        Returns:
            One float32 array per block.
        """
        products = Projection(self, basis, counts)
        for index, (p, s) in enumerate(zip(self.parameters, saved, strict=True)):
            for lo, hi, part in _differences(s, p):
                products.add(index, part, lo, hi)
        return products.finish()

    def change_norms(self, saved: Sequence[torch.Tensor]) -> NDArray[np.float64]:
        """|saved - w| for each block."""
        squares = np.zeros(len(self.layout.block_sizes))
        for p, s in zip(self.parameters, saved, strict=True):
            for lo, hi, part in _differences(s, p):
                for block, a, b in self._overlaps(self._starts[id(p)] + lo, hi - lo):
                    squares[block] += float(part[a:b].double().square().sum())
        return np.sqrt(squares)

    @contextmanager
    def perturbed(self, basis: Basis, k: int, scale: float) -> Iterator[None]:
        """Inside the block, forward passes see w + scale * direction(k); afterwards w has the same bits as before.

        Nothing is added to and subtracted from the weights. Each torch function gets a perturbed copy of the
        parameters it uses (`weights.perturbation`), rounded to the dtype as `add` rounds. A model with scripted or
        compiled parts, where that is not possible, has its weights changed and put back from a copy.

        Args:
            basis: where the direction comes from.
            k: the direction's index.
            scale: how far to move along it.
        """
        if can_exchange(self.model):
            with PerturbedUse(Perturbation(self, Term(basis, np.ones(1, dtype=np.float32), k), scale)):
                yield
            return
        saved = self.snapshot()
        try:
            self.add(basis, np.ones(1, dtype=np.float32), scale, first=k)
            yield
        finally:
            self.restore(saved)

    # -- the weights as they are -----------------------------------------------------------------------------------

    def digest(self) -> str:
        """Hex digest (128 bit) of the trainable tensors: names, dtypes, shapes and bytes."""
        return _hash_tensors([(e.name, p) for e, p in zip(self.layout.tensors, self.parameters, strict=True)])

    def snapshot(self) -> list[torch.Tensor]:
        """Copies of the trainable tensors."""
        return [p.detach().clone() for p in self.parameters]

    def restore(self, saved: Iterable[torch.Tensor]) -> None:
        """Put back what `snapshot` returned."""
        with torch.no_grad():
            for p, s in zip(self.parameters, saved, strict=True):
                p.copy_(s)

    def difference(self, saved: Sequence[torch.Tensor]) -> Floats:
        """saved - w as one float32 vector of length d."""
        out = torch.empty(self.size, dtype=torch.float32)
        position = 0
        for p, s in zip(self.parameters, saved, strict=True):
            part = out[position : position + p.numel()].view(p.shape)
            if p.dtype == torch.float32 and p.device.type == "cpu":
                torch.sub(s, p.detach(), out=part)
            else:
                part.copy_(s.float() - p.detach().float())
            position += p.numel()
        return out.numpy()

    def norm(self) -> float:
        """The Euclidean norm of w."""
        return float(np.sqrt(sum(float(p.detach().double().square().sum()) for p in self.parameters)))

    def dense(self) -> bytes:
        """All trainable tensors, in order, in their own dtypes, as bytes (little-endian)."""
        return b"".join(_bytes(p) for p in self.parameters)

    def take_gradient(self) -> bytes:
        """The trainable tensors' gradients as `dense` has weights (zeros where there is none); they are freed."""
        parts = []
        for p in self.parameters:
            gradient, p.grad = p.grad, None
            parts.append(_bytes(torch.zeros_like(p) if gradient is None else gradient))
        return b"".join(parts)

    def load_dense(self, data: bytes) -> None:
        """Overwrite all trainable tensors with what `dense` returned.

        Raises:
            ValueError: the length is wrong; nothing is changed then.
        """
        if len(data) != self.layout.dense_bytes:
            raise ValueError(f"{len(data)} bytes for a space of {self.layout.dense_bytes}")
        position = 0
        buffer = bytearray(data)  # torch wants memory that it could write to
        with torch.no_grad():
            for p, e in zip(self.parameters, self.layout.tensors, strict=True):
                part = torch.frombuffer(buffer, dtype=p.dtype, count=e.size, offset=position) if e.size else p
                p.copy_(part.reshape(p.shape))
                position += e.size * ITEM_BYTES[e.dtype]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _per_block(self, coefficients: Coefficients) -> list[Floats]:
        """One float32 array per block, checked."""
        blocks = len(self.layout.block_sizes)
        if len(coefficients) and np.ndim(coefficients[0]) == 1:
            arrays = [np.asarray(c, dtype=np.float32) for c in coefficients]
            if len(arrays) != blocks:
                raise ValueError(f"{len(arrays)} arrays of coefficients for {blocks} blocks")
        else:
            arrays = [np.asarray(coefficients, dtype=np.float32)] * blocks
        if any(a.ndim != 1 for a in arrays):
            raise ValueError("coefficients: 1-D, or one 1-D array per block")
        if not all(np.isfinite(a).all() for a in arrays):
            raise ValueError("coefficients: a value is NaN or infinite; the weights are unchanged")
        return arrays

    def _overlaps(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(block, lo, hi): which of the elements start, start + 1, ... lie in which block, counted from `start`."""
        boundaries = self.layout.boundaries
        block = bisect_right(boundaries, start) - 1
        lo = 0
        while lo < count:
            hi = min(count, boundaries[block + 1] - start)
            if lo < hi:
                yield block, lo, hi
            lo, block = max(lo, hi), block + 1

    def _kernel(self) -> kernels.Kernels:
        """The kernels for the device the weights are on."""
        return kernels.current(self.parameters[0].device.type if self.parameters else "cpu")

    def _operand(self, kernel: kernels.Kernels, parameter: torch.Tensor) -> Any:
        """All elements of a contiguous parameter as the kernels take them.

        Made once: for a small tensor that takes longer than the kernels do.
        """
        known = self._operands.get(id(parameter))
        place = parameter.data_ptr()
        if known is None or known[0] != place or known[1] != kernel.TENSORS:
            known = self._operands[id(parameter)] = place, kernel.TENSORS, _operand(kernel, _flat(parameter))
        return known[2]

    def _runs(self, terms: Sequence[Term], scale: float) -> Iterator[tuple[int, int, int, int, Any]]:
        """(tensor, its elements lo, hi, index of the first in the vector, sum prepared) for each tensor and block.

        Raises:
            ValueError: the scale or a coefficient is not finite, or the number of arrays is not that of the blocks.
        """
        if not np.isfinite(scale):
            raise ValueError(f"scale = {scale}: a finite number is needed")
        per_block = [self._per_block(term.coefficients) for term in terms]
        kernel = self._kernel()

        def prepare(block: int, length: int) -> Any:
            parts = [Part(t.basis.spec, t.first, c[block]) for t, c in zip(terms, per_block, strict=True)]
            return kernel.prepare(parts, length)

        yield from self._tensors(prepare)

    def _tensors(self, prepare: Callable[[int, int], Any]) -> Iterator[tuple[int, int, int, int, Any]]:
        """`_runs`, with what prepare(block, its length) returned for the block."""
        tensor = position = 0  # the tensor that the block reaches into, and where it begins
        for block, (begin, end) in enumerate(pairwise(self.layout.boundaries)):
            prepared = prepare(block, end - begin)
            while begin < end:
                size = self.layout.tensors[tensor].size
                stop = min(end, position + size)
                if begin < stop:
                    yield tensor, begin - position, stop - position, begin, prepared
                begin = stop
                if stop == position + size:
                    position += size
                    tensor += 1


_Moves = dict[tuple[str, int], tuple[Any, list[tuple[Any, Any, int]]]]  # dtype, id of sum: sum, (out, source, start)s


def _move_small(kernel: kernels.Kernels, moves: _Moves, scale: float) -> None:
    """Many small moves, in one call for each dtype and sum."""
    for (dtype, _), (prepared, runs) in moves.items():
        kernel.move_many(runs, dtype, prepared, scale)


class Perturbation:
    """w + scale * direction, tensor by tensor or in parts of tensors: what `PerturbedUse` hands out.

    Args:
        space: the parameter space.
        term: the direction.
        scale: how far to move along it.
    """

    def __init__(self, space: ParameterSpace, term: Term, scale: float) -> None:
        self._space = space
        self._scale = scale
        self._kernel = space._kernel()
        self._part = Part(term.basis.spec, term.first, np.asarray(term.coefficients, dtype=np.float32))
        self._prepared: dict[int, Any] = {}
        self._small: dict[int, torch.Tensor] | None = None  # perturbed copies
        self.on_cpu = not space.parameters or space.parameters[0].device.type == "cpu"

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._space._starts

    def scratch(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        """Memory for `count` elements that is used again and again: what it held before is lost."""
        there = self._space._scratch.get(dtype)
        if there is None or len(there) < count:
            there = self._space._scratch[dtype] = torch.empty(count, dtype=dtype)
        return there

    def whole(self, parameter: torch.Tensor) -> torch.Tensor:
        """The perturbed parameter; not to be written to."""
        if parameter.numel() <= SMALL:
            if self._small is None:
                self._small = self._make_small()
            if id(parameter) in self._small:
                return self._small[id(parameter)]
        out = torch.empty(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
        self.copy(parameter, 0, len(out), out)
        return out.view(parameter.shape)

    def _make_small(self) -> dict[int, torch.Tensor]:
        """All small parameters that lie in one block each, at once."""
        kernel, space = self._kernel, self._space
        copies, moves = {}, _Moves()
        for p in space.parameters:
            block = self._only_block(p) if p.numel() <= SMALL and p.is_contiguous() else None
            if block is not None:
                out = copies[id(p)] = torch.empty(p.shape, dtype=p.dtype, device=p.device)
                run = _operand(kernel, out.view(-1)), space._operand(kernel, p), space._starts[id(p)]
                prepared = self._of(block)
                moves.setdefault((_dtype_name(p), id(prepared)), (prepared, []))[1].append(run)
        _move_small(kernel, moves, self._scale)
        return copies

    def copy(self, parameter: torch.Tensor, lo: int, hi: int, out: torch.Tensor) -> None:
        """out = elements lo..hi of the perturbed parameter, flat."""
        space, kernel = self._space, self._kernel
        contiguous = parameter.is_contiguous()
        source = space._operand(kernel, parameter) if contiguous else _operand(kernel, _flat(parameter))
        target, dtype = _operand(kernel, out), _dtype_name(parameter)
        start = space._starts[id(parameter)] + lo
        for block, a, b in space._overlaps(start, hi - lo):
            kernel.move(target[a:b], source[lo + a : lo + b], dtype, self._of(block), self._scale, start + a)

    def rows(self, parameter: torch.Tensor, rows: torch.Tensor) -> torch.Tensor | None:
        """Rows of a perturbed matrix, shape (len(rows), width); None if that is not possible."""
        block = self._only_block(parameter)
        if block is None or not parameter.is_contiguous():
            return None
        kernel, count = self._kernel, len(rows)
        out = torch.empty(count, parameter.shape[1], dtype=parameter.dtype, device=parameter.device)
        flat, target = _operand(kernel, _flat(parameter)), _operand(kernel, out.view(-1))
        kernel.move_rows(
            target.reshape(count, -1), flat.reshape(parameter.shape[0], -1), _operand(kernel, rows),
            _dtype_name(parameter), self._of(block), self._scale, self._space._starts[id(parameter)],
        )  # fmt: skip
        return out

    def product(self, x: torch.Tensor, parameter: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        """x times the transpose of a perturbed matrix, plus a bias that is taken as it is.

        Returns:
            Shape (..., rows of the matrix); None if that is not possible without a copy of the matrix.
        """
        tensors = (x, parameter) if bias is None else (x, parameter, bias)
        block = self._only_block(parameter)
        if (
            self._kernel.product is None
            or block is None
            or any(t.dtype != torch.float32 for t in tensors)
            or not parameter.is_contiguous()
            or parameter.shape[1] % 16
        ):
            return None
        rows, columns = parameter.shape
        flat = x.detach().reshape(-1, columns).contiguous()
        weights = self._space._operand(self._kernel, parameter).reshape(rows, columns)
        out = torch.empty(len(flat), rows)
        self._kernel.product(
            out.numpy(), flat.numpy(), weights, None if bias is None else bias.detach().numpy(), self._of(block),
            self._scale, self._space._starts[id(parameter)],
            lambda count: self.scratch(torch.float32, count).numpy(),
        )  # fmt: skip
        return out.view(*x.shape[:-1], rows)

    def _only_block(self, parameter: torch.Tensor) -> int | None:
        """The block that a parameter lies in; None if it lies in several."""
        start, boundaries = self._space._starts[id(parameter)], self._space.layout.boundaries
        block = bisect_right(boundaries, start) - 1
        return block if start + parameter.numel() <= boundaries[block + 1] else None

    def _of(self, block: int) -> Any:
        if block not in self._prepared:
            self._prepared[block] = self._kernel.prepare([self._part], self._space.layout.block_sizes[block])
        return self._prepared[block]


class Projection:
    """V^T x for a vector that comes in parts, each scaled: sums are kept, not the vector.

    Args:
        space: the parameter space.
        basis: where the directions come from.
        counts: K_l for each block.
    """

    def __init__(self, space: ParameterSpace, basis: Basis, counts: Sequence[int]) -> None:
        if len(counts) != len(space.layout.block_sizes):
            raise ValueError(f"{len(counts)} counts for {len(space.layout.block_sizes)} blocks")
        self._space = space
        self._spec = basis.spec
        self._counts = [int(c) for c in counts]
        self._kernel = space._kernel()
        self._sums: list[Any] = [0.0] * len(counts)

    def add(self, index: int, values: torch.Tensor, lo: int = 0, hi: int | None = None, scale: float = 1.0) -> None:
        """Add scale * values.

        Args:
            index: which tensor of the space they belong to.
            values: its elements lo..hi in order (all by default), float32.
            lo: where they begin in the tensor.
            hi: where they end.
            scale: multiplies them.
        """
        space = self._space
        start = space._starts[id(space.parameters[index])] + lo
        flat = values.detach().reshape(-1)
        for block, a, b in space._overlaps(start, len(flat) if hi is None else hi - lo):
            sums = self._kernel.project_sums(
                self._spec, 0, self._counts[block], _operand(self._kernel, flat[a:b]), start + a,
                space.layout.block_sizes[block],
            )  # fmt: skip
            self._sums[block] = self._sums[block] + scale * sums

    def finish(self) -> list[Floats]:
        """One float32 array per block."""
        return [
            self._kernel.project_finish(self._spec, 0, count, np.asarray(sums, dtype=np.float64))
            if np.ndim(sums)
            else np.zeros(count, dtype=np.float32)  # nothing was added there
            for count, sums in zip(self._counts, self._sums, strict=True)
        ]


def _differences(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
    """(lo, hi, a - b in float32) for pieces of two tensors."""
    a, b = _flat(a), _flat(b)
    room = torch.empty(min(len(a), PIECE), dtype=torch.float32, device=b.device)
    for lo in range(0, len(a), PIECE):
        hi = min(lo + PIECE, len(a))
        part = room[: hi - lo]
        if b.dtype == torch.float32:
            torch.sub(a[lo:hi], b[lo:hi], out=part)
        else:
            part.copy_(a[lo:hi].float() - b[lo:hi].float())
        yield lo, hi, part


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in order: the tensor's own memory if it is contiguous, else a copy."""
    return tensor.detach().reshape(-1)


def _keep(parameter: torch.Tensor, flat: torch.Tensor) -> None:
    """Write back what `_flat` had to copy."""
    if not parameter.is_contiguous():
        parameter.detach().copy_(flat.view(parameter.shape))


def _operand(kernel: kernels.Kernels, flat: torch.Tensor) -> Any:
    """A tensor as the kernels take it: itself on a GPU, otherwise an array on the same memory."""
    if kernel.TENSORS:
        return flat
    if flat.dtype in (torch.bfloat16, torch.float16):
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy()


def stochastic(values: Floats, bits: NDArray[np.uint32], dtype: str) -> Floats:
    """Round each value to one of its two neighbours in a 16-bit dtype, right on average.

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
