"""Losses of equal parts of batches, each part at weights of its own."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from fedseed.objectives.batches import sequences_of
from fedseed.objectives.losses import Objective
from fedseed.randomness import Basis
from fedseed.weights.row_losses import row_losses
from fedseed.weights.space import ParameterSpace


@torch.no_grad()
def part_losses(
    space: ParameterSpace,
    objective: Objective,
    batches: Sequence[Sequence[Any]],
    basis: Basis,
    along: Sequence[int],
    scale: float,
) -> list[list[float]]:
    """Mean losses over the terms of the parts of some batches, all of them in one forward pass if that can be.

    Args:
        space: the weights.
        objective: makes losses of items.
        batches: each a multiple of n items, or none.
        basis: where the directions come from.
        along: n indices: part j of every batch is evaluated at w + scale * direction(along[j]).
        scale: how far; 0: at the weights as they are.

    Returns:
        n losses for each batch, in single precision; zeros for one without items.
    """
    n = len(along)
    parts = [
        batch[at : at + len(batch) // n] for batch in batches if batch for at in range(0, len(batch), len(batch) // n)
    ]
    items = [item for part in parts for item in part]
    losses = partial(objective.losses, space.model)
    space.model.eval()
    if scale == 0.0:
        found = losses(items)
    elif n == 1:  # all rows share it
        with space.perturbed(basis, along[0], scale, often=getattr(objective, "calls_often", False)):
            found = losses(items)
    else:
        directions = [along[number % n] for number, part in enumerate(parts) for _ in part]
        if (own := getattr(objective, "row_losses", None)) is not None:  # it calls the model many times
            found = own(space, items, basis, directions, scale)
        else:
            counts = [len(sequences_of(item)) for item in items]
            found = row_losses(space, losses, items, basis, directions, scale, counts)
    each = iter(found.tolist())
    means = iter([sum(next(each) for _ in part) / sum(map(objective.weight, part)) for part in parts])
    return [[next(means) for _ in range(n)] if batch else [0.0] * n for batch in batches]
