"""Judge a run by its lines of metrics: has it diverged, or does it stand still?

A loss alone does not tell. Steps that are far too long can destroy a model whose base was worse
than a guess, and its loss falls all the same; or no step is taken at all, and the loss stays where
it was. So the verdict also looks at the clients' own loss, at how long the weights have become, and
at who sent nothing and why.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from fedseed.reports.results import RoundLine
from fedseed.runs import stopping

# times the base's loss: beyond, the model is worse than its base
WORSE = 1.1
# the same where the weights are about as long as before: few held-out examples and few rounds move
# the loss by a fifth without any harm
WORSE_AT_SAME_NORM = 1.25
# what a rise of the loss must be besides, where the base's loss is near zero
LEAST_RISE = 0.05
# a loss that is this close to a uniform guess's loss, relative to it, counts as a guess. A bad
# base's loss that is well above it is on its way down
NEAR_A_GUESS = 0.05
# a base's loss above this many times that of a guess is confidently wrong: its loss falls when the
# model is destroyed. A head that was drawn anew has about a guess's loss, and rightly stays near it
# at first
CONFIDENTLY_WRONG = 1.25
GROWN = (
    0.1  # change of the weights' norm, relative to the base's: about half of the weights' length
)
# the same: hardly anything of the base is left
DOUBLED = 1.0
MOVED = 0.01  # the same: the weights have moved visibly
# of the base's loss: below it a client's loss shows that training works, whatever held-out data
# show
LEARNS = 0.9
NOT_FINITE = re.compile(
    r"\b(nan|inf)\b|not finite|overflow|no local step was usable", re.IGNORECASE
)


@dataclass(frozen=True)
class Divergence:
    """The reason why a run counts as diverged.

    Args:
        round: the round since when it has.
        reason: what shows it, with figures.
        factor: what the rate should be multiplied with.
    """

    round: int
    reason: str
    factor: float

    def to_json(self, advice: str) -> dict[str, Any]:
        """Return the form that a summary has, with what to do."""
        return {"kind": "diverged", **asdict(self), "advice": advice}


def find_divergence(metrics: Sequence[RoundLine], guess: float | None) -> Divergence | None:
    """Return the reason why the run counts as diverged at its newest line; None if it does not.

    A run that has recovered does not count. A run whose base has no finite loss is not judged.

    Args:
        metrics: the run's lines, round 0 first.
        guess: the loss of a model that finds every word or class equally likely; None: not known.
    """
    if len(metrics) < 2 or not isfinite(metrics[0].metrics.get("loss", 0.0)):
        return None
    base, divergence = metrics[0], None
    for line in reversed(metrics[1:]):
        if "loss" in base.metrics and "loss" not in line.metrics:
            continue
        judgement = _judge_line(base, line, guess)
        if judgement is None:
            break
        divergence = (
            Divergence(line.round, *judgement)
            if divergence is None
            else _since(divergence, line.round)
        )
    return divergence


def _since(divergence: Divergence, number: int) -> Divergence:
    return Divergence(number, divergence.reason, divergence.factor)


def _judge_line(base: RoundLine, line: RoundLine, guess: float | None) -> tuple[str, float] | None:
    """Return the problem after a round, and the factor for the learning rate."""
    return _judge_answers(line) or _judge_losses(base, line, guess)


def _judge_answers(line: RoundLine) -> tuple[str, float] | None:
    """Judge whether the rounds led to no step because numbers overflowed or went too far."""
    overflowed = [one for one in line.skipped if NOT_FINITE.search(str(one.get("reason")))]
    if overflowed and line.taking_part == 0:
        return f"no client could answer: {overflowed[-1]['reason']}", 0.01
    too_far = [one for one in line.not_taken if _is_too_far(str(one.get("reason")))]
    if too_far and len(too_far) == line.rounds:
        return f"no step is taken: {too_far[-1]['reason']}", 0.01
    return None


def _is_too_far(reason: str) -> bool:
    return "no honest one is above" in reason or "would move every weight" in reason


def _judge_losses(
    base: RoundLine, line: RoundLine, guess: float | None
) -> tuple[str, float] | None:
    """Judge whether a loss ran away, or is worse than before training."""
    first, loss, local = base.metrics.get("loss"), line.metrics.get("loss"), line.train_loss
    limit = stopping.DIVERGED * max(1.0, first or 0.0)
    if loss is not None and not loss <= limit:
        return f"its held-out loss is {loss:.3g}, the base's {first:.3g}{_norm(base, line)}", 0.01
    if local is not None and not local <= limit:
        return f"the clients' local loss is {local:.3g}{_norm(base, line)}", 0.01
    if "reward" in base.metrics:
        # a reward may rise while the loss does, too
        return None
    if loss is not None and first is not None:
        return _judge_held_out(first, loss, base, line, guess)
    # nothing is held out: the clients' own loss is all there is, and it is noisy
    if local is None or guess is None or local < 1.5 * guess or _size(growth(base, line)) < GROWN:
        return None
    return (
        f"the clients' local loss is {local:.3g}, a guess's {guess:.3g}{_norm(base, line)}",
        0.1,
    )


def _judge_held_out(
    first: float, loss: float, base: RoundLine, line: RoundLine, guess: float | None
) -> tuple[str, float] | None:
    """Judge whether the held-out loss is worse than before training, or than a guess's."""
    local, grown = line.train_loss, _size(growth(base, line))
    # if the training loss falls while the held-out loss rises, clients overfit or their data
    # differs: the numbers do not diverge, unless the weights do
    if local is not None and local < LEARNS * min(first, guess or first) and grown < DOUBLED:
        return None
    worse = WORSE_AT_SAME_NORM
    if grown >= GROWN:
        worse = WORSE
    is_worse = loss > worse * first and loss > first + LEAST_RISE
    if is_worse or (loss > first and grown > DOUBLED):
        factor = 0.1 if loss > 2 * first or grown > DOUBLED else 0.3
        return f"its held-out loss is {loss:.3g}, the base's {first:.3g}{_norm(base, line)}", factor
    if guess is None or abs(loss - guess) > NEAR_A_GUESS * guess or grown < GROWN:
        return None
    if first < CONFIDENTLY_WRONG * guess:
        return None
    return (
        f"its held-out loss is {loss:.3g}, no better than a guess's {guess:.3g} (the base's: "
        f"{first:.3g}){_norm(base, line)}",
        0.1,
    )


def _size(grown: float | None) -> float:
    """Return the size of a change; 0 where it is not known."""
    if grown is None:
        return 0.0
    return abs(grown)


def _norm(base: RoundLine, line: RoundLine) -> str:
    grown = growth(base, line)
    if grown is None:
        return ""
    return f", and the weights' norm is {1 + grown:.3g} times the base's"


def growth(base: RoundLine, line: RoundLine) -> float | None:
    """Return by how much the weights' norm has changed, relative to the base's.

    None: it is not known, as for a coordinator without the model.
    """
    if not base.weights_norm or line.weights_norm is None:
        return None
    return line.weights_norm / base.weights_norm - 1


def has_moved_far(base: RoundLine, line: RoundLine) -> bool:
    """Return whether something other than too small a rate keeps the loss where it is."""
    grown, first = growth(base, line), base.metrics.get("loss")
    if grown is not None and not abs(grown) < MOVED:
        return True
    local = line.train_loss
    return None not in (first, local) and not float(local or 0) < 2 * float(first or 0)


def advise(rate: tuple[str, float] | None, factor: float) -> str:
    """Return advice on the rate to try next.

    Args:
        rate: the key that sets how far steps go, and its value; None: there is none.
        factor: what it is to be multiplied with.
    """
    if rate is None:
        if factor < 1:
            return "lower the rates"
        return "raise the rates"
    key, value = rate
    size = "large" if factor < 1 else "small"
    return (
        f"most likely {key} = {value:g} is too {size}: try --set {key}={value * factor:.2g}, or "
        "let `fedseed tune-rate RECIPE` find a rate"
    )
