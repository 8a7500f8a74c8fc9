"""Recomputes the steps of a run from the recorded answers, as its coordinator did, without a model.

A recomputed step must match the one in the log:

    whole numbers, signs, counts    equal
    weighted means                  equal, bit for bit: every processor adds them up in one order
    robust rules                    within the rounding of each entry's own terms. Their sums are
                                    added up in an order that the processor's library chooses
                                    (`fedseed.aggregation.robust`)

For a robust rule the step is recomputed twice more, with each entry one rounding error lower and
one higher. Each entry in the log must lie between the two, so that the tolerance of a large entry
does not extend to others. If rounding alone decides between two choices of a rule (two vectors with
the same Krum score), both choices are tried.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedseed.aggregation.base import Noise
from fedseed.errors import FedseedError, MessageError
from fedseed.federation.coordinator.bounds import Bounds
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.messages import Message, MessageKind
from fedseed.methods import Method
from fedseed.methods.base import Answers
from fedseed.methods.payload import Payload, field_codecs
from fedseed.orbit import Orbit
from fedseed.runs.answers import AnswerRecord, Line
from fedseed.runs.spec import RunSpec

# how far rounding may move an entry that a robust rule makes, as a share of its terms' magnitudes:
# a quarter of float32's last place. Iterated rules magnify the rounding of double precision: by
# experiment to 4e-9 in 3,600 rounds of random and nearly equal vectors
RULE_ROUNDING = 2.0**-26
# the same for a rule that continues from its last outcome. The coordinator keeps that in float32,
# so an outcome that was rounded the other way is off by a whole last place
REMEMBERED_ROUNDING = 2.0**-22
# how many choices of a rule are tried: if four are equally good, one of them is missed once in 10^8
TRIES = 64


class Retraced(NamedTuple):
    """The outcome of recomputing a run's steps."""

    # of each wanted round: its plans, each with the clients that got it
    plans: dict[int, dict[bytes, list[int]]]
    # the rounds whose steps do not follow from the recorded answers
    unlike: list[int]
    missing: list[int]  # the rounds without recorded answers


def retrace(
    orbit: Orbit, answers: AnswerRecord, spec: RunSpec, rounds_with_plans: Collection[int] = ()
) -> Retraced:
    """Recompute every step of a run.

    Args:
        orbit: the run's log.
        answers: the recorded answers.
        spec: the run's specification.
        rounds_with_plans: the rounds whose plans are needed.

    Raises:
        FedseedError: a step can't be read.
    """
    header, method, count = orbit.header, orbit.header.method, len(answers.names)
    coordinator = Coordinator(
        method,
        header.layout,
        header.seed,
        [0] * count,
        spec.per_round or count,
        spec.aggregation,
        spec.bounds,
    )
    # the record leaves out refused answers
    coordinator.bounds = Bounds(proportion="off", claims="off")
    retraced = Retraced({}, [], [])
    for step in orbit.steps():
        line = answers.lines.get(step.round)
        try:
            if line is None:
                retraced.missing.append(step.round)
                coordinator.catch_up([step.payload])
            elif not _follows(
                coordinator, line, step.payload, retraced, step.round in rounds_with_plans
            ):
                retraced.unlike.append(step.round)
        except MessageError as error:
            raise FedseedError(f"step {step.round} of the log can't be read: {error}") from error
    return retraced


def _follows(
    coordinator: Coordinator, line: Line, recorded: bytes, retraced: Retraced, needs_plans: bool
) -> bool:
    """Return whether a round's step follows from the recorded answers, and advance the coordinator
    by it.

    Raises MessageError if the step can't be read.
    """
    method, earlier_state = coordinator.method, coordinator.state
    recorded_step = method.decode_step(earlier_state, recorded)
    clients = coordinator.open(line.round, alive=line.asked)
    if needs_plans:
        retraced.plans[line.round] = coordinator.plans()
    right = clients == line.asked and line.complete
    try:
        for client, (examples, update) in line.answers.items():
            coordinator.examples[client] = examples
            message = Message(MessageKind.UPDATE, method.code, line.round, client, update)
            coordinator.receive(message.encode(), client)
    except MessageError:
        right = False  # a coordinator would refuse such an answer
    if coordinator.screen():
        # an update beyond all bounds, which a coordinator would not count
        right = False
    combined = coordinator.weighted_answers()
    step = coordinator.close().payload
    if step != recorded:
        coordinator.state = method.advance(earlier_state, recorded_step)
        if coordinator.untaken is not None or not combined:
            right = right and _lies_within(recorded_step, [method.decode_step(earlier_state, step)])
        else:
            right = right and is_within_rounding(
                method, earlier_state, combined, recorded_step, step
            )
    return right


def is_within_rounding(
    method: Method, state: Any, answers: Answers, recorded: Payload, step: bytes
) -> bool:
    """Return whether a step could be what another processor computed from a round's answers.

    Args:
        method: the run's method.
        state: the state before the step.
        answers: the round's answers, with their weights.
        recorded: the step in the log.
        step: the step as this processor computes it.
    """
    rule = answers.rule
    if rule.linear:  # every processor adds up in the same order
        return _lies_within(recorded, [method.decode_step(state, step)])
    share = RULE_ROUNDING
    if rule.remembers:
        share = REMEMBERED_ROUNDING
    for seed in (None, *range(TRIES if rule.geometric else 0)):
        bounds = []
        for offset in (-share, share):
            past = replace(answers.past, next=[], noise=Noise(offset, seed))
            moved_step = method.aggregate(state, replace(answers, past=past))
            bounds.append(method.decode_step(state, moved_step.encode()))
        if _lies_within(recorded, bounds):
            return True
    return False


def _lies_within(recorded: Any, bounds: Sequence[Any]) -> bool:
    """Return whether every number of a step lies between the numbers of other steps.

    Args:
        recorded: a payload, or a part of one.
        bounds: the same part of one or two other steps. Arrays must lie between them, or equal the
            only one; everything else must equal all of them.
    """
    if isinstance(recorded, Payload):
        if any(type(one) is not type(recorded) for one in bounds):
            return False
        return all(
            _lies_within(getattr(recorded, name), [getattr(one, name) for one in bounds])
            for name, _ in field_codecs(type(recorded))
        )
    if isinstance(recorded, tuple):
        if any(len(one) != len(recorded) for one in bounds):
            return False
        return all(map(_lies_within, recorded, zip(*bounds, strict=True)))
    if not isinstance(recorded, np.ndarray):
        return all(one == recorded for one in bounds)
    if any(one.shape != recorded.shape for one in bounds):
        return False
    lowest, highest = np.minimum.reduce(bounds), np.maximum.reduce(bounds)
    return bool(((lowest <= recorded) & (recorded <= highest)).all())
