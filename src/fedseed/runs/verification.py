"""Lets a party check a run that somebody else coordinated, from the run's folder and its own data.

    steps     every round's step is recomputed from the recorded answers, as the coordinator did
              (`retracing`)
    answers   in sampled rounds a client's own answer is recomputed, with that round's seeds and
              batches, at that round's weights, which are replayed; it must match within the noise
              of float arithmetic

The first check needs no data, and finds a step that does not fit the answers. The second check
finds a forged or swapped answer, even if the step fits it: the answer recorded under a client's
name must be what its data gives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import FedseedError, MessageError, NonFiniteError
from fedseed.federation.client.state import Hosted
from fedseed.federation.client.worker import Worker
from fedseed.federation.messages import Message
from fedseed.methods import Method
from fedseed.methods.ferret import Coefficients
from fedseed.methods.payload import DecodeContext, Floats, State, field_codecs
from fedseed.methods.subspace import FactorEntries, SubspaceState
from fedseed.methods.zeroth import Projection
from fedseed.orbit import Orbit
from fedseed.randomness import Domain
from fedseed.randomness.stream import sample
from fedseed.runs.answers import AnswerRecord, find_obstacle
from fedseed.runs.retracing import retrace
from fedseed.runs.spec import RunSpec
from fedseed.training.client import LocalClient

UNIT = 2.0**-24  # float32's rounding unit
# how many such units a mean loss may be off, in proportion to max(1, loss)
LOSS_NOISE = 64
# how far a coefficient of local training may be off, in proportion to the root mean square of its
# block
TRAINED_NOISE = 2.0**-5
# allocations in which rounding may give a block one direction more or less
ROUNDED_ALLOCATIONS = ("norm", "sqrt", "previous")


@dataclass(frozen=True)
class Checked:
    """The check of one client's answer in a round, at the number where it differs most from the
    recorded one.
    """

    round: int
    client: str
    logged: float
    computed: float
    allowed: float  # the largest allowed difference
    # "open": the number is a sign, and the recomputed value is within noise of zero
    verdict: Literal["right", "open", "forged"]
    why: str = ""


@dataclass
class Verified:
    """The result of the checks."""

    steps: int  # how many steps the log has
    # the rounds whose steps do not follow from the recorded answers
    unlike: list[int]
    missing: list[int]  # the rounds without recorded answers
    checked: list[Checked]
    digest: str  # digest of the weights after the last step
    # a digest of log and answers; parties compare it to see that they verified the same run
    record: str
    # by checked client: the rounds in which it was asked but no answer is recorded
    silent: dict[str, list[int]] = field(default_factory=dict)

    @property
    def forged(self) -> bool:
        """Return whether a step or an answer is not what it should be."""
        return bool(self.unlike) or any(one.verdict == "forged" for one in self.checked)

    @property
    def proven(self) -> bool:
        """Return whether nothing was forged and every step could be checked."""
        return not self.forged and not self.missing


def verify(
    orbit: Orbit,
    answers: AnswerRecord,
    spec: RunSpec,
    hosted: Hosted,
    most_answers: int | None,
    seed: int,
    progress: Callable[[int], None] = lambda number: None,
) -> Verified:
    """Recompute all steps, and sampled answers of the hosted clients, and compare them with the
    record.

    Args:
        orbit: the run's orbit.
        answers: the recorded answers.
        spec: the run's specification, with its clients per round.
        hosted: the base model and the clients' own examples.
        most_answers: how many answers of each client are sampled; None: all.
        seed: seed of the sampling.
        progress: called with the number of each round that has sampled answers.

    Raises:
        FedseedError: the run can't be verified; the message has the reason.
    """
    worker = hosted.worker
    _check_verifiable(orbit, answers, spec, hosted)
    names_by_round: dict[int, list[str]] = {}
    for name in hosted.items:
        for number in _sampled_rounds(orbit, answers, name, most_answers, seed):
            names_by_round.setdefault(number, []).append(name)
    retraced = retrace(orbit, answers, spec, names_by_round)
    checked, applied = [], 0
    for number, names in sorted(names_by_round.items()):
        worker.catch_up(orbit.records[applied : number - 1])
        applied = number - 1
        progress(number)
        for name in names:
            client = answers.names.index(name)
            plans = retraced.plans[number].items()
            plan = next((message for message, clients in plans if client in clients), None)
            if plan is None:
                result = _forged("the round had no plan for this client")
            else:
                on_record = answers.lines[number].answers[client]
                result = _compute_again(worker, plan, client, hosted.items[name], on_record)
            checked.append(Checked(number, name, *result))
    worker.catch_up(orbit.records[applied:])
    record = blake2b(orbit.end + answers.digest, digest_size=16).hexdigest()
    silent = {name: _silent_rounds(orbit, answers, name) for name in hosted.items}
    digest = worker.space.digest()
    return Verified(orbit.last, retraced.unlike, retraced.missing, checked, digest, record, silent)


def _check_verifiable(orbit: Orbit, answers: AnswerRecord, spec: RunSpec, hosted: Hosted) -> None:
    """Raise FedseedError with the reason if the run can't be verified from these files and data."""
    method = orbit.header.method
    problem = find_obstacle(method, spec.secure_sums is not None) or _coarse(hosted.worker)
    if problem:
        raise FedseedError(f"verify: {problem}")
    differences = hosted.header.differences(orbit.header)
    if orbit.header.first > 1 and not differences:
        differences = ["compacted"]
    if differences:
        raise FedseedError(
            "the log is not of the run that this recipe and base describe: "
            f"{'; '.join(differences)}"
        )
    unknown = [name for name in hosted.items if name not in answers.names]
    if unknown:
        raise FedseedError(
            f"client {unknown[0]} is not in the record of answers, which has "
            f"{', '.join(answers.names)}"
        )
    # a run that was killed may have recorded answers of a round that has no step yet
    last = max(answers.lines, default=0)
    if last > orbit.last + 1:
        raise FedseedError(
            f"the log ends at step {orbit.last}, but the record has answers of round {last}: "
            "steps were cut off; ask for the complete log"
        )


def _sampled_rounds(
    orbit: Orbit, answers: AnswerRecord, name: str, most_answers: int | None, seed: int
) -> list[int]:
    """Sample the rounds in which a client's answer is recomputed."""
    client = answers.names.index(name)
    rounds = [
        line.round
        for line in answers.lines.values()
        if client in line.answers and line.round <= orbit.last
    ]
    count = min(len(rounds), most_answers or len(rounds))
    return [rounds[index] for index in sample(seed, Domain.SAMPLING, len(rounds), count, client)]


def _silent_rounds(orbit: Orbit, answers: AnswerRecord, name: str) -> list[int]:
    """Return the rounds in which a client was asked but no answer is recorded."""
    client = answers.names.index(name)
    return [
        line.round
        for line in answers.lines.values()
        if client in line.asked and client not in line.answers and line.round <= orbit.last
    ]


def _coarse(worker: Worker) -> str | None:
    """Return the reason why float noise hides the values to compare; None if it does not."""
    dtypes = {entry.dtype for entry in worker.space.layout.tensors} - {"float32"}
    method, training = worker.method, getattr(worker.method, "training", None)
    if dtypes or getattr(method, "autocast", None) or getattr(training, "autocast", None):
        return (
            "losses are computed in 16 bits, where processors differ by as much as a scalar's "
            "size; verification needs float32"
        )
    return None


class _Result(NamedTuple):
    """The fields of `Checked` without round and client."""

    logged: float
    computed: float
    allowed: float
    verdict: Literal["right", "open", "forged"]
    why: str = ""


def _forged(reason: str, logged: float = 0, computed: float = 0) -> _Result:
    """Return the result for an answer that can't be genuine."""
    return _Result(logged, computed, 0, "forged", reason)


class _Watched(LocalClient):
    """A client that measures but continues from the recorded values, so that float noise does not
    add up.

    Args:
        scalars: the recorded estimates, in order.
        lengths: how many coefficients each block has in the record.
        about: the arguments of `LocalClient`.
    """

    def __init__(self, scalars: Sequence[float], lengths: Sequence[int], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.measured: list[Projection] = []
        self._scalars = iter(scalars)
        self._lengths = lengths

    def estimates(self, *arguments: Any, **options: Any) -> list[Any]:
        """Measure and keep the estimates along some directions; return the recorded ones."""
        measured = super().estimates(*arguments, **options)
        self.measured += measured
        return [
            Projection(next(self._scalars, one.rho), one.loss) if one.usable else one
            for one in measured
        ]

    def project_change(self, basis: Any, counts: Sequence[int]) -> list[Any]:
        """Project onto the recorded number of directions, if rounding can explain the
        difference.
        """
        near = len(counts) == len(self._lengths) and all(
            length >= 1 and abs(count - length) <= 1
            for count, length in zip(counts, self._lengths, strict=True)
        )
        return super().project_change(basis, self._lengths if near else counts)


def _compute_again(
    worker: Worker, plan: bytes, client: int, items: Sequence[Any], on_record: tuple[int, bytes]
) -> _Result:
    """Recompute a client's answer and compare it with the recorded one.

    Args:
        worker: the worker, with the weights from the start of the round.
        plan: the message with the client's plan.
        client: the client's number.
        items: the client's examples.
        on_record: the number of examples that it claims, and its update.
    """
    method, message = worker.method, Message.decode(plan)
    context = DecodeContext(method, worker.state, "update", message.round)
    examples, payload = on_record
    if method.weighting == "examples" and examples != len(items):
        return _forged("a different number of examples", examples, len(items))
    try:
        logged = method.decode_update(worker.state, message.round, payload)
    except MessageError as error:
        return _forged(str(error))
    scalars, lengths = [], []
    if not isinstance(logged, Coefficients | FactorEntries):
        scalars = logged.numbers(context).tolist()
    elif (
        isinstance(logged, Coefficients)
        and getattr(method, "allocation", "") in ROUNDED_ALLOCATIONS
    ):
        lengths = [len(block) for block in logged.gammas]
    watched = _Watched(
        scalars,
        lengths,
        worker.space,
        worker.objective,
        items,
        worker.seed,
        message.round,
        client,
    )
    try:
        decoded_plan = method.decode_plan(worker.state, message.payload)
        update = method.train(worker.state, decoded_plan, watched)
        if isinstance(update, Coefficients | FactorEntries):
            return _compare_trained(worker.state, update, logged)
        return _compare_estimates(method, context, watched.measured, update, logged)
    except (NonFiniteError, MessageError) as error:
        return _forged(str(error))
    finally:
        watched.put_back()


def _compare_estimates(
    method: Method,
    context: DecodeContext,
    estimates: Sequence[Projection],
    update: Any,
    logged: Any,
) -> _Result:
    """Compare zeroth-order answers: the recorded one must be possible with losses within float
    noise.

    Raises MessageError if no client can have measured these numbers.

    Args:
        method: the run's method.
        context: what is needed to decode the update.
        estimates: the measured estimates.
        update: the recomputed answer.
        logged: the recorded answer.
    """
    for name, _ in field_codecs(type(update))[:-1]:
        if not np.array_equal(getattr(update, name), getattr(logged, name)):
            return _forged("different directions, or a different number of them")
    recorded_numbers = logged.numbers(context)
    measured = [one for one in estimates if one.usable or len(estimates) == len(recorded_numbers)]
    if len(recorded_numbers) != len(measured):
        return _forged("a different number of scalars", len(recorded_numbers), len(measured))
    exact, signs = (
        np.array([one.rho for one in measured], dtype=np.float64),
        recorded_numbers.dtype == np.int8,
    )
    # each tolerance depends on its own losses: a step to where losses are huge must not widen the
    # tolerance of earlier ones
    losses = np.array([abs(one.loss) if one.usable else 0.0 for one in measured])
    scale: float = method.scale  # type: ignore[attr-defined]
    allowed = LOSS_NOISE * UNIT * np.maximum(1.0, losses) / scale
    low, high = (
        type(update)
        .decode(update.with_numbers(exact + noise, context).encode(), context)
        .numbers(context)
        .astype(np.float64)
        for noise in (-allowed, allowed)
    )
    apart: NDArray[np.float64] = np.maximum(low - recorded_numbers, recorded_numbers - high)
    unlike = np.abs(recorded_numbers - (np.sign(exact) if signs else exact))
    farthest = int(np.argmax(apart if (apart > 0).any() else unlike))
    verdict: Literal["right", "open", "forged"] = "right"
    if apart[farthest] > 0:
        verdict = "forged"
    elif signs and unlike[farthest]:
        verdict = "open"
    numbers = (array[farthest].item() for array in (recorded_numbers, exact, allowed))
    logged_number, exact_number, allowed_number = map(float, numbers)
    return _Result(logged_number, exact_number, allowed_number, verdict)


def _compare_trained(state: State, update: Any, logged: Any) -> _Result:
    """Compare answers of local training block by block, with a tolerance in proportion to each
    block's root mean square.

    Args:
        state: the state before the round.
        update: the recomputed answer: `Coefficients` or `FactorEntries`.
        logged: the recorded answer, of the same kind.
    """
    if update.seed != logged.seed:
        return _forged("other directions", logged.seed, update.seed)
    worst, excess = _Result(0, 0, 0, "right"), -np.inf
    blocks = zip(_blocks(state, update), _blocks(state, logged), strict=True)
    for computed, recorded in blocks:
        if len(computed) != len(recorded):
            return _forged(
                "a different number of coefficients in a block", len(recorded), len(computed)
            )
        if not len(computed):
            continue
        allowed = TRAINED_NOISE * float(np.sqrt(np.square(computed, dtype=np.float64).mean()))
        difference = np.abs(recorded.astype(np.float64) - computed)
        farthest = int(difference.argmax())
        if difference[farthest] - allowed > excess:
            excess = float(difference[farthest]) - allowed
            verdict: Literal["right", "forged"] = "forged" if excess > 0 else "right"
            pair = float(recorded[farthest]), float(computed[farthest])
            worst = _Result(*pair, allowed, verdict)
    return worst


def _blocks(state: State, update: Coefficients | FactorEntries) -> Sequence[Floats]:
    """Return an update's numbers by block: Ferret's blocks, or each matrix's entries of B."""
    if isinstance(update, Coefficients):
        return update.gammas
    assert isinstance(state, SubspaceState)
    sizes = state.subspace(update.seed).factor_sizes(state.layout)
    return np.split(update.values(state), np.cumsum(sizes)[:-1])
