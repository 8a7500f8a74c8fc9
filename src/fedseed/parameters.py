"""ParameterSpace: a model's trainable tensors as one vector in blocks, and what can be done to it."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedseed.layout import ITEM_BYTES, BlockRule, Layout, TensorEntry, cut
from fedseed.perturbation import PerturbedUse, can_exchange, direction_over
from fedseed.randomness import Basis, Domain, kernels

Floats = NDArray[np.float32]
Coefficients = NDArray[Any] | Sequence[float] | Sequence[NDArray[Any]]

PIECE = 1 << 22  # elements worked on at a time: bounds the extra memory by 16 MiB a buffer


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
    seen: set[int] = set()
    named = []
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:  # tied weights count once
            seen.add(id(tensor))
            named.append((name, tensor))
    return _hash_tensors(named)


class ParameterSpace:
    """The trainable tensors of a model, in `named_parameters` order, as one vector of length d in L blocks.

    Args:
        model: any torch module; parameters with `requires_grad` belong to the space, tied ones once.
        blocks: "one", "tensor", "packed" or a number (see `fedseed.layout.cut`).

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
        self._base: list[torch.Tensor] | None = None
        ends = list(accumulate(e.size for e in entries))
        self._starts = {id(p): (end - p.numel(), end) for p, end in zip(self.parameters, ends, strict=True)}

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

    def keep_base(self) -> None:
        """Keep a copy of the weights as they are: what `rebuild` starts from."""
        self._base = self.snapshot()

    def rebuild(self, terms: Sequence[Term], scale: float = 1.0) -> None:
        """w = w0 + scale * sum of the terms, in one pass and one rounding, where w0 is what `keep_base` kept.

        However small single steps are, none is lost: they meet in the coefficients, not in the weights.

        Raises:
            ValueError: `keep_base` was not called, or as `add` does.
        """
        if self._base is None:
            raise ValueError("rebuild needs keep_base first")
        self._move(terms, scale, self._base, None)

    def _move(
        self,
        terms: Sequence[Term],
        scale: float,
        base: Sequence[torch.Tensor] | None,
        rounding: tuple[int, int] | None,
    ) -> None:
        """w = round((base or w) + scale * sum of the terms)."""
        if not np.isfinite(scale):
            raise ValueError(f"scale = {scale}: a finite number is needed")
        per_block = [self._per_block(term.coefficients) for term in terms]
        for block, start, stop in self._pieces():
            length = self.layout.block_sizes[block]
            total = np.zeros(stop - start, dtype=np.float32)
            for term, coefficients in zip(terms, per_block, strict=True):
                total += kernels.current().combine(
                    term.basis.spec, term.first, coefficients[block], start, stop, length
                )
            total *= np.float32(scale)
            with torch.no_grad():
                self._accumulate(torch.from_numpy(total), start, base, rounding)

    def project(
        self, delta: torch.Tensor | Floats, basis: Basis, count: int | Sequence[int], first: int = 0
    ) -> Floats | list[Floats]:
        """V^T delta: inner products with `count` directions.

        Args:
            delta: vector of length d (float32, bfloat16 or float16 tensor, or float32 array).
            basis: where the directions come from.
            count: how many directions for the whole vector, or one number per block.
            first: index of the first direction.

        Returns:
            float32 array of shape (count,), or for one number per block a list with one array per block.

        Raises:
            ValueError: delta has not length d, or the number of counts is not that of the blocks.
        """
        if isinstance(delta, torch.Tensor):
            delta = delta.detach().to("cpu", torch.float32).reshape(-1).numpy()
        if delta.shape != (self.size,):
            raise ValueError(f"delta has shape {delta.shape}, the space has {self.size} parameters")
        blocks = len(self.layout.block_sizes)
        whole = isinstance(count, int | np.integer)
        counts = [int(count)] * blocks if isinstance(count, int | np.integer) else [int(c) for c in count]
        if len(counts) != blocks:
            raise ValueError(f"{len(counts)} counts for {blocks} blocks")
        parts = []
        for block, length in enumerate(self.layout.block_sizes):
            start = self.layout.boundaries[block]
            x = delta[start : start + length]
            parts.append(kernels.current().project(basis.spec, first, counts[block], x, start, length))
        if not whole:
            return parts
        total = np.zeros(counts[0], dtype=np.float64)
        for part in parts:
            total += part
        return total.astype(np.float32)

    @contextmanager
    def perturbed(self, basis: Basis, k: int, scale: float) -> Iterator[None]:
        """Inside the block, forward passes see w + scale * direction(k); afterwards w has the same bits as before.

        Nothing is added to and subtracted from the weights. Each torch function gets a perturbed copy of the
        parameters it uses (`fedseed.perturbation`), rounded to the dtype as `add` rounds. A model with scripted or
        compiled parts, where that is not possible, has its weights changed and put back from a copy.

        Args:
            basis: where the direction comes from.
            k: the direction's index.
            scale: how far to move along it.
        """
        if can_exchange(self.model):
            with PerturbedUse(partial(self._change, basis, k, scale), self._starts):
                yield
            return
        saved = self.snapshot()
        try:
            self.add(basis, np.ones(1, dtype=np.float32), scale, first=k)
            yield
        finally:
            self.restore(saved)

    def _change(self, basis: Basis, k: int, scale: float, place: tuple[int, int]) -> torch.Tensor:
        return direction_over(basis, k, scale, self.layout.boundaries, *place)

    # -- the weights as they are -----------------------------------------------------------------------------------

    def digest(self) -> str:
        """Hex digest (128 bit) of the trainable tensors: names, dtypes, shapes and bytes."""
        return _hash_tensors([(e.name, p) for e, p in zip(self.layout.tensors, self.parameters, strict=True)])

    def snapshot(self) -> list[torch.Tensor]:
        """Copies of the trainable tensors."""
        return [p.detach().clone() for p in self.parameters]

    def restore(self, saved: Sequence[torch.Tensor]) -> None:
        """Put back what `snapshot` returned."""
        with torch.no_grad():
            for p, s in zip(self.parameters, saved, strict=True):
                p.copy_(s)

    def difference(self, saved: Sequence[torch.Tensor]) -> Floats:
        """saved - w as one float32 vector of length d."""
        out = np.empty(self.size, dtype=np.float32)
        position = 0
        for p, s in zip(self.parameters, saved, strict=True):
            part = s.float() - p.detach().float()
            out[position : position + p.numel()] = part.reshape(-1).cpu().numpy()
            position += p.numel()
        return out

    def norm(self) -> float:
        """The Euclidean norm of w."""
        return float(np.sqrt(sum(float(p.detach().double().square().sum()) for p in self.parameters)))

    def dense(self) -> bytes:
        """All trainable tensors, in order, in their own dtypes, as bytes (little-endian)."""
        return b"".join(_bytes(p) for p in self.parameters)

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

    def _pieces(self) -> Iterator[tuple[int, int, int]]:
        """(block, start, stop) of runs of at most PIECE elements that lie in one block."""
        for block, (a, b) in enumerate(pairwise(self.layout.boundaries)):
            for start in range(a, b, PIECE):
                yield block, start, min(start + PIECE, b)

    def _accumulate(
        self,
        change: torch.Tensor,
        start: int,
        base: Sequence[torch.Tensor] | None,
        rounding: tuple[int, int] | None,
    ) -> None:
        """w[start : start + n] = round(float32(base or w) + change)."""
        stop = start + change.numel()
        position = 0
        for index, p in enumerate(self.parameters):
            a, b = max(start, position), min(stop, position + p.numel())
            if a < b:
                contiguous = p.data.is_contiguous()
                flat = p.data.view(-1) if contiguous else p.data.reshape(-1)
                old = flat if base is None else base[index].reshape(-1)
                value = old[a - position : b - position].float() + change[a - start : b - start].to(p.device)
                if rounding is not None and p.dtype != torch.float32:
                    bits = kernels.current().element_words(rounding[0], Domain.ROUNDING, rounding[1], a, b)
                    value = torch.from_numpy(stochastic(value.cpu().numpy(), bits, _dtype_name(p))).to(p.device)
                flat[a - position : b - position].copy_(value)
                if not contiguous:
                    p.data.copy_(flat.view(p.shape))
            position += p.numel()


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
