"""Judges a run by its lines of metrics: has it diverged, or does it stand still?

The loss alone does not show this. If a base is worse than a guess, steps that are far too long
destroy the model and still lower its loss. If no step is applied, the loss stays the same. So the
verdict also looks at the clients' own loss, at the weights' norm, and at why clients sent nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from fedseed.reports.results import RoundLine
from fedseed.runs import stopping

# times the base's loss: with a higher loss, the model is worse than its base
WORSE = 1.1
# the same if the weights' norm has hardly changed: with few held-out examples and few rounds, the
# loss can rise by a fifth without any harm
WORSE_AT_SAME_NORM = 1.25
# the least absolute rise of the loss that counts, for a base's loss near zero
LEAST_RISE = 0.05
# a loss counts as a guess's if the two differ by at most this share. A poor base's loss may be well
# above a guess's and on its way down
NEAR_A_GUESS = 0.05
# if the base's loss is more than this many times a guess's, the base is confidently wrong, and its
# loss falls when the model is destroyed. A freshly drawn head starts near a guess's loss, and may
# rightly stay there at first
CONFIDENTLY_WRONG = 1.25
# relative growth of the weights' norm: about half of the norm is then change
GROWN = 0.1
# the same: hardly anything of the base is left
DOUBLED = 1.0
MOVED = 0.01  # the same: the weights have clearly moved
# times the base's loss: if a client's loss is lower, training works, whatever the held-out loss
# shows
LEARNS = 0.9
NOT_FINITE = re.compile(
    r"\b(nan|inf)\b|not finite|overflow|no local step was usable", re.IGNORECASE
)


@dataclass(frozen=True)
class Divergence:
    """Why a run counts as diverged.

    Args:
        round: the round from which on it counts as diverged.
        reason: the evidence, with figures.
        factor: the factor by which to multiply the learning rate.
    """

    round: int
    reason: str
    factor: float

    def to_json(self, advice: str) -> dict[str, Any]:
        """Return the summary's entry, with the advice."""
        return {"kind": "diverged", **asdict(self), "advice": advice}


def find_divergence(metrics: Sequence[RoundLine], guess: float | None) -> Divergence | None:
    """Return why the run counts as diverged at its newest line; None if it does not.

    None also if the run has recovered, or if the base's own loss is not finite.

    Args:
        metrics: the run's lines of metrics, round 0 first.
        guess: the loss of a model that gives every word or class the same probability; None: not
            known.
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
    """Return the problem after a round and the factor for the learning rate; None without a
    problem.
    """
    return _judge_answers(line) or _judge_losses(base, line, guess)


def _judge_answers(line: RoundLine) -> tuple[str, float] | None:
    """Judge whether the rounds made no step because numbers overflowed or were too large."""
    overflowed = [one for one in line.skipped if NOT_FINITE.search(str(one.get("reason")))]
    # those who were asked and gave no update count among those who took part
    if overflowed and len(line.skipped) >= line.taking_part:
        return f"no client could answer: {overflowed[-1]['reason']}", 0.01
    too_far = [one for one in line.not_taken if _is_too_far(str(one.get("reason")))]
    if too_far and len(too_far) == line.rounds:
        return f"no step is taken: {too_far[-1]['reason']}", 0.01
    return None


def _is_too_far(reason: str) -> bool:
    return "honest steps stay below" in reason or "would move every weight" in reason


def _judge_losses(
    base: RoundLine, line: RoundLine, guess: float | None
) -> tuple[str, float] | None:
    """Judge whether a loss grew out of bounds, or is worse than before training."""
    first, loss, local = base.metrics.get("loss"), line.metrics.get("loss"), line.train_loss
    limit = stopping.DIVERGED * max(1.0, first or 0.0)
    if loss is not None and not loss <= limit:
        return f"its held-out loss is {loss:.3g}, the base's {first:.3g}{_norm(base, line)}", 0.01
    if local is not None and not local <= limit:
        return f"the clients' local loss is {local:.3g}{_norm(base, line)}", 0.01
    if "reward" in base.metrics:
        # with a reward, the loss may rise together with the reward
        return None
    if loss is not None and first is not None:
        return _judge_held_out(first, loss, base, line, guess)
    # without held-out data the only evidence is the clients' own loss, which is noisy
    if local is None or guess is None or local < 1.5 * guess or _size(growth(base, line)) < GROWN:
        return None
    return (
        f"the clients' local loss is {local:.3g}, a guess's {guess:.3g}{_norm(base, line)}",
        0.1,
    )


def _judge_held_out(
    first: float, loss: float, base: RoundLine, line: RoundLine, guess: float | None
) -> tuple[str, float] | None:
    """Judge whether the held-out loss is worse than before training, or worse than a guess's."""
    local, grown = line.train_loss, _size(growth(base, line))
    # if the training loss falls while the held-out loss rises, the clients overfit or their data
    # differs. That is no divergence, unless the weights have grown
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
    """Return the absolute value of a change; 0 if it is not known."""
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

    None if it is not known, for example to a coordinator without the model.
    """
    if not base.weights_norm or line.weights_norm is None:
        return None
    return line.weights_norm / base.weights_norm - 1


def learns_its_own(base: RoundLine, line: RoundLine) -> bool:
    """Return whether the clients' own loss has fallen and the weights are sound, so that the rate
    is not at fault if the held-out loss stands still.
    """
    first, local = base.metrics.get("loss"), line.train_loss
    if first is None or local is None:
        return False
    return local < LEARNS * first and _size(growth(base, line)) < GROWN


def has_moved_far(base: RoundLine, line: RoundLine) -> bool:
    """Return whether the loss stands still although the rate is not too small."""
    grown, first = growth(base, line), base.metrics.get("loss")
    if grown is not None and not abs(grown) < MOVED:
        return True
    local = line.train_loss
    return None not in (first, local) and not float(local or 0) < 2 * float(first or 0)


def advise(rate: tuple[str, float] | None, factor: float) -> str:
    """Return advice on which learning rate to try next.

    Args:
        rate: the recipe key of the learning rate, and its value; None: there is none.
        factor: the factor by which to multiply it.
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
