"""What a party can check of a run that somebody else has coordinated, from the run's folder and its
own data.

    steps     every round's step is made again from the answers on record, as the coordinator makes
    it
    answers   in sampled rounds a client's own answer is computed again, at the weights of that
    round, which are
              replayed, with that round's seeds and batches, and compared within the noise of float
              arithmetic

The first needs no data and is exact; the second tells whether what stands on record under a
client's name is what its data gives. An answer that was forged or swapped, with a step that fits
it, is found by the second; a step that does not fit the answers by the first.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import FedseedError, MessageError, NonFiniteError
from fedseed.federation.bounds import Bounds
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.hosted import Hosted
from fedseed.federation.messages import Message, MessageKind
from fedseed.federation.worker import Worker
from fedseed.methods import Method
from fedseed.methods.ferret import Coefficients
from fedseed.methods.payload import About, Payload, codecs
from fedseed.methods.zeroth import Projection
from fedseed.orbit import Orbit
from fedseed.randomness import Domain
from fedseed.randomness.stream import sample
from fedseed.runs.answers import Answers, unverifiable
from fedseed.runs.spec import RunSpec
from fedseed.training.client import LocalClient

UNIT = 2.0**-24  # float32's unit of rounding
LOSS_NOISE = 64  # units that a mean loss may be off by, in proportion to max(1, loss)
# that a coefficient after local training may be off by, in proportion to its block's
TRAINED_NOISE = 2.0**-5
# the same of a step that is made again: another processor adds up a robust rule's products
# otherwise
STEP_NOISE = 1e-5


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
    """What was found."""

    steps: int  # of the log
    unlike: list[int]  # the rounds whose steps do not follow from the answers on record
    missing: list[int]  # those without answers on record
    checked: list[Checked]
    digest: str  # of the weights after the last step
    record: str  # names log and answers: whoever has verified the same has the same

    @property
    def forged(self) -> bool:
        """Returns whether anything is not as it should be."""
        return bool(self.unlike) or any(one.verdict == "forged" for one in self.checked)


def verify(
    orbit: Orbit,
    answers: Answers,
    spec: RunSpec,
    hosted: Hosted,
    most: int | None,
    seed: int,
    progress: Callable[[int], None] = lambda number: None,
) -> Verified:
    """Make the steps again, and sampled answers of the hosted clients.

    Args:
        orbit: the run's.
        answers: what is on record.
        spec: what the run was, with its clients per round.
        hosted: the model at its base, and the clients' own examples.
        most: how many answers of each client are sampled; None: all.
        seed: draws them.
        progress: told the number of each round that is reached.

    Raises:
        FedseedError: it can't be verified; says why.
    """
    worker = hosted.worker
    if problem := unverifiable(orbit.header.method, spec.secure_sums is not None) or _coarse(
        worker
    ):
        raise FedseedError(f"verify: {problem}")
    if differences := hosted.header.differences(orbit.header) or (
        ["compacted"] if orbit.header.first > 1 else []
    ):
        raise FedseedError(
            f"the log is of another run than recipe and base make it here: {'; '.join(differences)}"
        )
    if unknown := [name for name in hosted.items if name not in answers.names]:
        raise FedseedError(
            f"no client {unknown[0]} has answered: the record has {', '.join(answers.names)}"
        )
    wanted: dict[int, list[str]] = {}
    for name in hosted.items:
        number = answers.names.index(name)
        theirs = [
            line.round
            for line in answers.lines.values()
            if number in line.answers and line.round <= orbit.last
        ]
        picked = sample(
            seed, Domain.SAMPLING, len(theirs), min(len(theirs), most or len(theirs)), number
        )
        for at in picked:
            wanted.setdefault(theirs[at], []).append(name)
    plans, unlike, missing = _retraced(orbit, answers, spec, wanted)
    checked, at = [], 0
    for number, names in sorted(wanted.items()):
        worker.catch_up(orbit.records[at : number - 1])
        at = number - 1
        progress(number)
        for name in names:
            client = answers.names.index(name)
            plan = next(message for message, clients in plans[number].items() if client in clients)
            about = plan, client, hosted.items[name], answers.lines[number].answers[client]
            checked.append(Checked(number, name, *_computed_again(worker, *about)))
    worker.catch_up(orbit.records[at:])
    record = blake2b(orbit.end + answers.digest, digest_size=16).hexdigest()
    return Verified(orbit.last, unlike, missing, checked, worker.space.digest(), record)


def _retraced(
    orbit: Orbit, answers: Answers, spec: RunSpec, wanted: Collection[int]
) -> tuple[dict[int, dict[bytes, list[int]]], list[int], list[int]]:
    """Returns the wanted rounds' plans, by their clients; the rounds with another step.

    Those without a record.
    """
    header, method, count = orbit.header, orbit.header.method, len(answers.names)
    settings = (
        header.layout,
        header.seed,
        [0] * count,
        spec.per_round or count,
        spec.aggregation,
        spec.bounds,
    )
    coordinator = Coordinator(method, *settings)
    # whose answer was refused is not on record
    coordinator.bounds = Bounds(proportion="off", claims="off")
    plans, unlike, missing = {}, [], []
    for step in orbit.steps():
        line, before = answers.lines.get(step.round), coordinator.state
        if line is None:
            missing.append(step.round)
            coordinator.catch_up([step.payload])
            continue
        coordinator.open(step.round, alive=line.asked)
        if step.round in wanted:
            plans[step.round] = coordinator.plans()
        try:
            for client, (coordinator.examples[client], update) in line.answers.items():
                message = Message(MessageKind.UPDATE, method.code, step.round, client, update)
                coordinator.receive(message.encode(), client)
        except MessageError:
            unlike.append(step.round)  # no coordinator takes such an answer
        made = Message.decode(coordinator.close()).payload
        if made != step.payload:
            theirs = method.decode_step(before, step.payload)
            a, b = (
                np.concatenate([np.zeros(0), *_arrays(one)])
                for one in (method.decode_step(before, made), theirs)
            )
            alike = len(a) == len(b) and bool(
                (np.abs(a - b) <= STEP_NOISE * np.abs(a).max(initial=0.0)).all()
            )
            if not alike and step.round not in unlike:
                unlike.append(step.round)
            coordinator.state = method.advance(before, theirs)
    return plans, unlike, missing


def _arrays(value: Any) -> Iterator[NDArray[np.float64]]:
    """Returns all numbers of a payload, field by field."""
    if isinstance(value, Payload):
        value = tuple(getattr(value, name) for name, _ in codecs(type(value)))
    if isinstance(value, tuple):
        for part in value:
            yield from _arrays(part)
    elif value is not None:
        yield np.asarray(value, dtype=np.float64).ravel()


def _coarse(worker: Worker) -> str | None:
    """Returns why float noise hides what is to be compared; None: it does not."""
    dtypes = {entry.dtype for entry in worker.space.layout.tensors} - {"float32"}
    method, training = worker.method, getattr(worker.method, "training", None)
    if dtypes or getattr(method, "autocast", None) or getattr(training, "autocast", None):
        return (
            "losses of 16-bit arithmetic: another processor's differ by as much as a scalar "
            "is; float32 is needed"
        )
    return None


class _Watched(LocalClient):
    """A client that measures, and goes on from the scalars on record, if any: float noise does not
    add up.
    """

    def __init__(self, said: Sequence[float], *about: Any) -> None:
        super().__init__(*about)
        self.found: list[Any] = []  # what it has measured
        self._said = iter(said)

    def estimates(self, *about: Any, **more: Any) -> list[Any]:
        """Keeps the estimates along some directions; returns those on record."""
        found = super().estimates(*about, **more)
        self.found += found
        return [
            Projection(next(self._said, one.rho), one.loss) if one.usable else one for one in found
        ]


def _computed_again(
    worker: Worker, plan: bytes, client: int, items: Sequence[Any], kept: tuple[int, bytes]
) -> Any:
    """Returns what `Checked` has of one answer.

    `kept`: on record, how many examples it claims, and its update.
    """
    method, message = worker.method, Message.decode(plan)
    about = About(method, worker.state, "update", message.round)
    if method.weighting == "examples" and kept[0] != len(items):
        return kept[0], len(items), 0, "forged", "how many examples it has"
    try:
        logged = method.decode_update(worker.state, message.round, kept[1])
    except MessageError as error:
        return 0, 0, 0, "forged", str(error)
    said = [] if isinstance(logged, Coefficients) else logged.numbers(about).tolist()
    one = _Watched(said, worker.space, worker.objective, items, worker.seed, message.round, client)
    try:
        update = method.train(worker.state, method.decode_plan(worker.state, message.payload), one)
    except NonFiniteError as error:
        return 0, 0, 0, "forged", str(error)
    finally:
        one.put_back()
    if isinstance(update, Coefficients):
        return _coefficients(update, logged)
    return _estimates(method, about, one.found, update, logged)


def _estimates(method: Method, about: About, found: Sequence[Any], update: Any, logged: Any) -> Any:
    """Compares answers of zeroth order: what is sent must be what estimates with noisy losses can
    be.
    """
    for name, _ in codecs(type(update))[:-1]:
        if not np.array_equal(getattr(update, name), getattr(logged, name)):
            return 0, 0, 0, "forged", "other directions, or another number of them"
    said = logged.numbers(about)
    measured = [one for one in found if one.usable or len(found) == len(said)]
    if len(said) != len(measured):
        return len(said), len(measured), 0, "forged", "how many scalars there are"
    exact, signs = np.array([one.rho for one in measured], dtype=np.float64), said.dtype == np.int8
    loss = max([1.0, *(abs(one.loss) for one in measured if one.usable)])
    allowed = LOSS_NOISE * UNIT * loss / method.scale  # type: ignore[attr-defined]
    low, high = (
        type(update)
        .decode(update.with_numbers(exact + off, about).encode(), about)
        .numbers(about)
        .astype(np.float64)
        for off in (-allowed, allowed)
    )
    apart, unlike = (
        np.maximum(low - said, said - high),
        np.abs(said - (np.sign(exact) if signs else exact)),
    )
    at = int(np.argmax(apart if (apart > 0).any() else unlike))
    verdict = "forged" if apart[at] > 0 else "open" if signs and unlike[at] else "right"
    return float(said[at]), float(exact[at]), allowed, verdict, ""


def _coefficients(update: Coefficients, logged: Coefficients) -> Any:
    """Compares answers of local training, block by block, in proportion to the block's
    coefficients.
    """
    # how many there are may hang on a norm, rounded down: one more or less is noise, and divides
    # all of them
    worst = (-1.0, 0.0, 0.0, 0.0)
    if update.seed != logged.seed:
        return logged.seed, update.seed, 0, "forged", "other directions"
    for own, said in zip(update.gammas, logged.gammas, strict=True):
        if abs(len(own) - len(said)) > 1:
            return len(said), len(own), 1, "forged", "how many coefficients a block has"
        n = min(len(own), len(said))
        scaled = said[:n].astype(np.float64) * (len(said) / len(own))
        allowed = TRAINED_NOISE * float(np.sqrt(np.square(own, dtype=np.float64).mean()))
        apart = np.abs(scaled - own[:n])
        at = int(apart.argmax())
        worst = max(worst, (float(apart[at]) - allowed, float(scaled[at]), float(own[at]), allowed))
    return *worst[1:], "forged" if worst[0] > 0 else "right", ""
