"""Losses of items, each at weights of its own."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import torch

from fedseed.randomness import Basis
from fedseed.weights.perturbed_rows import PerturbedRows, RowsError, moves_of
from fedseed.weights.space import ParameterSpace

Item = TypeVar("Item")
# what a batch of items, given by their numbers, row by row, is evaluated in
Around = Callable[[Sequence[int]], AbstractContextManager[PerturbedRows]]


def row_losses(
    space: ParameterSpace,
    losses: Callable[[Sequence[Item]], torch.Tensor],
    items: Sequence[Item],
    basis: Basis,
    directions: Sequence[int],
    scales: float | Sequence[float],
    counts: Sequence[int] | None = None,
    together: Callable[[Around], torch.Tensor | None] | None = None,
) -> torch.Tensor:
    """Returns the loss of each item at w + scales[i] * direction(directions[i]).

    In one pass with `ParameterSpace.perturbed_rows` where that is possible and `losses` calls the
    space's model once, with the rows of all items; else in one pass for each direction, to the same
    losses but for rounding.

    Args:
        space: the model's.
        losses: from items to their losses at the model's weights, shape (items,); an item's loss
            depends on no other item's.
        items: B of them.
        basis: where the directions come from.
        directions: B indices; some may be the same.
        scales: how far to move along each; one number: all alike.
        counts: how many rows of the model's inputs each item has, in the items' order; None: item i
            has row i.
        together: for `losses` that call the model many times, as when it writes: makes all of them
            at once, in what it is given for each batch; it returns None where it can't.

    Returns:
        Shape (B,), in the items' order; no gradient.

    Raises:
        ValueError: as `perturbed_rows` does, or there are not as many items, counts or losses as
            directions.
    """
    moves = moves_of(directions, scales)
    if len(items) != len(moves):
        raise ValueError(f"{len(items)} items for {len(moves)} directions")
    each = [1] * len(items) if counts is None else counts
    rows = [
        number for number, count in zip(range(len(moves)), each, strict=True) for _ in range(count)
    ]

    def around(numbers: Sequence[int]) -> AbstractContextManager[PerturbedRows]:
        return space.rows.shown(basis, [moves[number] for number in numbers])

    def in_one_pass() -> torch.Tensor | None:
        with torch.no_grad(), around(rows) as used:
            found = losses(items)
        return found if used.calls == 1 and found.shape == (len(items),) else None

    if space.rows.problem(basis) is None:
        try:
            found = in_one_pass() if together is None else together(around)
        except (
            RowsError
        ):  # what can't be mapped, rows that are not the items, weights used outside of the forward
            found = None
        if found is not None:
            return found
    places, parts = [], []
    for move in dict.fromkeys(moves):
        own = [i for i, other in enumerate(moves) if other == move]
        with torch.no_grad(), space.perturbed(basis, *move, often=together is not None):
            part = losses([items[i] for i in own])
        if part.shape != (len(own),):
            raise ValueError(f"the losses of {len(own)} items have shape {tuple(part.shape)}")
        places += own
        parts.append(part)
    joined = torch.cat(parts)
    return joined[torch.argsort(torch.tensor(places, device=joined.device))]
