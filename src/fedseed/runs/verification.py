"""A party's checks of a run that somebody else coordinated, from the run's folder and its own data.

    steps     every round's step is made again from the answers on record, as the coordinator made
              it (`retracing`)
    answers   in sampled rounds a client's own answer is computed again, at the weights of that
              round, which are replayed, with that round's seeds and batches, and compared within
              the noise of float arithmetic

The first needs no data; the second checks that the answer on record under a client's name is
what its data gives. An answer that was forged or swapped, with a step that fits it, is found by the
second; a step that does not fit the answers by the first.
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

UNIT = 2.0**-24  # float32's unit of rounding
# units that a mean loss may be off by, in proportion to max(1, loss)
LOSS_NOISE = 64
# that a coefficient after local training may be off by, in proportion to its block's
TRAINED_NOISE = 2.0**-5
# allocations of which rounding may give a block one direction more or less
ROUNDED_ALLOCATIONS = ("norm", "sqrt", "previous")


@dataclass(frozen=True)
class Checked:
    """A client's answer of a round, computed again: where it is farthest from the one on record."""

    round: int
    client: str
    logged: float
    computed: float
    allowed: float  # how far they may be apart
    # "open": a sign of what is within the noise of zero
    verdict: Literal["right", "open", "forged"]
    why: str = ""


@dataclass
class Verified:
    """The result of the checks."""

    steps: int  # of the log
    # the rounds whose steps do not follow from the answers on record
    unlike: list[int]
    missing: list[int]  # those without answers on record
    checked: list[Checked]
    digest: str  # of the weights after the last step
    # a digest of log and answers, by which parties see that they verified the same run
    record: str
    # by client of those that were checked: the rounds in which it was asked, and nothing of it is
    # on record
    silent: dict[str, list[int]] = field(default_factory=dict)

    @property
    def forged(self) -> bool:
        """Return whether anything is not as it should be."""
        return bool(self.unlike) or any(one.verdict == "forged" for one in self.checked)

    @property
    def proven(self) -> bool:
        """Return whether nothing was forged, and every step could be judged."""
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
    """Make the steps again, and sampled answers of the hosted clients.

    Args:
        orbit: the run's.
        answers: what is on record.
        spec: what the run was, with its clients per round.
        hosted: the model at its base, and the clients' own examples.
        most_answers: how many answers of each client are sampled; None: all.
        seed: draws them.
        progress: told the number of each round that is reached.

    Raises:
        FedseedError: it can't be verified; the text has the reason.
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
    """Raise FedseedError with the reason if a run can't be verified with what is at hand."""
    method = orbit.header.method
    problem = find_obstacle(method, spec.secure_sums is not None) or _coarse(hosted.worker)
    if problem:
        raise FedseedError(f"verify: {problem}")
    differences = hosted.header.differences(orbit.header)
    if orbit.header.first > 1 and not differences:
        differences = ["compacted"]
    if differences:
        raise FedseedError(
            f"the log is of another run than recipe and base make it here: {'; '.join(differences)}"
        )
    unknown = [name for name in hosted.items if name not in answers.names]
    if unknown:
        raise FedseedError(
            f"no client {unknown[0]} has answered: the record has {', '.join(answers.names)}"
        )
    # a run that was killed may have written down answers of a round that has no step yet
    last = max(answers.lines, default=0)
    if last > orbit.last + 1:
        raise FedseedError(
            f"the log ends at step {orbit.last}, and the record has answers of round {last}: steps "
            "were cut off; ask for the whole log"
        )


def _sampled_rounds(
    orbit: Orbit, answers: AnswerRecord, name: str, most_answers: int | None, seed: int
) -> list[int]:
    """Return the rounds whose answer of a client is computed again."""
    client = answers.names.index(name)
    rounds = [
        line.round
        for line in answers.lines.values()
        if client in line.answers and line.round <= orbit.last
    ]
    count = min(len(rounds), most_answers or len(rounds))
    return [rounds[index] for index in sample(seed, Domain.SAMPLING, len(rounds), count, client)]


def _silent_rounds(orbit: Orbit, answers: AnswerRecord, name: str) -> list[int]:
    """Return the rounds in which a client was asked and has no answer on record."""
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
            "losses of 16-bit arithmetic: another processor's differ by as much as a scalar "
            "is; float32 is needed"
        )
    return None


class _Result(NamedTuple):
    """The part of `Checked` about one answer, besides round and client."""

    logged: float
    computed: float
    allowed: float
    verdict: Literal["right", "open", "forged"]
    why: str = ""


def _forged(reason: str, logged: float = 0, computed: float = 0) -> _Result:
    """Return the result for an answer that no client can have sent."""
    return _Result(logged, computed, 0, "forged", reason)


class _Watched(LocalClient):
    """A client that measures, and goes on from what is on record, so that float noise does not add
    up.

    Args:
        scalars: the estimates on record, in their order.
        lengths: how many coefficients each block has on record.
        about: what `LocalClient` takes.
    """

    def __init__(self, scalars: Sequence[float], lengths: Sequence[int], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.measured: list[Projection] = []
        self._scalars = iter(scalars)
        self._lengths = lengths

    def estimates(self, *arguments: Any, **options: Any) -> list[Any]:
        """Keep the estimates along some directions; return those on record."""
        measured = super().estimates(*arguments, **options)
        self.measured += measured
        return [
            Projection(next(self._scalars, one.rho), one.loss) if one.usable else one
            for one in measured
        ]

    def project_change(self, basis: Any, counts: Sequence[int]) -> list[Any]:
        """Project on as many directions as are on record, where rounding may have decided."""
        near = len(counts) == len(self._lengths) and all(
            length >= 1 and abs(count - length) <= 1
            for count, length in zip(counts, self._lengths, strict=True)
        )
        return super().project_change(basis, self._lengths if near else counts)


def _compute_again(
    worker: Worker, plan: bytes, client: int, items: Sequence[Any], on_record: tuple[int, bytes]
) -> _Result:
    """Compute a client's answer again and compare it with the one on record.

    Args:
        worker: has the weights of the round's beginning.
        plan: the message that asked the client.
        client: its number.
        items: its examples.
        on_record: how many examples it claims to have, and its update.
    """
    method, message = worker.method, Message.decode(plan)
    context = DecodeContext(method, worker.state, "update", message.round)
    examples, payload = on_record
    if method.weighting == "examples" and examples != len(items):
        return _forged("how many examples it has", examples, len(items))
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
    """Compare answers of zeroth order: what is sent must be what estimates with noisy losses can
    be.

    Raises MessageError: no client can have measured these.

    Args:
        method: the run's.
        context: what the update is read against.
        estimates: what was measured.
        update: the answer computed again.
        logged: the one on record.
    """
    for name, _ in field_codecs(type(update))[:-1]:
        if not np.array_equal(getattr(update, name), getattr(logged, name)):
            return _forged("other directions, or another number of them")
    recorded_numbers = logged.numbers(context)
    measured = [one for one in estimates if one.usable or len(estimates) == len(recorded_numbers)]
    if len(recorded_numbers) != len(measured):
        return _forged("how many scalars there are", len(recorded_numbers), len(measured))
    exact, signs = (
        np.array([one.rho for one in measured], dtype=np.float64),
        recorded_numbers.dtype == np.int8,
    )
    # each by its own losses: a step to where losses are huge allows nothing to those before it
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
    """Compare answers of local training, block by block, in proportion to the block's numbers.

    Args:
        state: the one before the round.
        update: the answer computed again: `Coefficients`, or `FactorEntries`.
        logged: the one on record, of the same kind.
    """
    if update.seed != logged.seed:
        return _forged("other directions", logged.seed, update.seed)
    worst, excess = _Result(0, 0, 0, "right"), -np.inf
    blocks = zip(_blocks(state, update), _blocks(state, logged), strict=True)
    for computed, recorded in blocks:
        if len(computed) != len(recorded):
            return _forged("how many coefficients a block has", len(recorded), len(computed))
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
    """Return an update's numbers by block: Ferret's blocks, or a matrix' entries of B."""
    if isinstance(update, Coefficients):
        return update.gammas
    assert isinstance(state, SubspaceState)
    sizes = state.subspace(update.seed).factor_sizes(state.layout)
    return np.split(update.values(state), np.cumsum(sizes)[:-1])
