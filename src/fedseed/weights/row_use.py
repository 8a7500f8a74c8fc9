"""What torch functions get in place of a parameter while a model is mapped over rows with weights of their own.

Small tensors are made for each row, and so are a convolution's. A matrix is not: its products and look-ups are those of
`fedseed.weights.row_products`, which take the factors of its directions.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedseed.errors import FedseedError
from fedseed.randomness import Basis, kernels
from fedseed.randomness.kernels.reference import Spec
from fedseed.randomness.stream import Domain
from fedseed.weights import row_products
from fedseed.weights.perturbation import exchanged, way_of
from fedseed.weights.row_products import Agreed, Everywhere, Factors, Row, UnmappedError
from fedseed.weights.vector import Vector

# functions that Python reads a value with
_READS = {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "is_nonzero"}
_EVERYWHERE = (torch.all, torch.Tensor.all)
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm)


class RowsError(FedseedError):
    """Rows could not be evaluated at weights of their own."""


class Tables:
    """What each of some directions is on each tensor, made when it is first asked for.

    Args:
        vector: the tensors.
        basis: "lowrank".
        moves: (direction, scale), the entries of the tables.
    """

    def __init__(self, vector: Vector, basis: Basis, moves: Sequence[tuple[int, float]]) -> None:
        self.vector = vector
        self._spec = basis.spec_on(vector.layout.matrices)
        self._directions = [k for k, _ in moves]
        self._scales = torch.tensor([s for _, s in moves], dtype=torch.float32, device="cpu")
        self._factors: dict[int, Factors] = {}
        self._small: dict[int, torch.Tensor] = {}

    def factors(self, parameter: torch.Tensor) -> Factors:
        """Returns the factors on a tensor of at least two dimensions, seen as a matrix."""
        known = self._factors.get(id(parameter))
        if known is None:
            rows = parameter.shape[0]
            left = self._signs(parameter, Domain.LEFT, rows)
            right = self._signs(parameter, Domain.RIGHT, parameter.numel() // max(rows, 1))
            scale = (self._scales / sqrt(self._spec.rank)).to(parameter.device)
            known = self._factors[id(parameter)] = Factors(left, right, scale)
        return known

    def vectors(self, parameter: torch.Tensor) -> torch.Tensor:
        """A tensor of at most one dimension, perturbed: shape (entries, *its own)."""
        known = self._small.get(id(parameter))
        if known is None:
            moved = self._signs(parameter, Domain.DIRECTION, parameter.numel()).float()[:, 0]
            moved.mul_(self._scales.to(parameter.device)[:, None]).add_(parameter.detach().float().reshape(-1))
            known = self._small[id(parameter)] = moved.to(parameter.dtype).view(-1, *parameter.shape)
        return known

    def _signs(self, parameter: torch.Tensor, domain: Domain, count: int) -> torch.Tensor:
        kernel, spec = kernels.current(parameter.device.type), self._spec
        if domain == Domain.DIRECTION:
            spec = Spec(spec.name, spec.seed, spec.tile, 1, spec.matrices)
        device = [parameter.device] if kernel.TENSORS else []
        made = kernel.signs(spec, self._directions, domain, self.vector.start_of(parameter), count, *device)
        signs = made if isinstance(made, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(made))
        return signs.to(parameter.device, parameter.dtype)


class RowUse(TorchFunctionMode):
    """Hands out what belongs to a row, while a model is mapped over rows; elsewhere parameters may not be used.

    Args:
        tables: what the directions are.
        most: numbers that the rows' copies of a matrix may have, where a function needs it as a whole.
    """

    def __init__(self, tables: Tables, most: int) -> None:
        super().__init__()
        self._tables = tables
        self._most = most
        self._row: Row | None = None
        self._rows = 0  # how many are mapped over
        self._whole: dict[int, torch.Tensor] = {}
        self._counted: tuple[torch.Tensor, torch.Tensor] | None = None  # a mask, and how much of it is true

    @property
    def inside(self) -> bool:
        """Whether the model is being called."""
        return self._row is not None

    @contextmanager
    def mapped(self, row: Row, rows: int) -> Iterator[None]:
        """Inside the block it is these rows."""
        self._row, self._rows, self._whole = row, rows, {}
        try:
            yield
        finally:
            self._row, self._whole, self._counted = None, {}, None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch in place of `func`; the mode is off inside."""
        kwargs = kwargs or {}
        if self._row is not None:
            if func is functional.scaled_dot_product_attention:
                return self._attention(*args, **kwargs)
            name = getattr(func, "__name__", "")
            if func in _EVERYWHERE and len(args) == 1 and not kwargs:
                return Everywhere.apply(args[0])  # type: ignore[no-untyped-call]
            if func is torch.Tensor.sum and len(args) == 1 and not kwargs and args[0].dtype == torch.bool:
                self._counted = args[0], func(*args)
                return self._counted[1]
            if name in ("__eq__", "eq") and self._counts_all(*args):
                return Everywhere.apply(self._counted[0])  # type: ignore[index, no-untyped-call]
            if name == "__contains__":  # reads a value inside, where nothing is handed out
                return bool(Agreed.apply((args[0] == args[1]).any()))  # type: ignore[no-untyped-call]
            if name in _READS:
                return func(Agreed.apply(args[0]), *args[1:], **kwargs)  # type: ignore[no-untyped-call]
        if way_of(func) == "ask" or not any(self._holds_ours(v) for v in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        if self._row is None:
            raise RowsError(
                f"{getattr(func, '__name__', func)} used a parameter outside of the model's forward, where it is not "
                "known whose row it works on: call the model itself, or use perturbed, one direction at a time"
            )
        out = self._special(func, args, kwargs)
        if out is not None:
            return out
        return func(*(self._exchange(a) for a in args), **{k: self._exchange(v) for k, v in kwargs.items()})

    def _counts_all(self, count: Any, number: Any, *_: Any) -> bool:
        """Whether the number of true entries is compared with that of all entries: `all()` once more."""
        known = self._counted
        return known is not None and count is known[1] and type(number) is int and number == known[0].numel()

    def _ours(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value in self._tables.vector

    def _holds_ours(self, value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return value in self._tables.vector
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, list | tuple):
            return False
        return any(self._holds_ours(v) for v in value)

    def _exchange(self, value: Any) -> Any:
        return exchanged(value, self._tables.vector, self._of_row)

    def _of_row(self, parameter: torch.Tensor) -> torch.Tensor:
        """A row's own copy of a parameter."""
        known = self._whole.get(id(parameter))
        if known is not None:
            return known
        if parameter.dim() < 2:
            own = self._whole[id(parameter)] = row_products.Pick.of(self._tables.vectors(parameter), self._row)
            return own
        if self._rows * parameter.numel() > self._most:
            raise UnmappedError(f"a function wants {self._rows} copies of a tensor of shape {tuple(parameter.shape)}")
        left, right, scale = (
            row_products.Pick.of(table, self._row).float() for table in self._tables.factors(parameter)
        )
        with torch.autocast(parameter.device.type, enabled=False):
            change = (left * scale).mT @ right
        return (parameter.detach().float() + change.view(parameter.shape)).to(parameter.dtype)

    def _special(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
        """Whatever can do without a row's own matrix; None: nothing of the kind."""
        if func is functional.linear:
            return self._linear(*args, **kwargs)
        if func is functional.embedding:
            return self._embedding(*args, **kwargs)
        if func is torch.addmm and not kwargs and args[0].dim() < 2:
            bias, x, matrix = args
            return self._linear(x, matrix, bias, turned=True)
        if func in _PRODUCTS and not kwargs:
            return self._linear(args[0], args[1], turned=True)
        return None

    def _linear(self, input: Any, weight: Any, bias: Any = None, turned: bool = False) -> torch.Tensor | None:
        """input @ weight.T + bias; `turned`: input @ weight + bias."""
        if not self._ours(weight) or weight.dim() != 2 or self._ours(input):
            return None
        factors, matrix = self._tables.factors(weight), weight.detach()
        if turned:
            factors, matrix = Factors(factors.right, factors.left, factors.scale), matrix.t()
        return row_products.Linear.of(input, matrix, self._exchange(bias), factors, self._row)

    def _embedding(
        self, input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, *_: Any, **__: Any
    ) -> torch.Tensor | None:
        if not self._ours(weight) or max_norm is not None:
            return None
        return row_products.Embedding.of(input, weight.detach(), self._tables.factors(weight), self._row)

    def _attention(self, query: Any, key: Any, value: Any, attn_mask: Any = None, *more: Any, **how: Any) -> Any:
        how.update(zip(("dropout_p", "is_causal"), more, strict=False))
        if query.dim() < 3:
            return functional.scaled_dot_product_attention(query, key, value, attn_mask, **how)
        return row_products.Attention.of(query, key, value, attn_mask, self._row, how)
