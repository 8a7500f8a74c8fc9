"""Functions of weights that differ between the rows of a batch, computed without making these
weights.

Row i has W + s_i sum_j u_ij w_ij^T / sqrt(r), with signs u (left) and w (right). The large product
is shared by the whole batch, and each row adds a term of rank r. Each function below computes one
row; its `vmap` computes all rows at once (`torch.func`, "Extending torch.func with
autograd.Function"). Sizes: B rows, r the rank, T tokens.

Factors come as tables, shape (directions, r, ...), and `row` gives the row's entry of them. Each
row has its own, so a `Row` is always mapped over.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.nn import functional

try:  # torch's own function, which other versions may lack: `apply` does the same
    from torch._C._functorch import _add_batch_dim, _unwrap_batched
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    SHORT = True
except ImportError:
    SHORT = False


class Factors(NamedTuple):
    """The factors of a matrix' directions."""

    left: torch.Tensor  # signs u, shape (directions, r, rows of the matrix), in the matrix' dtype
    right: torch.Tensor  # signs w, shape (directions, r, columns), likewise
    scale: torch.Tensor  # s / sqrt(r) of each entry, shape (directions,), float32


class Row(NamedTuple):
    """The row's entry of the tables."""

    entry: torch.Tensor  # its index; for all rows, shape (B,)
    in_order: bool  # whether the rows have the entries 0, 1, ... of tables of B

    def pick(self, table: torch.Tensor) -> torch.Tensor:
        """Return all rows' entries, shape (B, ...)."""
        return table if self.in_order else table.index_select(0, self.entry)


class UnmappedError(Exception):
    """A model uses a function that can't be mapped over rows; the text names it."""


def _with_row_dim(value: Any, dim: int | None, rows: int) -> Any:
    """Return a value with one entry for each row, in dimension 0."""
    return value.expand(rows, *value.shape) if dim is None else value.movedim(dim, 0)


class _Mapped(torch.autograd.Function):
    """A function that may be mapped over, and has no gradient."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


class _OfRows(_Mapped):
    """A function that works only for all rows at once: a `Row` is always mapped over."""

    @staticmethod
    def forward(*_: Any) -> torch.Tensor:
        raise RuntimeError("rows are mapped over")

    @classmethod
    def apply_rows(cls, *args: Any) -> Any:
        """Call `apply`, in a faster way if torch has one: the overhead of the usual way equals a
        small layer's product.

        In tuples, only tensors in a `Row` are mapped over.
        """
        if not SHORT:
            return cls.apply(*args)  # type: ignore[no-untyped-call]
        interpreter = retrieve_current_functorch_interpreter()
        level = interpreter.level()
        dims: list[int | None] = []
        plain: list[Any] = []
        for arg in args:
            dim = None
            if isinstance(arg, torch.Tensor):
                arg, dim = _unwrap_batched(arg, level)
            elif isinstance(arg, Row):
                arg = Row(_unwrap_batched(arg.entry, level)[0], arg.in_order)
            plain.append(arg)
            dims.append(dim)
        mapped = SimpleNamespace(batch_size=interpreter.batch_size())  # type: ignore[attr-defined]
        with interpreter.lower():
            result, result_dim = cls.vmap(mapped, dims, *plain)  # type: ignore[no-untyped-call]
        return _add_batch_dim(result, result_dim, level)


class Linear(_OfRows):
    """x W^T + bias, W of shape (m, n), x of (..., n); the bias may differ from row to row."""

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Any, weight: Any, bias: Any, factors: Factors, row: Row
    ) -> tuple[torch.Tensor, int]:
        """For all rows: y += (x w^T) u, in one pass over y."""
        x = _with_row_dim(x, dims[0], info.batch_size)
        flat = x.reshape(len(x), -1, x.shape[-1])
        inner = (
            torch.bmm(flat, row.pick(factors.right).to(x.dtype).mT)
            * row.pick(factors.scale)[:, None, None]
        )
        row_left = row.pick(factors.left).to(flat.dtype)
        row_bias = None if dims[2] is None else bias.movedim(dims[2], 0)[:, None].to(flat.dtype)
        if torch.is_autocast_enabled(x.device.type) or (row_bias is None and bias is not None):
            y = functional.linear(flat, weight, bias if row_bias is None else None)
            y += _sum(
                inner.to(y.dtype),
                row_left.to(y.dtype),
                None if row_bias is None else row_bias.to(y.dtype),
            )
        else:
            y = _sum(inner.to(flat.dtype), row_left, row_bias)
            # adds while it writes, without a further pass
            y.view(-1, y.shape[-1]).addmm_(flat.flatten(0, 1), weight.t())
        return y.view(*x.shape[:-1], -1), 0


def _sum(terms: torch.Tensor, signs: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """terms signs + bias, shape (B, T, m), of (B, T, r), (B, r, m) and (B, 1, m), in one pass if
    possible.
    """
    if signs.shape[1] == 1:
        return terms * signs if bias is None else torch.addcmul(bias, terms, signs)
    return torch.bmm(terms, signs) if bias is None else torch.baddbmm(bias, terms, signs)


class Pick(_OfRows):
    """A row's entry of a table."""

    @staticmethod
    def vmap(info: Any, dims: Any, table: torch.Tensor, row: Row) -> tuple[torch.Tensor, int]:
        """For all rows."""
        entries = row.pick(table)
        return entries.view(
            entries.shape
        ), 0  # a result that is the input itself would not count as mapped


class Embedding(_OfRows):
    """The rows of W, shape (m, n), for token ids."""

    @staticmethod
    def vmap(
        info: Any, dims: Any, ids: Any, weight: Any, factors: Factors, row: Row
    ) -> tuple[torch.Tensor, int]:
        """For all rows: y += u[token] w, in single precision, rounded once."""
        ids = _with_row_dim(ids, dims[0], info.batch_size)
        flat = ids.reshape(len(ids), -1)
        # (B, T, r)
        token_left = (
            factors.left[row.entry[:, None], :, flat].float()
            * row.pick(factors.scale)[:, None, None]
        )
        y = functional.embedding(flat, weight).float()
        with torch.autocast(y.device.type, enabled=False):
            y = torch.baddbmm(y, token_left, row.pick(factors.right).float())
        return y.to(weight.dtype).view(*ids.shape, -1), 0


class Attention(_OfRows):
    """`scaled_dot_product_attention`, for all rows as one batch: torch would compute them one by
    one.
    """

    @staticmethod
    def vmap(
        info: Any, dims: Any, query: Any, key: Any, value: Any, mask: Any, row: Row, options: Any
    ) -> tuple[torch.Tensor, int]:
        """For all rows: dimensions 0 and 1 are merged."""
        q, k, v = (
            _with_row_dim(t, d, info.batch_size)
            for t, d in zip((query, key, value), dims[:3], strict=True)
        )
        rows = q.shape[:2]
        if mask is not None:
            mask = _with_row_dim(mask, dims[3], info.batch_size)
            while mask.dim() < q.dim():
                mask = mask.unsqueeze(1)
            mask = mask.expand(*rows, *mask.shape[2:]).flatten(0, 1)
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
        return attended.unflatten(0, rows), 0  # type: ignore[no-untyped-call]


class Everywhere(_Mapped):
    """`all()` of a mapped tensor, over all rows, as for a batch. Models test in this way whether a
    mask is needed, and skip it if not. If each row were tested alone, padded and other rows would
    take different paths.
    """

    @staticmethod
    def forward(value: torch.Tensor) -> torch.Tensor:
        return value.all()

    @staticmethod
    def vmap(info: Any, dims: Any, value: torch.Tensor) -> tuple[torch.Tensor, None]:
        return value.all(), None


class Agreed(_Mapped):
    """A value that Python reads from a tensor, and that must be equal for all rows."""

    @staticmethod
    def forward(value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def vmap(info: Any, dims: Any, value: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the first row's value. Raises UnmappedError if another row has another."""
        values = value.movedim(dims[0], 0)
        if not bool((values == values[0]).all()):
            raise UnmappedError("rows take different branches")
        return values[0].clone(), None
