"""Hands gradients over as backward makes them, so that none is kept in memory: for Ferret's streaming projection.

An embedding would still be expensive: the gradient of its whole matrix, nearly all of it zero, and where it is tied to
the output layer the sum of two such. So looked-up rows are handed over as rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

FEW = 1024  # more looked-up rows than this go the ordinary way

Take = Callable[[int, torch.Tensor], None]
TakeRows = Callable[[int, torch.Tensor, torch.Tensor], None]


@contextmanager
def gradients_taken(
    parameters: Sequence[torch.Tensor], take: Take, take_rows: TakeRows | None = None
) -> Iterator[None]:
    """Makes backward hand each gradient over, while active, instead of keeping it.

    Args:
        parameters: whose gradients.
        take: called with a parameter's number and its gradient, once for each backward pass.
        take_rows: called with a matrix' number, row numbers (ascending, each once) and the gradients of these rows, for
            each embedding that looks up few rows; such rows are not part of what `take` gets. None: `take` gets all.
    """

    def whole(index: int, p: torch.Tensor) -> None:
        gradient, p.grad = p.grad, None
        assert gradient is not None
        with torch.no_grad():
            take(index, gradient)

    hooks: list[Any] = [
        p.register_post_accumulate_grad_hook(partial(whole, i))  # type: ignore[no-untyped-call]
        for i, p in enumerate(parameters)
    ]
    try:
        with nullcontext() if take_rows is None else _LookedUpRows(parameters, take_rows):
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _LookedUpRows(TorchFunctionMode):
    """Hands the gradients of looked-up rows over in place of those of whole embeddings."""

    def __init__(self, parameters: Sequence[torch.Tensor], take_rows: TakeRows) -> None:
        super().__init__()
        self._index = {id(p): i for i, p in enumerate(parameters)}
        self._take_rows = take_rows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `func`, or looks rows up itself; torch calls this in place of `func`, with the mode off inside."""
        look_up = func is functional.embedding and torch.is_grad_enabled()
        return (self._look_up if look_up else func)(*args, **(kwargs or {}))

    def _look_up(
        self, input: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None, **how: Any
    ) -> torch.Tensor:
        special = how.get("max_norm") is not None or how.get("scale_grad_by_freq") or how.get("sparse")
        if id(weight) not in self._index or special or input.numel() > FEW:
            return functional.embedding(input, weight, padding_idx, **how)
        index, (unique, which) = self._index[id(weight)], torch.unique(input, return_inverse=True)
        rows = functional.embedding(unique, weight.detach()).requires_grad_()

        def arrived(rows: torch.Tensor) -> None:
            gradient, rows.grad = rows.grad, None
            assert gradient is not None
            with torch.no_grad():
                if padding_idx is not None:  # its row does not learn
                    gradient = gradient.masked_fill((unique == padding_idx).unsqueeze(1), 0.0)
                self._take_rows(index, unique, gradient)

        rows.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]
        return functional.embedding(which, rows)  # whose backward adds up in order, on a GPU too
