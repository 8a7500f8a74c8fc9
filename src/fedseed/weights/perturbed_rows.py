"""Evaluates each row of a batch at weights of its own: w + scales[i] * direction(directions[i]).

A model's `forward` is mapped over the rows of its inputs (`torch.vmap`): it is written for a batch,
and what it sees is a batch of one. So nothing has to be guessed about which dimension of which
tensor inside a model is the batch, and rows can't mix: torch follows the rows through every
function. Where one of the space's parameters is used, what belongs to a row is handed out. Small
tensors are made for each row, and so are a convolution's. A matrix is not: its products and
look-ups are those of `fedseed.weights.row_products`, which take the factors of its directions.

What can't be mapped is an error, and so is what would be silently wrong: a parameter that is used
outside of the model's `forward`, and inputs of which none has a row for each direction.
`fedseed.weights.row_losses` then takes a pass for each direction.

Keys and values that a model keeps from one call to the next are an object that it changes, and
`torch.vmap` maps over tensors: such a cache is taken apart into its tensors and put together again,
a new one each time.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial, update_wrapper
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fedseed.errors import FedseedError
from fedseed.randomness import Basis, kernels
from fedseed.randomness.basis import MAX_DIRECTIONS
from fedseed.randomness.kernels.reference import Spec
from fedseed.randomness.stream import Domain
from fedseed.weights import row_products
from fedseed.weights.perturbation import asks_only, can_exchange, exchanged
from fedseed.weights.row_products import Agreed, Everywhere, Factors, Row, UnmappedError
from fedseed.weights.vector import Vector, check_scale

Move = tuple[int, float]  # (direction, scale)
LEAST = 1 << 20  # numbers that copies of a matrix, one for each row, may have in any case
_OF_ROWS = "_fedseed_rows"  # marks a model whose forward is another one
_TENSOR = object()
_PLAIN = (bool, int, float, str, type(None))
# functions that Python reads a value with
_READS = {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "is_nonzero"}
_EVERYWHERE = (torch.all, torch.Tensor.all)
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm)


class RowsError(FedseedError):
    """Rows could not be evaluated at weights of their own."""


def know_caches() -> None:
    """Has `pytree` take caches that grow layer by layer apart.

    Without transformers imported there is none.
    """
    kind = getattr(sys.modules.get("transformers.cache_utils"), "DynamicCache", None)
    if kind is not None and kind not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(
            kind, _flatten, lambda tensors, shell: _with(shell, iter(tensors))
        )


def _flatten(cache: Any) -> tuple[list[torch.Tensor], Any]:
    filled = [layer for layer in cache.layers if layer.is_initialized]
    return [tensor for layer in filled for tensor in (layer.keys, layer.values)], _with(
        cache, iter(())
    )


def _with(cache: Any, tensors: Iterator[Any]) -> Any:
    """Returns a copy of a cache with these keys and values, or None where there are no more."""
    other = copy(cache)
    other.layers = [copy(layer) for layer in cache.layers]
    for layer in other.layers:
        if layer.is_initialized:
            layer.keys, layer.values = next(tensors, None), next(tensors, None)
    return other


def moves_of(directions: Sequence[int], scales: float | Sequence[float]) -> list[Move]:
    """Returns (direction, scale) of each row.

    Raises ValueError if there is no row, a scale that is not finite, or numbers of directions and
    scales differ.
    """
    each = (
        [float(scales)] * len(directions)
        if isinstance(scales, float | int)
        else [float(s) for s in scales]
    )
    if not len(directions) or len(each) != len(directions):
        raise ValueError(
            f"{len(directions)} directions, {len(each)} scales: one of each for every row, at "
            "least one"
        )
    for k, scale in zip(directions, each, strict=True):
        check_scale(scale)
        if not 0 <= k < MAX_DIRECTIONS:
            raise ValueError(f"k = {k}: a direction index is from 0 to 2**32 - 1")
    return [(int(k), scale) for k, scale in zip(directions, each, strict=True)]


class Rows:
    """Holds what a space knows of its model's rows; `shown` is `ParameterSpace.perturbed_rows`."""

    def __init__(self, model: torch.nn.Module, vector: Vector) -> None:
        self.model = model
        self.vector = vector
        self.reason: str | None = None  # why rows can't have weights of their own in one pass

    def problem(self, basis: Basis) -> str | None:
        """Returns why rows can't have weights of their own.

        None: one pass for many directions is worth a try.
        """
        if basis.name != "lowrank":
            return (
                "rows have weights of their own with lowrank directions, not with "
                f"{basis.name} ones"
            )
        if not can_exchange(self.model):
            return (
                "a model with scripted or compiled parts: its rows can't have weights of their own"
            )
        return self.reason and f"the model's rows can't have weights of their own: {self.reason}"

    @contextmanager
    def shown(self, basis: Basis, moves: Sequence[Move]) -> Iterator["PerturbedRows"]:
        """Gives the model another `forward` inside the block.

        Raises RowsError where that is not possible.
        """
        model = self.model
        if problem := self.problem(basis):
            raise RowsError(problem)
        if _OF_ROWS in vars(model):
            raise RowsError("the model's rows have weights of their own already")
        rows = PerturbedRows(self, basis, moves)
        before = vars(model).get("forward")
        # whoever asks for its arguments sees them
        own = update_wrapper(partial(rows.forward), model.forward)
        model.forward, model.__dict__[_OF_ROWS] = own, True
        try:
            with rows:
                yield rows
        finally:
            del model.__dict__[_OF_ROWS], model.forward
            if before is not None:
                model.forward = before
            if rows.reason is not None:
                self.reason = rows.reason
                warnings.warn(
                    f"a pass for each direction, not one for all: {rows.reason}", stacklevel=4
                )


class PerturbedRows(TorchFunctionMode):
    """Calls a model's `forward` with weights for each row, while it is active.

    Elsewhere parameters may not be used.

    What each direction is on a tensor is made when it is first asked for.

    Args:
        rows: the model and its space.
        basis: "lowrank".
        moves: (direction, scale) of each row.

    Attributes:
        calls: how often the model was called.
        reason: why the model could not be mapped over rows; None: it could, or was not called.
    """

    def __init__(self, rows: Rows, basis: Basis, moves: Sequence[Move]) -> None:
        super().__init__()
        different = list(dict.fromkeys(moves))  # the entries of tables
        entry = {move: i for i, move in enumerate(different)}
        self._entries = torch.tensor([entry[move] for move in moves], device=rows.vector.devices[0])
        self._in_order = list(moves) == different
        self._forward = rows.model.forward
        self._vector = rows.vector
        self._spec = basis.spec_on(rows.vector.layout.matrices)
        self._directions = [k for k, _ in different]
        self._scales = torch.tensor(
            [scale for _, scale in different], dtype=torch.float32, device="cpu"
        )
        self._factors: dict[int, Factors] = {}
        self._small: dict[int, torch.Tensor] = {}
        self._row: Row | None = None  # while the model is called
        self._whole: dict[int, torch.Tensor] = {}
        # a mask, and how much of it is true
        self._counted: tuple[torch.Tensor, torch.Tensor] | None = None
        self.calls = 0
        self.reason: str | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Takes the place of the model's own `forward`.

        Raises RowsError if no tensor that it is given has B rows.
        """
        if self._row is not None:  # a model that calls itself
            return self._forward(*args, **kwargs)
        self.calls += 1
        know_caches()
        rows, (leaves, form) = len(self._entries), pytree.tree_flatten((args, kwargs))
        tensors = [(at, leaf) for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        own = {at: tensor for at, tensor in tensors if tensor.dim() > 0 and len(tensor) == rows}
        if not own:
            shapes = ", ".join(str(tuple(tensor.shape)) for _, tensor in tensors)
            raise RowsError(
                f"{rows} rows have weights of their own, but the model was given tensors of shape "
                f"{shapes}"
            )
        values: list[Any] = []  # what a call returned, with `_TENSOR` in place of each tensor
        returned: Any = None  # its form

        def of_row(entry: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
            nonlocal values, returned
            mine = dict(zip(own, inputs, strict=True))
            args, kwargs = pytree.tree_unflatten(
                [mine.get(at, leaf) for at, leaf in enumerate(leaves)], form
            )
            self._row = Row(entry, self._in_order)
            try:
                found, returned = pytree.tree_flatten(self._forward(*args, **kwargs))
            finally:
                self._row, self._whole, self._counted = None, {}, None
            values = [
                _TENSOR if isinstance(v, torch.Tensor) else v if isinstance(v, _PLAIN) else None
                for v in found
            ]
            return [v for v in found if isinstance(v, torch.Tensor)]

        try:
            with torch.no_grad():  # every row a batch of one
                each = torch.vmap(of_row, randomness="different")(
                    self._entries, *(x[:, None] for x in own.values())
                )
        except (UnmappedError, RuntimeError, ValueError, NotImplementedError) as error:
            self.reason = str(error).strip().partition("\n")[0]
            raise RowsError(
                f"the model's rows can't have weights of their own: {self.reason}"
            ) from error
        joined = iter([whole.flatten(0, 1) if whole.dim() > 1 else whole for whole in each])
        return pytree.tree_unflatten(
            [next(joined) if value is _TENSOR else value for value in values], returned
        )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch in place of `func`; the mode is off inside."""
        kwargs = kwargs or {}
        if self._row is not None:
            if func is functional.scaled_dot_product_attention:
                return self._attention(*args, **kwargs)
            name = getattr(func, "__name__", "")
            if func in _EVERYWHERE and len(args) == 1 and not kwargs:
                return Everywhere.apply(args[0])  # type: ignore[no-untyped-call]
            if (
                func is torch.Tensor.sum
                and len(args) == 1
                and not kwargs
                and args[0].dtype == torch.bool
            ):
                self._counted = args[0], func(*args)
                return self._counted[1]
            if name in ("__eq__", "eq") and self._counts_all(*args):
                return Everywhere.apply(self._counted[0])  # type: ignore[index, no-untyped-call]
            if name == "__contains__":  # reads a value inside, where nothing is handed out
                return bool(Agreed.apply((args[0] == args[1]).any()))  # type: ignore[no-untyped-call]
            if name in _READS:
                return func(Agreed.apply(args[0]), *args[1:], **kwargs)  # type: ignore[no-untyped-call]
        given = (*args, *kwargs.values())
        if asks_only(func, args, kwargs) or not any(self._holds_ours(v) for v in given):
            return func(*args, **kwargs)
        if self._row is None:
            raise RowsError(
                f"{getattr(func, '__name__', func)} used a parameter outside of the model's "
                "forward, where it is not "
                "known whose row it works on: call the model itself, or use perturbed, one "
                "direction at a time"
            )
        out = self._special(func, args, kwargs)
        if out is not None:
            return out
        return func(
            *(self._exchange(a) for a in args), **{k: self._exchange(v) for k, v in kwargs.items()}
        )

    def _counts_all(self, count: Any, number: Any, *_: Any) -> bool:
        """Returns whether the number of true entries is compared with that of all entries: `all()`
        once more.
        """
        known = self._counted
        return (
            known is not None
            and count is known[1]
            and type(number) is int
            and number == known[0].numel()
        )

    def _holds_ours(self, value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return value in self._vector
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, list | tuple):
            return False
        return any(self._holds_ours(v) for v in value)

    def _exchange(self, value: Any) -> Any:
        return exchanged(value, self._vector, self._of_row)

    def _of_row(self, parameter: torch.Tensor) -> torch.Tensor:
        """Returns a row's own copy of a parameter."""
        if parameter.dim() < 2:
            if id(parameter) not in self._whole:
                self._whole[id(parameter)] = row_products.Pick.of(
                    self._vectors(parameter), self._row
                )
            return self._whole[id(parameter)]
        rows = len(self._entries)
        if rows * parameter.numel() > max(self._vector.layout.size, LEAST):
            raise UnmappedError(
                f"a function wants {rows} copies of a tensor of shape {tuple(parameter.shape)}"
            )
        left, right, scale = (
            row_products.Pick.of(table, self._row).float() for table in self._factors_of(parameter)
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

    def _linear(
        self, input: Any, weight: Any, bias: Any = None, turned: bool = False
    ) -> torch.Tensor | None:
        """input @ weight.T + bias; `turned`: input @ weight + bias."""
        if weight not in self._vector or weight.dim() != 2 or input in self._vector:
            return None
        factors, matrix = self._factors_of(weight), weight.detach()
        if turned:
            factors, matrix = Factors(factors.right, factors.left, factors.scale), matrix.t()
        return row_products.Linear.of(input, matrix, self._exchange(bias), factors, self._row)

    def _embedding(
        self,
        input: Any,
        weight: Any,
        padding_idx: Any = None,
        max_norm: Any = None,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor | None:
        if weight not in self._vector or max_norm is not None:
            return None
        return row_products.Embedding.of(
            input, weight.detach(), self._factors_of(weight), self._row
        )

    def _attention(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, *more: Any, **how: Any
    ) -> Any:
        how.update(zip(("dropout_p", "is_causal"), more, strict=False))
        if query.dim() < 3:
            return functional.scaled_dot_product_attention(query, key, value, attn_mask, **how)
        return row_products.Attention.of(query, key, value, attn_mask, self._row, how)

    def _factors_of(self, parameter: torch.Tensor) -> Factors:
        """Returns the factors on a tensor of at least two dimensions, seen as a matrix."""
        if id(parameter) not in self._factors:
            rows = parameter.shape[0]
            left = self._signs(parameter, Domain.LEFT, rows)
            right = self._signs(parameter, Domain.RIGHT, parameter.numel() // max(rows, 1))
            scale = (self._scales / sqrt(self._spec.rank)).to(parameter.device)
            self._factors[id(parameter)] = Factors(left, right, scale)
        return self._factors[id(parameter)]

    def _vectors(self, parameter: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of at most one dimension, perturbed: shape (entries, *its own)."""
        if id(parameter) not in self._small:
            moved = self._signs(parameter, Domain.DIRECTION, parameter.numel()).float()[:, 0]
            moved.mul_(self._scales.to(parameter.device)[:, None]).add_(
                parameter.detach().float().reshape(-1)
            )
            self._small[id(parameter)] = moved.to(parameter.dtype).view(-1, *parameter.shape)
        return self._small[id(parameter)]

    def _signs(self, parameter: torch.Tensor, domain: Domain, count: int) -> torch.Tensor:
        kernel, spec = kernels.current(parameter.device.type), self._spec
        if domain == Domain.DIRECTION:
            spec = Spec(spec.name, spec.seed, spec.tile, 1, spec.matrices)
        device = [parameter.device] if kernel.TENSORS else []
        made = kernel.signs(
            spec, self._directions, domain, self._vector.start_of(parameter), count, *device
        )
        signs = (
            made if isinstance(made, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(made))
        )
        return signs.to(parameter.device, parameter.dtype)
