"""Early stopping: ends a run after several evaluations in a row without a better validation loss.

Patience counts evaluations, as in FederatedScope, which FedMeZO's paper is built on. Rounds between
evaluations say nothing about the validation loss, so a run never ends at one of them. The decision
uses only the lines of metrics, so a resumed run stops where it would have stopped without the
interruption.
"""

from collections.abc import Sequence
from math import inf, isfinite, isnan
from typing import Any

from fedseed.reports.results import RoundLine

VALIDATION_LOSS = "validation_loss"
# share of the base's loss: a run that changes its loss by less than this stands still
HARDLY = 0.01
# times the base's loss, or times 1 if the base's loss is lower
DIVERGED = 1000.0
Lines = Sequence[RoundLine]


def _evaluated(metrics: Lines, name: str = VALIDATION_LOSS) -> list[tuple[int, float]]:
    """Return round and loss of each evaluation; NaN counts as infinity."""
    evaluations = [(line.round, line.metrics[name]) for line in metrics if name in line.metrics]
    return [(number, inf if isnan(loss) else loss) for number, loss in evaluations]


def find_best(metrics: Lines) -> tuple[int, float]:
    """Return the first round with the lowest validation loss, and that loss.

    (0, infinity) if there is none yet.
    """
    return min(_evaluated(metrics), key=lambda evaluation: evaluation[1], default=(0, inf))


def is_over(metrics: Lines, patience: int | None) -> bool:
    """Return whether at least the last `patience` evaluations did not lower the validation loss."""
    if patience is None:
        return False
    number, _ = find_best(metrics)
    return sum(evaluated > number for evaluated, _ in _evaluated(metrics)) >= patience


def find_divergence_round(metrics: Lines) -> int | None:
    """Return the first round with a loss that is not finite, or DIVERGED times the base's.

    None if there is no such round.

    None also if the base's own loss is not finite.
    """
    evaluations = _evaluated(metrics, "loss")
    if not evaluations or not isfinite(evaluations[0][1]):
        return None
    limit = DIVERGED * max(1.0, evaluations[0][1])
    return next((number for number, loss in evaluations if not loss <= limit), None)


def find_standstill(metrics: Lines, rounds: int) -> tuple[int, float, float] | None:
    """Find whether the loss will hardly move by the end, judged by its pace at the first evaluation
    after a tenth of the rounds.

    Returns:
        That evaluation's round, the base's loss, and that evaluation's loss. None: the loss moves,
        or there is no such evaluation yet.
    """
    evaluations = _evaluated(metrics, "loss")
    later = next(
        ((number, loss) for number, loss in evaluations[1:] if 10 * number >= rounds), None
    )
    if later is None:
        return None
    (_, first), (number, loss) = evaluations[0], later
    if abs(first - loss) * rounds < HARDLY * abs(first) * number:
        return (number, first, loss)
    return None


def describe(metrics: Lines, patience: int | None, rounds: int) -> dict[str, Any] | None:
    """Return the summary's entry: whether the run stopped early, its best round, and that round's
    validation loss.
    """
    if patience is None:
        return None
    number, loss = find_best(metrics)
    return {"early": metrics[-1].round < rounds, "best_round": number, "best_validation_loss": loss}
