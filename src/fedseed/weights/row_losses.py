"""Losses of items, each at weights of its own."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from fedseed.randomness import Basis
from fedseed.weights.perturbed_rows import RowsError, moves_of
from fedseed.weights.space import ParameterSpace

Item = TypeVar("Item")


def row_losses(
    space: ParameterSpace,
    losses: Callable[[Sequence[Item]], torch.Tensor],
    items: Sequence[Item],
    basis: Basis,
    directions: Sequence[int],
    scales: float | Sequence[float],
    counts: Sequence[int] | None = None,
) -> torch.Tensor:
    """The loss of each item at w + scales[i] * direction(directions[i]).

    In one pass with `ParameterSpace.perturbed_rows` where that is possible and `losses` calls the space's model once,
    with the rows of all items; else in one pass for each direction, to the same losses but for rounding.

    Args:
        space: the model's.
        losses: from items to their losses at the model's weights, shape (items,); an item's loss depends on no other
            item's.
        items: B of them.
        basis: where the directions come from.
        directions: B indices; some may be the same.
        scales: how far to move along each; one number: all alike.
        counts: how many rows of the model's inputs each item has, in the items' order; None: item i has row i.

    Returns:
        Shape (B,), in the items' order; no gradient.

    Raises:
        ValueError: as `perturbed_rows` does, or there are not as many items, counts or losses as directions.
    """
    moves = moves_of(directions, scales)
    if len(items) != len(moves):
        raise ValueError(f"{len(items)} items for {len(moves)} directions")
    each = [1] * len(items) if counts is None else counts
    rows_of = [move for move, count in zip(moves, each, strict=True) for _ in range(count)]
    if space.rows.possible(basis):
        try:
            with torch.no_grad(), space.perturbed_rows(basis, *zip(*rows_of, strict=True)) as rows:
                found = losses(items)
            if rows.calls == 1 and found.shape == (len(items),):
                return found
        except RowsError:  # what can't be mapped, rows that are not the items, weights used outside of the forward
            pass
    return losses_by_direction(space, losses, items, basis, moves)


def losses_by_direction(
    space: ParameterSpace,
    losses: Callable[[Sequence[Item]], torch.Tensor],
    items: Sequence[Item],
    basis: Basis,
    moves: Sequence[tuple[int, float]],
    often: bool = False,
) -> torch.Tensor:
    """`row_losses` with one pass for each direction, whatever `losses` does with the model.

    Args:
        space: the model's.
        losses: from items to their losses at the model's weights, shape (items,).
        items: B of them.
        basis: where the directions come from.
        moves: (direction, scale) of each item.
        often: `losses` calls the model many times (`ParameterSpace.perturbed`).

    Raises:
        ValueError: there are not as many losses as items.
    """
    places, parts = [], []
    for move in dict.fromkeys(moves):
        own = [i for i, other in enumerate(moves) if other == move]
        with torch.no_grad(), space.perturbed(basis, *move, often=often):
            part = losses([items[i] for i in own])
        if part.shape != (len(own),):
            raise ValueError(f"the losses of {len(own)} items have shape {tuple(part.shape)}")
        places += own
        parts.append(part)
    found = torch.cat(parts)
    return found[torch.argsort(torch.tensor(places, device=found.device))]
