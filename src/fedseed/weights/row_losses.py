"""Compute the losses of items, each at weights of its own."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import torch

from fedseed.randomness import Basis
from fedseed.weights.perturbed_rows import PerturbedRows, RowsError, moves_of
from fedseed.weights.space import ParameterSpace

Item = TypeVar("Item")
# returns the context for a batch, from the item's number for each row
EnterRows = Callable[[Sequence[int]], AbstractContextManager[PerturbedRows]]


def row_losses(
    space: ParameterSpace,
    losses: Callable[[Sequence[Item]], torch.Tensor],
    items: Sequence[Item],
    basis: Basis,
    directions: Sequence[int],
    scales: float | Sequence[float],
    counts: Sequence[int] | None = None,
    evaluate_batches: Callable[[EnterRows], torch.Tensor | None] | None = None,
) -> torch.Tensor:
    """Return the loss of each item at w + scales[i] * direction(directions[i]).

    This takes one pass with `ParameterSpace.perturbed_rows` if that is possible and `losses` calls
    the space's model once, with the rows of all items. Otherwise it takes a pass for each
    direction, with the same losses up to rounding.

    Args:
        space: the model's.
        losses: from items to their losses at the model's weights, shape (items,); an item's loss
            depends on no other item's.
        items: B items.
        basis: where the directions come from.
        directions: B indices; some may be the same.
        scales: distance to move along each; one number: the same for all.
        counts: number of rows that each item has in the model's inputs, in the items' order; None:
            item i has row i.
        evaluate_batches: for `losses` that call the model many times, as in generation: evaluates
            all items, each batch in the context that its argument returns; returns None if it
            can't.

    Returns:
        Shape (B,), in the items' order; no gradient.

    Raises:
        ValueError: as `perturbed_rows` does, or the number of items, counts or losses is not that
            of the directions.
    """
    moves = moves_of(directions, scales)
    if len(items) != len(moves):
        raise ValueError(f"{len(items)} items for {len(moves)} directions")
    row_counts = [1] * len(items) if counts is None else counts
    rows: list[int] = []
    for number, count in zip(range(len(moves)), row_counts, strict=True):
        rows += [number] * count

    def enter_rows(numbers: Sequence[int]) -> AbstractContextManager[PerturbedRows]:
        return space.rows.active(basis, [moves[number] for number in numbers])

    def in_one_pass() -> torch.Tensor | None:
        with torch.no_grad(), enter_rows(rows) as rows_mode:
            item_losses = losses(items)
        return item_losses if rows_mode.calls == 1 and item_losses.shape == (len(items),) else None

    if space.rows.problem(basis) is None:
        try:
            item_losses = (
                in_one_pass() if evaluate_batches is None else evaluate_batches(enter_rows)
            )
        except RowsError:
            # the model can't be mapped, its rows differ from the items, or it uses weights outside
            # of its forward
            item_losses = None
        if item_losses is not None:
            return item_losses
    item_order, parts = [], []
    for move in dict.fromkeys(moves):
        indices = [i for i, item_move in enumerate(moves) if item_move == move]
        with torch.no_grad(), space.perturbed(basis, *move, often=evaluate_batches is not None):
            part = losses([items[i] for i in indices])
        if part.shape != (len(indices),):
            raise ValueError(f"the losses of {len(indices)} items have shape {tuple(part.shape)}")
        item_order += indices
        parts.append(part)
    all_losses = torch.cat(parts)
    return all_losses[torch.argsort(torch.tensor(item_order, device=all_losses.device))]
