"""Evaluates each row of a batch at weights of its own: w + scales[i] * direction(directions[i]).

A model's `forward` is mapped over the rows of its inputs (`torch.vmap`): it is written for a batch, and what it sees is
a batch of one. So nothing has to be guessed about which dimension of which tensor inside a model is the batch, and rows
can't mix: torch follows the rows through every function. While it does, a mode hands out what belongs to a row where
one of the space's parameters is used (`fedseed.weights.row_use`).

What can't be mapped is an error, and so is what would be silently wrong: a parameter that is used outside of the
model's `forward`, and inputs of which none has a row for each direction. `fedseed.weights.row_losses` then takes a pass
for each direction.

Keys and values that a model keeps from one call to the next are an object that it changes, and `torch.vmap` maps over
tensors: such a cache is taken apart into its tensors and put together again, a new one each time.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial, update_wrapper
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fedseed.randomness import Basis
from fedseed.randomness.basis import MAX_DIRECTIONS
from fedseed.weights.perturbation import can_exchange
from fedseed.weights.row_products import Row, UnmappedError
from fedseed.weights.row_use import RowsError, RowUse, Tables
from fedseed.weights.vector import Vector, check_scale


def know_caches() -> None:
    """Has `pytree` take caches that grow layer by layer apart; without transformers imported there is none."""
    kind = getattr(sys.modules.get("transformers.cache_utils"), "DynamicCache", None)
    if kind is not None and kind not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(kind, _flatten, lambda tensors, shell: _with(shell, iter(tensors)))


def _flatten(cache: Any) -> tuple[list[torch.Tensor], Any]:
    filled = [layer for layer in cache.layers if layer.is_initialized]
    return [tensor for layer in filled for tensor in (layer.keys, layer.values)], _with(cache, iter(()))


def _with(cache: Any, tensors: Iterator[Any]) -> Any:
    """Returns a copy of a cache with these keys and values, or None where there are no more."""
    other = copy(cache)
    other.layers = [copy(layer) for layer in cache.layers]
    for layer in other.layers:
        if layer.is_initialized:
            layer.keys, layer.values = next(tensors, None), next(tensors, None)
    return other


Move = tuple[int, float]  # (direction, scale)
LEAST = 1 << 20  # numbers that copies of a matrix, one for each row, may have in any case
_OF_ROWS = "_fedseed_rows"  # marks a model whose forward is another one
_TENSOR = object()
_PLAIN = (bool, int, float, str, type(None))


def moves_of(directions: Sequence[int], scales: float | Sequence[float]) -> list[Move]:
    """Returns (direction, scale) of each row.

    Raises:
        ValueError: there is no row, a scale that is not finite, or numbers of directions and scales that differ.
    """
    each = [float(scales)] * len(directions) if isinstance(scales, float | int) else [float(s) for s in scales]
    if not len(directions) or len(each) != len(directions):
        raise ValueError(f"{len(directions)} directions, {len(each)} scales: one of each for every row, at least one")
    for k, scale in zip(directions, each, strict=True):
        check_scale(scale)
        if not 0 <= k < MAX_DIRECTIONS:
            raise ValueError(f"k = {k}: a direction index is from 0 to 2**32 - 1")
    return [(int(k), scale) for k, scale in zip(directions, each, strict=True)]


class Rows:
    """Holds what a space knows of its model's rows; `shown` is `ParameterSpace.perturbed_rows`.

    Args:
        model: the model.
        vector: its trainable tensors.
    """

    def __init__(self, model: torch.nn.Module, vector: Vector) -> None:
        self.model = model
        self.vector = vector
        self.reason: str | None = None  # why rows can't have weights of their own in one pass

    def problem(self, basis: Basis) -> str | None:
        """Returns why rows can't have weights of their own; None: one pass for many directions is worth a try."""
        if basis.name != "lowrank":
            return f"rows have weights of their own with lowrank directions, not with {basis.name} ones"
        if not can_exchange(self.model):
            return "a model with scripted or compiled parts: its rows can't have weights of their own"
        return self.reason and f"the model's rows can't have weights of their own: {self.reason}"

    @contextmanager
    def shown(self, basis: Basis, moves: Sequence[Move]) -> Iterator["PerturbedRows"]:
        """Gives the model another `forward` inside the block. Raises RowsError where that is not possible."""
        model = self.model
        if problem := self.problem(basis):
            raise RowsError(problem)
        if _OF_ROWS in vars(model):
            raise RowsError("the model's rows have weights of their own already")
        rows = PerturbedRows(self, basis, moves)
        before = vars(model).get("forward")

        own = update_wrapper(partial(rows.forward), model.forward)  # whoever asks for its arguments sees them
        model.forward, model.__dict__[_OF_ROWS] = own, True
        try:
            with rows.use:
                yield rows
        finally:
            del model.__dict__[_OF_ROWS], model.forward
            if before is not None:
                model.forward = before
            if rows.reason is not None:
                self.reason = rows.reason
                warnings.warn(f"a pass for each direction, not one for all: {rows.reason}", stacklevel=4)


class PerturbedRows:
    """Calls a model's `forward` with weights for each row.

    Args:
        rows: the model and its space.
        basis: where the directions come from.
        moves: (direction, scale) of each row.

    Attributes:
        use: the mode that has to be on while the model is called.
        calls: how often the model was called.
        reason: why the model could not be mapped over rows; None: it could, or was not called.
    """

    def __init__(self, rows: Rows, basis: Basis, moves: Sequence[Move]) -> None:
        different = list(dict.fromkeys(moves))
        entry = {move: i for i, move in enumerate(different)}
        self._entries = torch.tensor([entry[move] for move in moves], device=rows.vector.devices[0])
        self._in_order = list(moves) == different
        self._forward = rows.model.forward
        self.use = RowUse(Tables(rows.vector, basis, different), max(rows.vector.layout.size, LEAST))
        self.calls = 0
        self.reason: str | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Takes the place of the model's own `forward`. Raises RowsError if no tensor that it is given has B rows."""
        if self.use.inside:  # a model that calls itself
            return self._forward(*args, **kwargs)
        self.calls += 1
        know_caches()
        rows, (leaves, form) = len(self._entries), pytree.tree_flatten((args, kwargs))
        tensors = [(at, leaf) for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        own = {at: tensor for at, tensor in tensors if tensor.dim() > 0 and len(tensor) == rows}
        if not own:
            shapes = ", ".join(str(tuple(tensor.shape)) for _, tensor in tensors)
            raise RowsError(f"{rows} rows have weights of their own, but the model was given tensors of shape {shapes}")
        values: list[Any] = []  # what a call returned, with `_TENSOR` in place of each tensor
        returned: Any = None  # its form

        def of_row(entry: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
            nonlocal values, returned
            mine = dict(zip(own, inputs, strict=True))
            args, kwargs = pytree.tree_unflatten([mine.get(at, leaf) for at, leaf in enumerate(leaves)], form)
            with self.use.mapped(Row(entry, self._in_order), rows):
                found, returned = pytree.tree_flatten(self._forward(*args, **kwargs))
            values = [_TENSOR if isinstance(v, torch.Tensor) else v if isinstance(v, _PLAIN) else None for v in found]
            return [v for v in found if isinstance(v, torch.Tensor)]

        try:
            with torch.no_grad():  # every row a batch of one
                each = torch.vmap(of_row, randomness="different")(self._entries, *(x[:, None] for x in own.values()))
        except (UnmappedError, RuntimeError, ValueError, NotImplementedError) as error:
            self.reason = str(error).strip().partition("\n")[0]
            raise RowsError(f"the model's rows can't have weights of their own: {self.reason}") from error
        joined = iter([whole.flatten(0, 1) if whole.dim() > 1 else whole for whole in each])
        return pytree.tree_unflatten([next(joined) if value is _TENSOR else value for value in values], returned)
