"""Early stopping: a run ends when some evaluations in a row have not brought a better validation
loss.

What counts are evaluations, as in FederatedScope, which FedMeZO's paper is built on (its rounds are
patience times the rounds between evaluations): rounds in between say nothing about the validation
loss, and a run never ends at one. It looks at the lines of metrics and at nothing else, so a run
that is taken up again stops where it would have stopped.
"""

from collections.abc import Sequence
from math import inf, isfinite, isnan
from typing import Any

from fedseed.reports.results import RoundLine

VALIDATION_LOSS = "validation_loss"
# of the base's loss: a run that will not have moved it by so much does nothing
HARDLY = 0.01
# times the base's loss, or times 1 if that is less
DIVERGED = 1000.0
Lines = Sequence[RoundLine]


def _evaluated(metrics: Lines, name: str = VALIDATION_LOSS) -> list[tuple[int, float]]:
    """Return round and loss of each evaluation; one that is not a number is worse than any."""
    evaluations = [(line.round, line.metrics[name]) for line in metrics if name in line.metrics]
    return [(number, inf if isnan(loss) else loss) for number, loss in evaluations]


def find_best(metrics: Lines) -> tuple[int, float]:
    """Return the first round with the lowest validation loss, and that loss.

    (0, infinity) if there is none yet.
    """
    return min(_evaluated(metrics), key=lambda evaluation: evaluation[1], default=(0, inf))


def is_over(metrics: Lines, patience: int | None) -> bool:
    """Return whether the last `patience` evaluations or more did not lower the validation loss."""
    if patience is None:
        return False
    number, _ = find_best(metrics)
    return sum(evaluated > number for evaluated, _ in _evaluated(metrics)) >= patience


def find_divergence_round(metrics: Lines) -> int | None:
    """Return the first round with a loss that is not finite, or DIVERGED times the base's.

    None: there is none.

    A run whose base has no finite loss is not judged.
    """
    evaluations = _evaluated(metrics, "loss")
    if not evaluations or not isfinite(evaluations[0][1]):
        return None
    limit = DIVERGED * max(1.0, evaluations[0][1])
    return next((number for number, loss in evaluations if not loss <= limit), None)


def find_standstill(metrics: Lines, rounds: int) -> tuple[int, float, float] | None:
    """Find the first evaluation after a tenth of the rounds, if at that pace the loss will hardly
    move to the end.

    Returns:
        The round, the base's loss and the loss then; None: it moves, or there is no such evaluation
        yet.
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
    """Return for the summary whether the run stopped early, its best round and that round's
    validation loss.
    """
    if patience is None:
        return None
    number, loss = find_best(metrics)
    return {"early": metrics[-1].round < rounds, "best_round": number, "best_validation_loss": loss}
