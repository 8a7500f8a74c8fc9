"""A batch each of whose rows is evaluated at weights of its own: w + scales[i] * direction(directions[i]).

A model's `forward` is mapped over the rows of its inputs (`torch.vmap`): it is written for a batch, and what it sees is
a batch of one. So nothing has to be guessed about which dimension of which tensor inside a model is the batch, and rows
can't mix: torch follows the rows through every function. While it does, a `TorchFunctionMode` hands out what belongs to
a row where one of the space's parameters is used: products with matrices are shared by all rows (`row_products`), small
tensors are made for each row.

What can't be mapped is done one row after the other, with the weights that `ParameterSpace.perturbed` shows. What would
be wrong without a word is an error: a parameter that is used outside of the model's `forward`, and inputs of which none
has a row for each direction.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fedseed.errors import FedseedError
from fedseed.randomness import Basis, kernels
from fedseed.randomness.stream import Domain
from fedseed.weights import row_products
from fedseed.weights.perturbation import way_of
from fedseed.weights.row_products import Agreed, Factors, RowsDiffer
from fedseed.weights.vector import Vector

One = Callable[[int, float], AbstractContextManager[None]]  # (direction, scale) -> the whole model moved along it

# functions that Python reads a value with
_READS = {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "is_nonzero"}
_CONVOLUTIONS = {functional.conv1d: 1, functional.conv2d: 2, functional.conv3d: 3}
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm)
_PLAIN = (bool, int, float, str, type(None))


class RowsError(FedseedError):
    """Rows could not be evaluated at weights of their own."""


class _Unmapped(Exception):
    """What a model does can't be mapped over rows; the reason."""


class Tables:
    """What each of some directions is on each tensor, made when it is first asked for.

    Args:
        vector: the tensors.
        basis: "lowrank".
        moves: (direction, scale), the entries of the tables.
    """

    def __init__(self, vector: Vector, basis: Basis, moves: Sequence[tuple[int, float]]) -> None:
        self._vector = vector
        self._spec = basis.spec_on(vector.layout.matrices)
        self._directions = [k for k, _ in moves]
        self._scales = torch.tensor([s for _, s in moves], dtype=torch.float32, device="cpu")
        self._factors: dict[int, Factors] = {}
        self._small: dict[int, torch.Tensor] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return tensor in self._vector

    def factors(self, parameter: torch.Tensor) -> Factors:
        """Of a tensor of at least two dimensions, seen as a matrix."""
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
            signs = self._signs(parameter, Domain.DIRECTION, parameter.numel()).float()[:, 0]
            moved = parameter.detach().float().view(-1) + self._scales.to(parameter.device)[:, None] * signs
            known = self._small[id(parameter)] = moved.to(parameter.dtype).view(-1, *parameter.shape)
        return known

    def _signs(self, parameter: torch.Tensor, domain: Domain, count: int) -> torch.Tensor:
        kernel, spec = kernels.current(parameter.device.type), self._spec
        if domain == Domain.DIRECTION:
            spec = spec._replace(rank=1)
        device = [parameter.device] if kernel.TENSORS else []
        made = kernel.signs(spec, self._directions, domain, self._vector.start_of(parameter), count, *device)
        signs = made if isinstance(made, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(made))
        return signs.to(parameter.device, parameter.dtype)


class _RowUse(TorchFunctionMode):
    """Hands out what belongs to a row; `row` is the entry of the tables that it has, as vmap follows it.

    Args:
        tables: what the directions are.
        most: numbers that the rows' copies of a matrix may have, where a function needs it as a whole.
    """

    def __init__(self, tables: Tables, most: int) -> None:
        super().__init__()
        self._tables = tables
        self._most = most
        self.row: torch.Tensor | None = None
        self.rows = 0  # how many are mapped over
        self.free = False  # whether weights may be used as they are
        self._whole: dict[int, torch.Tensor] = {}

    def begin(self, row: torch.Tensor | None, rows: int) -> None:
        """From here on it is these rows."""
        self.row, self.rows, self._whole = row, rows, {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch in place of `func`; the mode is off inside."""
        kwargs = kwargs or {}
        if self.free:
            return func(*args, **kwargs)
        if self.row is not None:
            if func is functional.scaled_dot_product_attention:
                return self._attention(*args, **kwargs)
            if getattr(func, "__name__", "") in _READS:
                return func(Agreed.apply(args[0]), *args[1:], **kwargs)
        if way_of(func) == "ask" or not any(self._holds_ours(v) for v in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        if self.row is None:
            raise RowsError(
                f"{getattr(func, '__name__', func)} used a parameter outside of the model's forward, where it is not "
                "known whose row it works on: call the model itself, or use perturbed, one direction at a time"
            )
        out = self._special(func, args, kwargs)
        if out is not None:
            return out
        return func(*(self._exchange(a) for a in args), **{k: self._exchange(v) for k, v in kwargs.items()})

    def _ours(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value in self._tables

    def _holds_ours(self, value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return value in self._tables
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, list | tuple):
            return False
        return any(self._holds_ours(v) for v in value)

    def _exchange(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._of_row(value) if value in self._tables else value
        if type(value) in (list, tuple):
            return type(value)(self._exchange(v) for v in value)
        if type(value) is dict:
            return {k: self._exchange(v) for k, v in value.items()}
        return value

    def _of_row(self, parameter: torch.Tensor) -> torch.Tensor:
        """A row's own copy of a parameter."""
        known = self._whole.get(id(parameter))
        if known is not None:
            return known
        if parameter.dim() < 2:
            own = self._whole[id(parameter)] = _entry(self._tables.vectors(parameter), self.row)
            return own
        if self.rows * parameter.numel() > self._most:
            raise _Unmapped(f"a function wants {self.rows} copies of a tensor of shape {tuple(parameter.shape)}")
        left, right, scale = (_entry(table, self.row).float() for table in self._tables.factors(parameter))
        change = (left * scale).mT @ right
        return (parameter.detach().float() + change.view(parameter.shape)).to(parameter.dtype)

    # -- functions that need no copy -------------------------------------------------------------------------------

    def _special(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
        """Whatever can do without a row's own matrix; None: nothing of the kind."""
        if func is functional.linear:
            return self._linear(*args, **kwargs)
        if func is functional.embedding:
            return self._embedding(*args, **kwargs)
        if func in _CONVOLUTIONS:
            return self._convolution(func, *args, **kwargs)
        if func is torch.addmm and not kwargs:
            bias, x, matrix = args
            return self._product(x, matrix, bias) if bias.dim() < 2 else None
        return self._product(*args, None) if func in _PRODUCTS and not kwargs else None

    def _linear(self, input: Any, weight: Any, bias: Any = None) -> torch.Tensor | None:
        if not self._ours(weight) or weight.dim() != 2 or self._ours(input):
            return None
        factors = self._tables.factors(weight)
        return row_products.Linear.apply(input, weight.detach(), self._exchange(bias), factors, self.row)

    def _product(self, x: Any, matrix: Any, bias: Any) -> torch.Tensor | None:
        """x @ matrix + bias."""
        if not self._ours(matrix) or matrix.dim() != 2 or self._ours(x):
            return None
        left, right, scale = self._tables.factors(matrix)
        turned = Factors(right, left, scale)
        return row_products.Linear.apply(x, matrix.detach().t(), self._exchange(bias), turned, self.row)

    def _embedding(
        self, input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, *_: Any, **__: Any
    ) -> torch.Tensor | None:
        if not self._ours(weight) or max_norm is not None:
            return None
        return row_products.Embedding.apply(input, weight.detach(), self._tables.factors(weight), self.row)

    def _convolution(
        self, func: Any, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> torch.Tensor | None:  # fmt: skip
        if not self._ours(weight) or self._ours(input) or input.dim() != _CONVOLUTIONS[func] + 2:
            return None
        return row_products.Convolution.apply(
            func, input, weight.detach(), self._exchange(bias), (stride, padding, dilation), groups,
            self._tables.factors(weight), self.row,
        )  # fmt: skip

    def _attention(self, query: Any, key: Any, value: Any, attn_mask: Any = None, *more: Any, **how: Any) -> Any:
        how.update(zip(("dropout_p", "is_causal"), more, strict=False))
        if query.dim() < 3:
            return functional.scaled_dot_product_attention(query, key, value, attn_mask, **how)
        return row_products.Attention.apply(query, key, value, attn_mask, self.row, how)


def _entry(table: torch.Tensor, row: torch.Tensor | None) -> torch.Tensor:
    """table[row], in a way that vmap follows."""
    assert row is not None
    return table.index_select(0, row[None])[0]


class PerturbedRows:
    """A model's `forward` with weights for each row; made by `ParameterSpace.perturbed_rows`.

    Args:
        model: the model.
        vector: its trainable tensors.
        basis: where the directions come from.
        moves: (direction, scale) of each row.
        one: shows the model moved along one direction, for what can't be mapped.
        mapped: whether to try; where not, one row after the other.

    Attributes:
        calls: how often the model was called.
        reason: why rows went one after the other; None: they did not.
    """

    def __init__(
        self, model: torch.nn.Module, vector: Vector, basis: Basis, moves: Sequence[tuple[int, float]], one: One,
        mapped: bool = True,
    ) -> None:  # fmt: skip
        self._moves = list(moves)
        different = list(dict.fromkeys(self._moves))
        self._entries = torch.tensor([different.index(move) for move in self._moves], device="cpu")
        self._one = one
        self._forward = model.forward
        self._use = _RowUse(
            Tables(vector, basis, different), max(vector.layout.size, 1 << 20)
        )
        self._device = vector.devices[0]
        self._mapped = mapped and basis.name == "lowrank"
        self.calls = 0
        self.reason: str | None = None if self._mapped else "the basis is not lowrank"

    def mode(self) -> TorchFunctionMode:
        """Has to be on while the model is called."""
        return self._use

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """In place of the model's own."""
        if self._use.free or self._use.row is not None:  # a model that calls itself
            return self._forward(*args, **kwargs)
        self.calls += 1
        leaves, form = pytree.tree_flatten((args, kwargs))
        rows = len(self._moves)
        of_rows = [isinstance(v, torch.Tensor) and v.dim() > 0 and len(v) == rows for v in leaves]
        if not any(of_rows):
            shapes = [tuple(v.shape) for v in leaves if isinstance(v, torch.Tensor)]
            raise RowsError(f"{rows} rows have weights of their own, but the model was given tensors of shapes {shapes}")
        with torch.no_grad():
            call = _Call(self._forward, leaves, form, of_rows)
            if self._mapped:
                try:
                    return call.joined(self._in_one_go(call, torch.arange(rows)))
                except (_Unmapped, RuntimeError, ValueError, NotImplementedError) as error:
                    self._mapped, self.reason = False, str(error).strip().partition("\n")[0]
                finally:
                    self._use.begin(None, 0)
            return call.joined(self._one_by_one(call))

    def _in_one_go(self, call: "_Call", rows: torch.Tensor) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        """[(rows, what the model returned for them)]; rows that take different branches go apart."""
        entries = self._entries[rows].to(self._device)

        def of_row(row: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
            self._use.begin(row, len(rows))
            return call(inputs)

        try:
            out = torch.vmap(of_row, randomness="different")(entries, *call.inputs(rows))
        except RowsDiffer as branch:
            same = torch.tensor(branch.same, device="cpu")
            return self._in_one_go(call, rows[same]) + self._in_one_go(call, rows[~same])
        finally:
            self._use.begin(None, 0)
        return [(rows, list(out))]

    def _one_by_one(self, call: "_Call") -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        """The same, with one pass for each row."""
        results = []
        self._use.free = True
        try:
            for i, (k, scale) in enumerate(self._moves):
                row = torch.tensor([i], device="cpu")
                with self._one(k, scale):
                    results.append((row, [out[None] for out in call([v[0] for v in call.inputs(row)])]))
        finally:
            self._use.free = False
        return results


class _Call:
    """One call of a model, to be made for some rows or one of them.

    Args:
        forward: the model's.
        leaves: all that it was given, flat.
        form: how that hangs together.
        of_rows: which of the leaves have a row for each direction.
    """

    def __init__(self, forward: Callable[..., Any], leaves: list[Any], form: Any, of_rows: list[bool]) -> None:
        self._forward = forward
        self._leaves, self._form, self._of_rows = leaves, form, of_rows
        self._out: tuple[list[Any], Any] = [], None  # what a call returned, tensors aside

    def inputs(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Shape (rows, 1, ...) each: every row is a batch of one."""
        chosen = [v for v, own in zip(self._leaves, self._of_rows, strict=True) if own]
        return [v[rows.to(v.device)][:, None] for v in chosen]

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that the model returns for one row; its inputs have a first dimension of one."""
        own = iter(inputs)
        leaves = [next(own) if of else v for v, of in zip(self._leaves, self._of_rows, strict=True)]
        args, kwargs = pytree.tree_unflatten(leaves, self._form)
        found, form = pytree.tree_flatten(self._forward(*args, **kwargs))
        self._out = [v if isinstance(v, (*_PLAIN, torch.Tensor)) else None for v in found], form
        return [v for v in found if isinstance(v, torch.Tensor)]

    def joined(self, results: list[tuple[torch.Tensor, list[torch.Tensor]]]) -> Any:
        """What the model would have returned for the batch."""
        order = torch.argsort(torch.cat([rows for rows, _ in results]))
        tensors = []
        for parts in zip(*(out for _, out in results), strict=True):
            whole = torch.cat(parts) if len(parts) > 1 else parts[0]
            if len(parts) > 1:
                whole = whole[order.to(whole.device)]
            tensors.append(whole.flatten(0, 1) if whole.dim() > 1 else whole)
        found, form = self._out
        made = iter(tensors)
        return pytree.tree_unflatten([next(made) if isinstance(v, torch.Tensor) else v for v in found], form)
