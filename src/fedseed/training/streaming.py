"""Hands gradients over as backward makes them, so that none is kept in memory: for Ferret's
streaming projection.

An embedding would still be expensive: the gradient of its whole matrix, nearly all of it zero, and
where it is tied to the output layer the sum of two such. So looked-up rows are handed over as rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

FEW = 1024  # more looked-up rows than this go the ordinary way

# a parameter's number, its gradient, and of which row alone that is; None: of the whole
Take = Callable[[int, torch.Tensor, int | None], None]


@contextmanager
def gradients_taken(
    parameters: Sequence[torch.Tensor], take: Take, by_rows: bool = False
) -> Iterator[None]:
    """Make backward hand each gradient over, while active, instead of keeping it.

    Args:
        parameters: whose gradients.
        take: called with each parameter's gradient once for each backward pass.
        by_rows: of each embedding that looks up few rows, call it with the gradient of each row in
            place of the whole; what the matrix gets elsewhere still comes as a whole.
    """

    def whole(index: int, p: torch.Tensor) -> None:
        gradient, p.grad = p.grad, None
        assert gradient is not None
        with torch.no_grad():
            take(index, gradient, None)

    hooks: list[Any] = [
        p.register_post_accumulate_grad_hook(partial(whole, i))  # type: ignore[no-untyped-call]
        for i, p in enumerate(parameters)
    ]
    try:
        with _LookedUpRows(parameters, take) if by_rows else nullcontext():
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _LookedUpRows(TorchFunctionMode):
    """Hands the gradients of looked-up rows over in place of those of whole embeddings."""

    def __init__(self, parameters: Sequence[torch.Tensor], take: Take) -> None:
        super().__init__()
        self._index = {id(p): i for i, p in enumerate(parameters)}
        self._take = take

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, or look rows up directly.

        Torch calls this in place of `func`, with the mode off inside.
        """
        look_up = func is functional.embedding and torch.is_grad_enabled()
        return (self._look_up if look_up else func)(*args, **(kwargs or {}))

    def _look_up(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        padding_idx: int | None = None,
        **options: Any,
    ) -> torch.Tensor:
        special = (
            options.get("max_norm") is not None
            or options.get("scale_grad_by_freq")
            or options.get("sparse")
        )
        if id(weight) not in self._index or special or input.numel() > FEW:
            return functional.embedding(input, weight, padding_idx, **options)
        index, (unique, places) = self._index[id(weight)], torch.unique(input, return_inverse=True)
        rows = functional.embedding(unique, weight.detach()).requires_grad_()

        def arrived(rows: torch.Tensor) -> None:
            gradients, rows.grad = rows.grad, None
            assert gradients is not None
            with torch.no_grad():
                for row, gradient in zip(unique.tolist(), gradients, strict=True):
                    if row != padding_idx:  # which does not learn
                        self._take(index, gradient, row)

        rows.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]
        return functional.embedding(places, rows)  # whose backward adds up in order, on a GPU too
