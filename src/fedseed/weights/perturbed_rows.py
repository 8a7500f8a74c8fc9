"""Evaluates each row of a batch at weights of its own: w + scales[i] * direction(directions[i]).

A model's `forward` is mapped over the rows of its inputs (`torch.vmap`): it is written for a batch,
and gets batches of one. So the batch dimension of tensors inside the model need not be guessed, and
rows can't mix: torch follows the rows through every function. If a parameter of the space is used,
the row's version is passed on. Small tensors and a convolution's are made for each row. A matrix is
not: its products and look-ups are those of `fedseed.weights.row_products`, which take the factors
of its directions.

A model that can't be mapped is an error, and so are uses that would give wrong results: a parameter
that is used outside of the model's `forward`, and inputs without a row for each direction.
`fedseed.weights.row_losses` then takes a pass for each direction.

A model may keep keys and values between calls in an object that it changes, but `torch.vmap` maps
over tensors. So such a cache is split into its tensors, and rebuilt as a new object at each call.
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
from fedseed.weights.perturbation import asks_only, can_exchange, exchange
from fedseed.weights.row_products import Agreed, Everywhere, Factors, Row, UnmappedError
from fedseed.weights.vector import Vector, check_scale

Move = tuple[int, float]  # (direction, scale)
# elements up to which copies of a matrix, one for each row, are always allowed
MIN_COPY_SIZE = 1 << 20
_OF_ROWS = "_fedseed_rows"  # marks a model whose forward is replaced
_TENSOR = object()
_PLAIN = (bool, int, float, str, type(None))
# functions by which Python reads a value
_READS = {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "is_nonzero"}
_EVERYWHERE = (torch.all, torch.Tensor.all)
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm)


# `_read_all_rows` has no answer
_UNREAD = object()


class RowsError(FedseedError):
    """The rows can't be evaluated at weights of their own."""


def know_caches() -> None:
    """Register transformers' growing caches with `pytree`, so that it flattens them. Nothing is
    done if transformers is not imported.
    """
    kind = getattr(sys.modules.get("transformers.cache_utils"), "DynamicCache", None)
    if kind is not None and kind not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(
            kind, _flatten, lambda tensors, shell: _with_tensors(shell, iter(tensors))
        )


def _flatten(cache: Any) -> tuple[list[torch.Tensor], Any]:
    tensors: list[torch.Tensor] = []
    for layer in cache.layers:
        if layer.is_initialized:
            tensors += [layer.keys, layer.values]
    return tensors, _with_tensors(cache, iter(()))


def _with_tensors(cache: Any, tensors: Iterator[Any]) -> Any:
    """Return a copy of a cache with these keys and values, and None when they are used up."""
    filled_copy = copy(cache)
    filled_copy.layers = [copy(layer) for layer in cache.layers]
    for layer in filled_copy.layers:
        if layer.is_initialized:
            layer.keys, layer.values = next(tensors, None), next(tensors, None)
    return filled_copy


def moves_of(directions: Sequence[int], scales: float | Sequence[float]) -> list[Move]:
    """Return (direction, scale) of each row.

    Raises ValueError if there is no row, if a scale is not finite, or if the numbers of directions
    and scales differ.
    """
    if isinstance(scales, float | int):
        row_scales = [float(scales)] * len(directions)
    else:
        row_scales = [float(scale) for scale in scales]
    if not len(directions) or len(row_scales) != len(directions):
        raise ValueError(
            f"{len(directions)} directions, {len(row_scales)} scales: one direction and one scale "
            "is needed for every row, and at least one row"
        )
    for k, scale in zip(directions, row_scales, strict=True):
        check_scale(scale)
        if not 0 <= k < MAX_DIRECTIONS:
            raise ValueError(f"k = {k}: a direction index is from 0 to 2**32 - 1")
    return [(int(k), scale) for k, scale in zip(directions, row_scales, strict=True)]


def _without_tensor(output: Any) -> Any:
    """Return the part of a model's output that `vmap` need not carry."""
    if isinstance(output, torch.Tensor):
        return _TENSOR
    return output if isinstance(output, _PLAIN) else None


class Rows:
    """A space's model, evaluated with weights for each row (`ParameterSpace.perturbed_rows`).

    Attributes:
        reason: why the model's rows can't have weights of their own in one pass; None: not known.
    """

    def __init__(self, model: torch.nn.Module, vector: Vector) -> None:
        self.model = model
        self.vector = vector
        self.reason: str | None = None

    def problem(self, basis: Basis) -> str | None:
        """Return the reason why rows can't have their own weights. None: no reason is known."""
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
    def active(self, basis: Basis, moves: Sequence[Move]) -> Iterator["PerturbedRows"]:
        """Replace the model's `forward` inside the block.

        Raises RowsError where that is not possible.
        """
        model = self.model
        problem = self.problem(basis)
        if problem:
            raise RowsError(problem)
        if _OF_ROWS in vars(model):
            raise RowsError("the model's rows have weights of their own already")
        rows = PerturbedRows(self, basis, moves)
        previous_forward = vars(model).get("forward")
        # keeps the signature, which callers inspect
        row_forward = update_wrapper(partial(rows.forward), model.forward)
        model.forward, model.__dict__[_OF_ROWS] = row_forward, True
        try:
            with rows:
                yield rows
        finally:
            del model.__dict__[_OF_ROWS], model.forward
            if previous_forward is not None:
                model.forward = previous_forward
            if rows.reason is not None:
                self.reason = rows.reason
                warnings.warn(
                    f"each direction takes a pass of its own: {rows.reason}", stacklevel=4
                )


class PerturbedRows(TorchFunctionMode):
    """Calls a model's `forward` with weights for each row, while it is active.

    Elsewhere parameters may not be used.

    A direction's factors on a tensor are made at their first use.

    Args:
        rows: the model and its space.
        basis: "lowrank".
        moves: (direction, scale) of each row.

    Attributes:
        calls: number of calls of the model.
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
        self._row: Row | None = None  # whether the model is being called
        self._whole: dict[int, torch.Tensor] = {}
        # a mask, and its number of true entries
        self._counted: tuple[torch.Tensor, torch.Tensor] | None = None
        self.calls = 0
        self.reason: str | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model's `forward` with weights for each row.

        Raises RowsError if no tensor among the arguments has B rows.
        """
        if self._row is not None:
            # the model calls itself
            return self._forward(*args, **kwargs)
        self.calls += 1
        know_caches()
        rows, (leaves, form) = len(self._entries), pytree.tree_flatten((args, kwargs))
        tensors = [
            (index, leaf) for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)
        ]
        row_inputs = {
            index: tensor for index, tensor in tensors if tensor.dim() > 0 and len(tensor) == rows
        }
        if not row_inputs:
            shapes = ", ".join(str(tuple(tensor.shape)) for _, tensor in tensors)
            raise RowsError(
                f"{rows} rows have weights of their own, but the model was given tensors of shape "
                f"{shapes}"
            )
        # the values that a call returned, with `_TENSOR` in place of each tensor, and their form
        values: list[Any] = []
        output_form: Any = None

        def of_row(entry: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
            nonlocal values, output_form
            one_row = dict(zip(row_inputs, inputs, strict=True))
            args, kwargs = pytree.tree_unflatten(
                [one_row.get(index, leaf) for index, leaf in enumerate(leaves)], form
            )
            self._row = Row(entry, self._in_order)
            try:
                outputs, output_form = pytree.tree_flatten(self._forward(*args, **kwargs))
            finally:
                self._row, self._whole, self._counted = None, {}, None
            values = [_without_tensor(output) for output in outputs]
            return [output for output in outputs if isinstance(output, torch.Tensor)]

        try:
            with torch.no_grad():  # each row becomes a batch of one
                row_outputs = torch.vmap(of_row, randomness="different")(
                    self._entries, *(x[:, None] for x in row_inputs.values())
                )
        except (UnmappedError, RuntimeError, ValueError, NotImplementedError) as error:
            self.reason = str(error).strip().partition("\n")[0]
            raise RowsError(
                f"the model's rows can't have weights of their own: {self.reason}"
            ) from error
        merged = iter([whole.flatten(0, 1) if whole.dim() > 1 else whole for whole in row_outputs])
        return pytree.tree_unflatten(
            [next(merged) if value is _TENSOR else value for value in values], output_form
        )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` with the row's weights.

        Torch calls this in place of `func`; the mode is off inside.
        """
        kwargs = kwargs or {}
        if self._row is not None:
            if func is functional.scaled_dot_product_attention:
                return self._attention(*args, **kwargs)
            answer = self._read_all_rows(func, args, kwargs)
            if answer is not _UNREAD:
                return answer
        operands = (*args, *kwargs.values())
        if asks_only(func, args, kwargs) or not any(self._holds_ours(v) for v in operands):
            return func(*args, **kwargs)
        if self._row is None:
            raise RowsError(
                f"{getattr(func, '__name__', func)} used a parameter outside of the model's "
                "forward, where its row is not known: call the model itself, or use perturbed, one "
                "direction at a time"
            )
        result = self._special(func, args, kwargs)
        if result is not None:
            return result
        return func(
            *(self._exchange(a) for a in args), **{k: self._exchange(v) for k, v in kwargs.items()}
        )

    def _read_all_rows(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a function that reads values which must be the same for all rows.

        Returns:
            What `func` returns; `_UNREAD` if it is not such a function.
        """
        name = getattr(func, "__name__", "")
        alone = len(args) == 1 and not kwargs
        if func in _EVERYWHERE and alone:
            return Everywhere.apply(args[0])  # type: ignore[no-untyped-call]
        if func is torch.Tensor.sum and alone and args[0].dtype == torch.bool:
            self._counted = args[0], func(*args)
            return self._counted[1]
        if name in ("__eq__", "eq") and self._counts_all(*args):
            return Everywhere.apply(self._counted[0])  # type: ignore[index, no-untyped-call]
        # `in` reads a value inside torch, where it can't be exchanged
        if name == "__contains__":
            return bool(Agreed.apply((args[0] == args[1]).any()))  # type: ignore[no-untyped-call]
        if name in _READS:
            return func(Agreed.apply(args[0]), *args[1:], **kwargs)  # type: ignore[no-untyped-call]
        return _UNREAD

    def _counts_all(self, count: Any, number: Any, *_: Any) -> bool:
        """Return whether a mask's number of true entries is compared with that of all entries.

        Such a comparison is `all()` in another form.
        """
        counted = self._counted
        return (
            counted is not None
            and count is counted[1]
            and type(number) is int
            and number == counted[0].numel()
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
        return exchange(value, self._vector, self._of_row)

    def _of_row(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return a row's copy of a parameter."""
        if parameter.dim() < 2:
            if id(parameter) not in self._whole:
                self._whole[id(parameter)] = row_products.Pick.apply_rows(
                    self._vectors(parameter), self._row
                )
            return self._whole[id(parameter)]
        rows = len(self._entries)
        if rows * parameter.numel() > max(self._vector.layout.size, MIN_COPY_SIZE):
            raise UnmappedError(
                f"a function needs {rows} copies of a tensor of shape {tuple(parameter.shape)}"
            )
        left, right, scale = (
            row_products.Pick.apply_rows(table, self._row).float()
            for table in self._factors_of(parameter)
        )
        with torch.autocast(parameter.device.type, enabled=False):
            change = (left * scale).mT @ right
        return (parameter.detach().float() + change.view(parameter.shape)).to(parameter.dtype)

    def _special(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
        """Return the result of a function that needs no matrix for each row; None for other
        functions.
        """
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
        return row_products.Linear.apply_rows(
            input, matrix, self._exchange(bias), factors, self._row
        )

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
        return row_products.Embedding.apply_rows(
            input, weight.detach(), self._factors_of(weight), self._row
        )

    def _attention(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **options: Any
    ) -> Any:
        options.update(zip(("dropout_p", "is_causal"), rest, strict=False))
        if query.dim() < 3:
            return functional.scaled_dot_product_attention(query, key, value, attn_mask, **options)
        return row_products.Attention.apply_rows(query, key, value, attn_mask, self._row, options)

    def _factors_of(self, parameter: torch.Tensor) -> Factors:
        """Return the factors of the directions on a tensor, seen as a matrix."""
        if id(parameter) not in self._factors:
            rows = parameter.shape[0]
            left = self._signs(parameter, Domain.LEFT, rows)
            right = self._signs(parameter, Domain.RIGHT, parameter.numel() // max(rows, 1))
            scale = (self._scales / sqrt(self._spec.rank)).to(parameter.device)
            self._factors[id(parameter)] = Factors(left, right, scale)
        return self._factors[id(parameter)]

    def _vectors(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return perturbed copies of a tensor of at most one dimension, shape (entries, *shape)."""
        if id(parameter) not in self._small:
            perturbed = self._signs(parameter, Domain.DIRECTION, parameter.numel()).float()[:, 0]
            perturbed.mul_(self._scales.to(parameter.device)[:, None]).add_(
                parameter.detach().float().reshape(-1)
            )
            self._small[id(parameter)] = perturbed.to(parameter.dtype).view(-1, *parameter.shape)
        return self._small[id(parameter)]

    def _signs(self, parameter: torch.Tensor, domain: Domain, count: int) -> torch.Tensor:
        kernel, spec = kernels.current(parameter.device.type), self._spec
        if domain == Domain.DIRECTION:
            spec = Spec(spec.name, spec.seed, spec.tile, 1, spec.matrices)
        device = [parameter.device] if kernel.TENSORS else []
        raw_signs = kernel.signs(
            spec, self._directions, domain, self._vector.start_of(parameter), count, *device
        )
        signs = (
            raw_signs
            if isinstance(raw_signs, torch.Tensor)
            else torch.from_numpy(np.ascontiguousarray(raw_signs))
        )
        return signs.to(parameter.device, parameter.dtype)
