"""No forged log or record passes a verification, and no honest one fails it, of any method.

The slow tier tries 300 forgeries; FEDSEED_FORGERIES=1000 tries a thousand.
"""

import os
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import Federation, FedKSeed, FeedSign, Ferret, Subspace, ZOFedSGD
from fedseed.aggregation import (
    CentredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NormBound,
    TrimmedMean,
)
from fedseed.aggregation.base import Noise, Past
from fedseed.errors import FedseedError, MessageError
from fedseed.methods.base import Answer, Answers
from fedseed.methods.payload import DecodeContext, Payload, Small
from fedseed.methods.zofedsgd import Projections
from fedseed.objectives.losses import Supervised
from fedseed.orbit import NO_DIGEST, Orbit
from fedseed.orbit.file import write_orbit
from fedseed.orbit.record import pack_records
from fedseed.runs.answers import read_answers
from fedseed.runs.retracing import is_within_rounding
from fedseed.runs.verification import verify

QUICK = {"learning_rate": 0.02, "scale": 2e-3, "batch": 16}
TRAINED = {"basis": "hadamard", "training": {"learning_rate": 0.05, "steps": 2, "batch": 16}}
RUNS = {
    "feedsign": (FeedSign(**QUICK, votes_per_round=9), Mean()),
    "feedsign-median": (FeedSign(**QUICK, votes_per_round=9), Median()),
    "feedsign-krum": (FeedSign(**QUICK, votes_per_round=9), Krum()),
    "zo-own": (ZOFedSGD(**QUICK), Mean()),
    "zo-byte": (ZOFedSGD(**QUICK, seeds="shared", scalars="byte", population=4), TrimmedMean()),
    "zo-shared": (ZOFedSGD(**QUICK, seeds="shared", population=4), GeometricMedian()),
    "fedkseed": (FedKSeed(**QUICK, candidates=32, steps=3, importance=True), Mean()),
    "fedkseed-clipping": (
        FedKSeed(**QUICK, candidates=32, steps=3, weighting="equal"),
        CentredClipping(momentum=0.5, iterations=3),
    ),
    "ferret": (Ferret(directions=20, blocks="tensor", **TRAINED), Mean()),
    "ferret-shared": (
        Ferret(directions=20, blocks="tensor", seeds="shared", allocation="size", **TRAINED),
        MultiKrum(),
    ),
    "ferret-mixed": (
        Ferret(directions=20, blocks="tensor", seeds="shared", **TRAINED),
        NormBound(liars=1, before=["nearest-neighbours", "arc"]),
    ),
    "ferret-fixed": (
        Ferret(directions=20, blocks="tensor", seeds="fixed", **TRAINED),
        CentredClipping(momentum=0.9),
    ),
}
SUBSPACE = {
    "rank": 2,
    "up_bits": 32,
    "targets": "all",
    "training": {"optimizer": "sgd", "learning_rate": 0.05, "steps": 2, "batch": 16},
}
RUNS |= {
    "subspace": (Subspace(down_bits=32, **SUBSPACE), Mean()),
    "subspace-floats": (Subspace(down_bits=32, **SUBSPACE), Median()),
    "subspace-coded": (Subspace(refresh=0, **SUBSPACE), GeometricMedian()),
}
CLIENTS, PER_ROUND, ROUNDS = 5, 4, 4


def federation(name, **settings):
    method, rule = RUNS[name]
    generator = torch.Generator().manual_seed(1)
    teacher = torch.randn(20, 3, generator=generator)
    inputs = torch.randn(CLIENTS, 40, 20, generator=generator)
    data = [
        [(row, (row @ teacher).argmax()) for row in part[: 40 - 3 * number]]
        for number, part in enumerate(inputs)
    ]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    objective = Supervised(lambda out, y: cross_entropy(out, y, reduction="none"))
    settings = {"seed": 3, "evaluate_every": 1000, "joint": False, **settings}
    return Federation(
        model,
        data,
        method,
        objective,
        rounds=ROUNDS,
        per_round=PER_ROUND,
        aggregation=rule,
        **settings,
    )


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """The spec, the log and the answers of an honest run, by the name of its settings."""

    @cache
    def run(name):
        folder = tmp_path_factory.mktemp(name)
        simulation = federation(name, out=folder, answers=True)
        simulation.run()
        log, answers = Orbit.open(folder / "model.orbit"), read_answers(folder / "answers.jsonl")
        return simulation.spec, log, answers

    return run


def check(name, spec, log, answers):
    return verify(log, answers, spec, federation(name).hosted, None, 0)


class Forger:
    """Forges one thing in the log or in the record of an honest run.

    Args:
        honest: the run's spec, log and answers.
        rng: draws what is forged.
        folder: where a forged log can be written.
    """

    def __init__(self, honest, rng, folder):
        self.spec, self.log, self.answers = honest
        self.method, self.rule, self.rng = self.log.header.method, self.spec.aggregation, rng
        self.file = folder / "forged.orbit"
        self.states = [self.method.start(self.log.header.layout, self.log.header.seed)]
        for record in self.log.records:
            state = self.states[-1]
            step = self.method.decode_step(state, record.payload)
            self.states.append(self.method.advance(state, step))

    def forge(self):
        """Return what was forged, the log and the answers."""
        kinds = [getattr(self, kind) for kind in dir(self) if kind.startswith(("step_", "record_"))]
        while True:
            kind = kinds[self.rng.integers(len(kinds))]
            number = int(self.rng.integers(1, ROUNDS + 1))
            made = kind(number)
            if made is not None:
                return (f"{kind.__name__}, round {number}", *made)

    def factor(self, least=1e-4):
        """Return a number from 1 + least to 1e6, or minus it, or -1, or the inverse."""
        size = 1 + 10 ** self.rng.uniform(np.log10(least), 6)
        return float(self.rng.choice([size, -size, -1.0, 1 / size]))

    # -- the log

    def with_step(self, number, step):
        payload = step if isinstance(step, bytes) else step.encode()
        if payload == self.log.records[number - 1].payload:
            return None
        steps = list(self.log.records)
        steps[number - 1] = replace(steps[number - 1], payload=payload)
        parts = pack_records(self.method, [replace(one, digest=NO_DIGEST) for one in steps])
        write_orbit(self.file, self.log.start, parts)
        return Orbit.open(self.file), self.answers

    def step(self, number):
        return self.method.decode_step(
            self.states[number - 1], self.log.records[number - 1].payload
        )

    def step_times_a_factor(self, number):
        return self.with_step(number, times(self.step(number), self.factor()))

    def step_with_one_number_changed(self, number):
        return self.with_step(number, changed_once(self.step(number), self.factor(), self.rng))

    def step_with_another_whole_number(self, number):
        return self.with_step(number, with_other_whole_number(self.step(number), self.rng))

    def step_of_another_round(self, number):
        return self.with_step(number, self.log.records[number - 2].payload)

    def step_of_nobody(self, number):
        nobody = Answers(number, (), self.rule)
        return self.with_step(number, self.method.aggregate(self.states[number - 1], nobody))

    # -- the record

    def with_line(self, number, **changes):
        line = self.answers.lines[number]
        forged = line.model_copy(update=changes)
        if forged == line:
            return None
        lines = {**self.answers.lines, number: forged}
        return self.log, self.answers._replace(lines=lines)

    def pick(self, number, count=1):
        answers = self.answers.lines[number].answers
        return [int(c) for c in self.rng.choice(sorted(answers), count, replace=False)], answers

    def update(self, number, payload):
        return self.method.decode_update(self.states[number - 1], number, payload)

    def with_numbers(self, number, forged):
        """Return the record with a client's numbers replaced, where these are beyond the noise."""
        (client,), answers = self.pick(number)
        examples, payload = answers[client]
        about = DecodeContext(self.method, self.states[number - 1], "update", number)
        update = self.update(number, payload)
        numbers = update.numbers(about)
        made = update.with_numbers(forged(numbers.astype(np.float64)), about).encode()
        if made == payload:
            return None
        return self.with_line(number, answers={**answers, client: (examples, made)})

    def record_times_a_factor(self, number):
        # a rule may leave out what a small factor changes: it must be beyond a loss's noise then
        factor = self.factor(1e-4 if self.rule.linear else 1.0)
        return self.with_numbers(number, lambda numbers: numbers * factor)

    def record_with_a_sign_flipped(self, number):
        def flip(numbers):
            numbers[np.abs(numbers).argmax()] *= -1
            return numbers

        return self.with_numbers(number, flip)

    def record_without_an_answer(self, number):
        (client,), answers = self.pick(number)
        rest = {key: one for key, one in answers.items() if key != client}
        silent = [client] if self.rule.linear and self.method.name != "feedsign" else []
        return self.with_line(number, answers=rest, silent=silent if self.rng.integers(2) else [])

    def record_with_an_answer_added(self, number):
        (client,), answers = self.pick(number)
        (other,) = {*range(CLIENTS)} - {*answers}
        line = self.answers.lines[number]
        asked = sorted([*line.asked, other]) if self.rng.integers(2) else line.asked
        return self.with_line(number, asked=asked, answers={**answers, other: answers[client]})

    def record_with_answers_swapped(self, number):
        (one, other), answers = self.pick(number, 2)
        swapped = {one: answers[other], other: answers[one]}
        if answers[one][1] == answers[other][1]:
            return None
        return self.with_line(number, answers={**answers, **swapped})

    def record_with_the_answer_of_another_round(self, number):
        (client,), answers = self.pick(number)
        earlier = self.answers.lines[number - 1 or ROUNDS].answers
        if client not in earlier or earlier[client][1] == answers[client][1]:
            return None
        return self.with_line(number, answers={**answers, client: earlier[client]})

    def record_with_another_clients_answer(self, number):
        (one, other), answers = self.pick(number, 2)
        if answers[one][1] == answers[other][1]:
            return None
        return self.with_line(number, answers={**answers, one: answers[other]})

    def record_with_other_seeds(self, number):
        (client,), answers = self.pick(number)
        examples, payload = answers[client]
        changed = with_other_whole_number(self.update(number, payload), self.rng)
        made = changed.encode() if isinstance(changed, Payload) else changed
        if made == payload:
            return None
        return self.with_line(number, answers={**answers, client: (examples, made)})

    def record_with_another_claim(self, number):
        if self.method.weighting != "examples":
            return None
        (client,), answers = self.pick(number)
        examples, payload = answers[client]
        claim = examples + int(self.rng.integers(1, 100))
        return self.with_line(number, answers={**answers, client: (claim, payload)})

    def record_without_the_round(self, number):
        lines = {key: line for key, line in self.answers.lines.items() if key != number}
        return self.log, self.answers._replace(lines=lines)


def mapped(payload, change):
    """Return a payload with each of its arrays and whole numbers changed."""
    if isinstance(payload, Payload):
        values = {one.name: mapped(getattr(payload, one.name), change) for one in fields(payload)}
        return replace(payload, **values)
    if isinstance(payload, Small):
        return payload._replace(numbers=change(payload.numbers))
    if isinstance(payload, tuple):
        return tuple(mapped(part, change) for part in payload)
    return payload if payload is None else change(payload)


def times(step, factor):
    def change(value):
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            signs = isinstance(value, np.ndarray) and value.dtype == np.int8
            return -value if signs else value
        return np.clip(value.astype(np.float64) * factor, -3e38, 3e38).astype(value.dtype)

    return mapped(step, change)


def changed_once(step, factor, rng):
    """Return a step whose largest number of one of its arrays is another one."""
    arrays = []
    mapped(step, lambda value: arrays.append(value) or value)
    arrays = [one for one in arrays if np.ndim(one) and one.dtype.kind == "f" and one.any()]
    chosen = arrays[rng.integers(len(arrays))] if arrays else None

    def change(value):
        if not np.ndim(value):
            return value
        if value.dtype == np.int8:
            flipped = value.copy()
            flipped[rng.integers(len(value))] *= -1
            return flipped
        if value is not chosen:
            return value
        other = value.copy()
        other[np.abs(value).argmax()] *= np.float32(factor)
        return other

    return mapped(step, change)


def with_other_whole_number(payload, rng):
    """Return a payload with another seed, index or count."""

    def change(value):
        if isinstance(value, int):
            return value ^ (1 << int(rng.integers(60)))
        if isinstance(value, np.ndarray) and value.dtype.kind == "u" and len(value):
            other = value.copy()
            other[rng.integers(len(value))] ^= np.uint32(4)
            return other
        return value

    return mapped(payload, change)


@pytest.mark.parametrize("name", RUNS)
def test_an_honest_run_passes(name, honest):
    spec, log, answers = honest(name)
    verified = check(name, spec, log, answers)
    assert verified.proven and verified.steps == ROUNDS
    assert len(verified.checked) == ROUNDS * PER_ROUND
    assert {one.verdict for one in verified.checked} == {"right"}
    assert not any(verified.silent.values())


def forgeries_that_pass(names, count, honest, folder, seed):
    passed, kinds = [], set()
    for at in range(count):
        name = names[at % len(names)]
        spec, *_ = honest(name)
        forger = Forger(honest(name), np.random.default_rng([seed, at]), folder)
        what, log, answers = forger.forge()
        kinds.add(what.partition(",")[0])
        try:
            detected = not check(name, spec, log, answers).proven
        except (FedseedError, MessageError):
            detected = True
        if not detected:
            passed.append(f"{name}, forgery {at}: {what}")
    return passed, kinds


def test_no_forgery_passes(honest, tmp_path):
    passed, _ = forgeries_that_pass(list(RUNS), 36, honest, tmp_path, seed=1)
    assert passed == []


@pytest.mark.slow
def test_none_of_many_forgeries_passes(honest, tmp_path):
    count = int(os.environ.get("FEDSEED_FORGERIES", "300"))
    passed, kinds = forgeries_that_pass(list(RUNS), count, honest, tmp_path, seed=2)
    assert passed == [] and len(kinds) == 15


# -- other processors' sums

WIDE = ZOFedSGD(seeds="shared", population=4096, batch=4096, learning_rate=1e-3)
ROBUST = [
    TrimmedMean(),
    NormBound(),
    CentredClipping(iterations=3),
    GeometricMedian(),
    Krum(),
    MultiKrum(before=["arc"]),
    Median(before=["nearest-neighbours"], liars=1),
]


def judged(rule, vectors, recorded):
    """Whether a step is within the rounding of what a rule makes of vectors, and whether it is the
    one that this processor makes.
    """
    state = WIDE.start(federation("zo-own").hosted.worker.space.layout, 1)
    answers = Answers(
        1,
        tuple(
            Answer(client, 1 / len(vectors), Projections(vector))
            for client, vector in enumerate(vectors)
        ),
        rule,
        Past(1, 1),
    )
    made = WIDE.aggregate(state, answers)
    step = recorded(state, answers, made)
    right = is_within_rounding(WIDE, state, answers, step, made.encode())
    return right, step.encode() == made.encode()


@pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: rule.name)
def test_a_step_of_another_processors_rounding_is_right_and_one_beyond_it_is_not(rule):
    rng = np.random.default_rng(4)
    vectors = list(rng.standard_normal((6, WIDE.population)).astype(np.float32))
    vectors[0] *= 1e5  # covers nothing of the others

    def rounded(share):
        def recorded(state, answers, made):
            past = replace(answers.past, noise=Noise(share))
            return WIDE.aggregate(state, replace(answers, past=past))

        return recorded

    assert judged(rule, vectors, rounded(0.0)) == (True, True)
    right, alike = judged(rule, vectors, rounded(2.0**-28))
    assert right and alike == (rule.name == "krum")  # which picks a vector, and adds up nothing
    assert judged(rule, vectors, rounded(2.0**-18)) == (False, False)

    def with_one_entry_off(state, answers, made):
        scalars = made.scalars.copy()
        scalars[np.abs(scalars).argmax()] *= np.float32(1 + 1e-6)
        return Projections(scalars)

    assert judged(rule, vectors, with_one_entry_off) == (False, False)


def test_any_vector_that_krum_likes_as_well_is_right_and_no_other():
    rng = np.random.default_rng(4)
    one, far = rng.standard_normal((2, WIDE.population)).astype(np.float32)
    other = one[::-1].copy()  # as long as the first
    # each of the last four is as far from the others, but for rounding
    vectors = [10 * far, one, -one, other, -other]
    right = [
        judged(Krum(liars=1), vectors, lambda *_, n=number: krum_step(vectors[n]))[0]
        for number in range(5)
    ]
    assert right == [False, True, True, True, True]


def krum_step(vector):
    return Projections((vector.astype(np.float64) / WIDE.population).astype(np.float32))
