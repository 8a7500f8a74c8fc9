"""Early stopping: a run ends when the validation loss has not become better for some rounds.

It looks at the lines of metrics and at nothing else, so a run that is taken up again stops where it would have stopped.
"""

from collections.abc import Mapping, Sequence
from math import inf, isnan
from typing import Any

VALIDATION_LOSS = "validation_loss"
Lines = Sequence[Mapping[str, Any]]


def best(metrics: Lines) -> tuple[int, float]:
    """The first round with the lowest validation loss, and that loss; (0, infinity) if there is none yet."""
    measured = [(line["round"], line[VALIDATION_LOSS]) for line in metrics if VALIDATION_LOSS in line]
    return min(((r, inf if isnan(loss) else loss) for r, loss in measured), key=lambda p: p[1], default=(0, inf))


def over(metrics: Lines, patience: int | None) -> bool:
    """Whether the last `patience` rounds, or more, brought no better validation loss."""
    return patience is not None and bool(metrics) and metrics[-1]["round"] - best(metrics)[0] >= patience


def describe(metrics: Lines, patience: int | None) -> dict[str, Any] | None:
    """For the summary: whether the run stopped early, its best round and that round's validation loss."""
    if patience is None:
        return None
    number, loss = best(metrics)
    return {"early": over(metrics, patience), "best_round": number, "best_validation_loss": loss}
