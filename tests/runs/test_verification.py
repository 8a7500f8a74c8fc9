"""A party finds what was forged in its name, and nothing else, also with another processor's float
noise.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import FedAvg, Federation, FedKSeed, FeedSign, Ferret, Subspace, ZOFedSGD
from fedseed.errors import RecipeError
from fedseed.federation.messages import Message
from fedseed.methods.payload import DecodeContext
from fedseed.objectives.losses import Supervised
from fedseed.orbit import NO_DIGEST, Orbit
from fedseed.orbit.file import write_orbit
from fedseed.orbit.record import pack_records
from fedseed.privacy.secure.settings import SecureSums
from fedseed.runs.answers import read_answers
from fedseed.runs.spec import RunSpec
from fedseed.runs.verification import verify
from support.command import fedseed
from support.parts import part_of

QUICK = {"learning_rate": 0.02, "scale": 2e-3, "batch": 32}
PLAIN_STEPS = {"optimizer": "sgd", "learning_rate": 0.02, "steps": 2, "batch": 32}
METHODS = {
    "feedsign": FeedSign(**QUICK, votes_per_round=3, basis="rademacher"),
    "zo-fedsgd": ZOFedSGD(**QUICK),
    "zo-fedsgd-byte": ZOFedSGD(
        **QUICK, seeds="shared", scalars="byte", population=2, basis="lowrank"
    ),
    "fedkseed": FedKSeed(**QUICK, candidates=64, steps=3, importance=True),
    "fedkseed-half": FedKSeed(**QUICK, candidates=64, steps=3, scalars="float16"),
    "ferret": Ferret(
        directions=40,
        basis="hadamard",
        blocks="tensor",
        training={"learning_rate": 0.02, "steps": 2, "batch": 32},
    ),
    "subspace": Subspace(rank=3, up_bits=32, targets="all", training=PLAIN_STEPS),
}
CLIENTS, MINE = 3, 1


class Scaled(torch.nn.Module):
    """Divides by a mean over all inputs: a sum that is split by threads, so its last bits hang on
    them.
    """

    def forward(self, x):
        return x * (x.numel() / (x.abs().flatten() @ torch.ones(x.numel())))


def federation(method, **settings):
    g = torch.Generator().manual_seed(1)
    teacher = torch.randn(4000, 3, generator=g)
    x = torch.randn(CLIENTS, 60, 4000, generator=g)
    data = [[(row, (row @ teacher).argmax()) for row in part] for part in x]
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        Scaled(), torch.nn.Linear(4000, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3)
    )
    objective = Supervised(lambda out, y: cross_entropy(out, y, reduction="none"))
    settings = {"seed": 3, "evaluate_every": 1000, "joint": False, **settings}
    return Federation(model, data, method, objective, **settings)


def lied_to(run, rounds):
    """The coordinator puts another scalar into what one client answers in some rounds."""
    honest, coordinator = run.coordinator.receive, run.coordinator

    def receive(data, sender):
        message = Message.decode(data)
        if sender == MINE and message.round in rounds:
            about = DecodeContext(run.method, coordinator.state, "update", message.round)
            update = run.method.decode_update(coordinator.state, message.round, message.payload)
            numbers = update.numbers(about).copy()
            at = np.abs(numbers).argmax()
            numbers[at] = -numbers[at]
            data = replace(message, payload=update.with_numbers(numbers, about).encode()).encode()
        honest(data, sender)

    coordinator.receive = receive


def check(run, orbit, answers, most=None, seed=0):
    """By the party alone, on another number of threads than the run."""
    hosted = part_of(federation(run.method, rounds=run.spec.rounds), [f"client-{MINE}"])
    before = torch.get_num_threads()
    torch.set_num_threads(3 - before)
    try:
        return verify(orbit, answers, run.spec, hosted, most, seed)
    finally:
        torch.set_num_threads(before)


def verified(run, folder, most=None, seed=0):
    return check(
        run, Orbit.open(folder / "model.orbit"), read_answers(folder / "answers.jsonl"), most, seed
    )


@pytest.mark.parametrize(
    "name, rounds, lies",
    [
        *((name, 8, 2) for name in METHODS),
        *(
            pytest.param(name, 300, 20, marks=pytest.mark.slow)
            for name in METHODS
            if name != "zo-fedsgd-byte"
        ),
    ],
)
def test_all_that_is_forged_is_found_and_nothing_else(name, rounds, lies, tmp_path):
    run = federation(METHODS[name], rounds=rounds, out=tmp_path, answers=True)
    forged = set(
        np.random.default_rng(5).choice(np.arange(1, rounds + 1), lies, replace=False).tolist()
    )
    lied_to(run, forged)
    run.run()
    found = verified(run, tmp_path)
    # the lies are in the steps, too
    assert found.steps == rounds and found.unlike == found.missing == []
    assert {one.round for one in found.checked if one.verdict == "forged"} == forged
    assert [one.round for one in found.checked] == list(range(1, rounds + 1))
    assert found.digest == run.worker.space.digest()
    # there is noise, and much room between it and what is allowed
    apart = [
        abs(one.logged - one.computed) / one.allowed
        for one in found.checked
        if one.round not in forged
    ]
    rounded = ("feedsign", "zo-fedsgd-byte", "fedkseed-half")
    assert name in rounded or 0 < max(apart) < 0.25
    some = verified(run, tmp_path, most=4, seed=9).checked
    # by the shared stream: the same seed, the same sample
    assert len(some) == 4 and set(some) <= set(found.checked)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """An honest run that was stopped after four of eight rounds and taken up again, two of three
    clients a round.
    """
    folder = tmp_path_factory.mktemp("kept")
    settings = {"per_round": 2, "out": folder, "answers": True}
    federation(METHODS["zo-fedsgd"], rounds=4, **settings).run()
    run = federation(METHODS["zo-fedsgd"], rounds=8, **settings)
    run.run(resume=True, extend=True)
    return run, folder


def test_steps_that_do_not_follow_from_the_answers_are_found(kept, tmp_path):
    run, folder = kept
    orbit, answers = Orbit.open(folder / "model.orbit"), read_answers(folder / "answers.jsonl")
    assert list(answers.lines) == list(range(1, 9)) and answers.names == [
        "client-0",
        "client-1",
        "client-2",
    ]
    found = verified(run, folder)
    assert not found.forged and found.record == verified(run, folder).record
    number = found.checked[0].round  # one that the party took part in
    line = answers.lines[number]
    (mine, own), (other, its) = sorted(line.answers.items(), key=lambda pair: pair[0] != MINE)
    altered = {
        "swapped": line.model_copy(update={"answers": {mine: its, other: own}}),
        "none": None,
        "unreadable": line.model_copy(update={"answers": {mine: own, other: (its[0], b"x")}}),
    }
    for what, changed in altered.items():
        lines = {**answers.lines, number: changed}
        found = check(
            run,
            orbit,
            answers._replace(lines={r: one for r, one in lines.items() if one is not None}),
        )
        assert (found.unlike, found.missing) == (
            ([], [number]) if what == "none" else ([number], [])
        ), what
        wrong = [one.round for one in found.checked if one.verdict == "forged"]
        assert wrong == ([number] if what == "swapped" else []), what
    steps = [*orbit.records]  # a step of another round, chained as if it had been there
    steps[number - 1] = replace(steps[number - 1], payload=steps[number - 2].payload)
    parts = pack_records(run.method, [replace(step, digest=NO_DIGEST) for step in steps])
    write_orbit(tmp_path / "other.orbit", orbit.start, parts)
    assert check(run, Orbit.open(tmp_path / "other.orbit"), answers).unlike == [number]


def test_a_claim_of_examples_is_on_record(tmp_path):
    method = METHODS["fedkseed"].model_copy(update={"weighting": "examples"})
    run = federation(method, rounds=2, out=tmp_path, answers=True)
    run.coordinator.examples[MINE] = 61
    run.run()
    found = [(one.logged, one.computed, one.verdict) for one in verified(run, tmp_path).checked]
    assert found == [(61, 60, "forged")] * 2


def test_a_vote_within_the_noise_of_zero_may_be_either(tmp_path):
    """So near to each other float noise decides between two losses: nobody is accused of what it
    did.
    """
    run = federation(FeedSign(**{**QUICK, "scale": 1e-8}), rounds=6, out=tmp_path, answers=True)
    lied_to(run, range(1, 7))
    run.run()
    verdicts = [one.verdict for one in verified(run, tmp_path).checked]
    assert "open" in verdicts and "forged" not in verdicts


@pytest.mark.parametrize(
    "method, settings, why",
    [
        (FeedSign(**QUICK, epsilon=1.0), {}, "noise is secret"),
        (FedAvg(), {}, "those of FeedSign, ZO-FedSGD, FedKSeed and Ferret can"),
        (Subspace(training=PLAIN_STEPS), {}, "method.up_bits = 1"),
        (Subspace(up_bits=32), {}, 'method.training.optimizer = "adamw"'),
        (
            FeedSign(**QUICK),
            {"secure_sums": SecureSums(threshold=2)},
            "never sees a single client's answer",
        ),
        (ZOFedSGD(**QUICK, normalize="ranks", population=2), {}, "method.normalize"),
    ],
)
def test_what_can_not_be_verified_is_refused_by_name(method, settings, why):
    with pytest.raises(RecipeError, match=f"federation.answers = true: .*{why}"):
        RunSpec(method, 1, answers=True, **settings)


@pytest.mark.long
def test_the_command_says_what_was_forged(tmp_path):
    words = (
        "--set",
        "rounds=3",
        "--set",
        "federation.answers=true",
        "--set",
        "task.examples=60",
        "--out",
        "run",
    )
    assert fedseed("run", "digits-zo-fedsgd", *words, cwd=tmp_path).returncode == 0
    right = fedseed(
        "verify", "run", "--client", "client-0[12]", "--sample", "2", "--json", cwd=tmp_path
    )
    assert right.returncode == 0 and len(json.loads(right.stdout)["checked"]) == 4, right.stderr
    log = tmp_path / "run" / "model.orbit"
    whole, orbit = log.read_bytes(), Orbit.open(log)
    steps = [replace(step, digest=NO_DIGEST) for step in orbit.records[:2]]
    write_orbit(log, orbit.start, pack_records(orbit.header.method, steps))
    cut = fedseed("verify", "run", "--client", "client-01", cwd=tmp_path)
    assert cut.returncode == 1 and "the log ends at step 2, but " in cut.stderr
    log.write_bytes(whole)
    file = tmp_path / "run" / "answers.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    unknown = fedseed("verify", "run", "--client", "client-01", cwd=tmp_path)
    assert unknown.returncode == 1 and "2 of 3 steps follow" in unknown.stdout
    assert "can't be judged: no answers are on record: rounds 2" in unknown.stdout
    table = json.loads(lines[2])
    table["answers"]["0"], table["answers"]["1"] = table["answers"]["1"], table["answers"]["0"]
    file.write_text("\n".join([*lines[:2], json.dumps(table), *lines[3:]]) + "\n")
    found = fedseed("verify", "run", "--client", "client-01", "--sample", "all", cwd=tmp_path)
    assert (
        found.returncode == 1
        and "client-01: 2 of 3 answers" in found.stdout
        and "forged" in found.stdout
    )
    assert "2 of 3 steps follow" in found.stdout and "do not: rounds 2" in found.stdout
    file.write_text("{}\n")
    assert (
        "not a run's answers"
        in fedseed("verify", "run", "--client", "client-01", cwd=tmp_path).stderr
    )
    file.unlink()
    gone = fedseed("verify", "run", "--client", "client-01", cwd=tmp_path)
    assert gone.returncode == 1 and "federation.answers = true" in gone.stderr
