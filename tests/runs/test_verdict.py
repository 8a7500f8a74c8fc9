"""A run that has diverged is told as one, with a rate that helps; a noisy one is not accused."""

import json
import math

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from fedseed import FedAvg, Federation, FedKSeed, FeedSign, Ferret
from fedseed.methods.subspace import Subspace
from fedseed.objectives.guessing import guess_loss
from fedseed.objectives.losses import CausalLM, Supervised
from fedseed.reports.results import RoundLine
from fedseed.runs.verdict import find_divergence, learns_its_own
from fedseed.training.settings import LocalTraining
from support import text_bases
from support.command import fedseed
from support.heard import Heard

GUESS = math.log(5)


def base_model(dtype):
    """A net that half knows the answers, as a pretrained base does; its loss is 1.06."""
    draw = torch.Generator().manual_seed(1)
    teacher = torch.randn(20, 5, generator=draw)
    nearly = teacher + 0.4 * torch.randn(20, 5, generator=draw)

    def examples(count):
        inputs = torch.randn(count, 20, generator=draw)
        return [(row.to(dtype), (row @ teacher).argmax()) for row in inputs]

    clients, held_out = [examples(60) for _ in range(4)], examples(300)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5))
    inputs = torch.randn(1000, 20, generator=draw)
    labels = (inputs @ nearly).argmax(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(10):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model.to(dtype), clients, held_out


def steps(rate, **settings):
    return LocalTraining(learning_rate=rate, batch=8, accumulation=1, steps=4, **settings)


# what makes a method of a rate, and about the largest rate at which it learns here
METHODS = {
    "fedavg": (lambda rate, scale: FedAvg(training=steps(rate)), 1.5),
    "ferret": (lambda rate, scale: Ferret(directions=300, training=steps(rate)), 1.2),
    "fedkseed": (
        lambda rate, scale: FedKSeed(
            candidates=64, steps=8, learning_rate=rate, scale=scale, batch=8
        ),
        0.015,
    ),
    "feedsign": (lambda rate, scale: FeedSign(learning_rate=rate, scale=scale, batch=8), 0.012),
    "subspace": (
        lambda rate, scale: Subspace(rank=4, training=steps(rate, optimizer="adamw")),
        0.08,
    ),
}
KEYS = {
    "fedavg": "method.training.learning_rate",
    "ferret": "method.training.learning_rate",
    "fedkseed": "method.learning_rate",
    "feedsign": "method.learning_rate",
    "subspace": "method.training.learning_rate",
}


def run_at(name, rate, dtype, heard=None, out=None):
    model, clients, held_out = base_model(dtype)
    method = METHODS[name][0](rate, 1e-3 if dtype is torch.float32 else 2e-2)
    objective = Supervised(lambda out, y: cross_entropy(out.float(), y, reduction="none"))
    return Federation(
        model,
        clients,
        method,
        objective,
        rounds=80 if name == "feedsign" else 20,
        per_round=2,
        seed=3,
        evaluation={"": held_out},
        evaluate_every=4,
        progress=heard,
        out=out,
    ).run()


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("factor", [2, 20, 200, 1e12])
@pytest.mark.parametrize("name", METHODS)
def test_rates_that_are_too_large_are_told(name, factor, dtype):
    rate, heard = METHODS[name][1] * factor, Heard()
    summary = run_at(name, rate, dtype, heard).summary
    failure = summary["failure"]
    assert failure["kind"] == "diverged"
    said = [text for text in heard.warnings if "the run has diverged" in text]
    assert len(said) == 1 and f"{KEYS[name]} = {rate:g} is too large" in said[0]
    assert not any("too small" in text for text in heard.warnings)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "factor"), [*((name, 20) for name in METHODS), ("fedavg", 1e12), ("subspace", 1e12)]
)
def test_the_advice_ends_in_a_run_that_learns(name, factor):
    rate = METHODS[name][1] * factor
    summary = run_at(name, rate, torch.float32).summary
    while (failure := summary["failure"]) is not None:
        assert rate > METHODS[name][1] / 10
        rate = float(failure["advice"].partition(f"--set {KEYS[name]}=")[2].partition(",")[0])
        summary = run_at(name, rate, torch.float32).summary
    assert summary["final"]["loss"] < summary["baseline"]["loss"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", METHODS)
def test_a_rate_that_is_too_small_is_told_with_a_larger_one(name, dtype):
    heard, rate = Heard(), METHODS[name][1] * 1e-5
    summary = run_at(name, rate, dtype, heard).summary
    assert summary["failure"] is None
    said = [text for text in heard.warnings if "the loss has hardly moved" in text]
    assert len(said) == 1
    assert (
        f"{KEYS[name]} = {rate:g} is too small: try --set {KEYS[name]}={rate * 10:.2g}" in said[0]
    )


@pytest.mark.parametrize("share", [1, 1 / 3, 1 / 10])
@pytest.mark.parametrize("name", METHODS)
def test_rates_that_learn_are_not_accused(name, share):
    heard = Heard()
    assert run_at(name, METHODS[name][1] * share, torch.float32, heard).summary["failure"] is None
    assert not any("diverged" in text for text in heard.warnings)


SKIPPED = {"client": "a", "reason": "loss is nan at local step 2"}


def line(number, loss=None, local=None, norm=None, **more):
    metrics = {} if loss is None else {"loss": loss}
    return RoundLine(number, train_loss=local, weights_norm=norm, metrics=metrics, **more)


@pytest.mark.parametrize(
    ("local", "norm", "learns"),
    [(0.3, 1.01, True), (0.68, 1.01, False), (0.3, 1.5, False), (None, 1.01, False)],
)
def test_clients_that_learn_their_own_examples_have_no_wrong_rate(local, norm, learns):
    """A held-out loss that stands still then has another reason."""
    base, newest = line(0, 0.693, norm=1.0), line(3, 0.689, local, norm)
    assert learns_its_own(base, newest) == learns


def judged(*lines, guess=GUESS):
    return find_divergence(lines, guess)


def test_a_wiped_model_is_no_progress_though_its_loss_fell():
    wiped = judged(line(0, 11.9, norm=10.0), line(4, 7.31, 9.0, norm=14.0), guess=7.3)
    assert wiped.round == 4 and "no better than a guess's 7.3" in wiped.reason
    # the same loss on its way down, with weights that have hardly moved
    assert judged(line(0, 11.9, norm=10.0), line(4, 7.31, 9.0, norm=10.1), guess=7.3) is None
    # a coordinator has no weights: it does not accuse where it can't know
    assert judged(line(0, 11.9), line(4, 7.31, 9.0), guess=None) is None


@pytest.mark.parametrize(
    "history",
    [
        [line(0, 1.0), line(1, 1.08, 1.1), line(2, 1.04, 0.95)],
        [line(0, 0.02), line(1, 0.05, 0.05)],
        [line(0, 0.5), line(5, 1.4, 0.01)],
        [line(0, 1.0), line(1, 40.0, 30.0), line(2, 0.9, 2.0)],
        [line(0, math.nan), line(1, math.nan, math.nan)],
        [line(0, 1.0), line(1, 1.0, 1.0, skipped=[{"client": "a", "reason": "no usable example"}])],
        # one of two clients has answered
        [line(0, 1.0), line(1, 1.0, 1.0, skipped=[SKIPPED], taking_part=2)],
        [line(0), line(1, None, 1.2), line(2, None, 2.0)],
        # one held-out example after two rounds of a page's own commands
        [line(0, 1.78, norm=1.0), line(2, 2.15, 1.7, norm=1.03)],
        # a bad base on its way down, as in the first rounds of the recipe that `new` writes
        [line(0, 12.5, norm=1.0), line(1, 1.3 * GUESS, 2 * GUESS, norm=1.41)],
        # a head that was drawn anew: its norm grows before its loss is below a guess's
        [line(0, 1.06 * GUESS, norm=0.51), line(3, 1.03 * GUESS, GUESS, norm=0.97)],
        [
            RoundLine(0, metrics={"loss": 1.0, "reward": 0.1}),
            RoundLine(1, train_loss=0.9, metrics={"loss": 3.0, "reward": 0.5}),
        ],
    ],
    ids=[
        *("noise", "near zero", "by heart", "recovered", "bad base", "no data", "one answer"),
        "no test",
        *("one example", "on its way", "new head", "reward"),
    ],
)
def test_what_is_no_divergence(history):
    assert judged(*history) is None


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (line(1, math.nan), "its held-out loss is nan"),
        (line(1, math.inf), "its held-out loss is inf"),
        (line(1, 1.0, 1e9), "the clients' local loss is 1e+09"),
        (line(1, 1.0, math.nan), "the clients' local loss is nan"),
        (line(2, 1.0, skipped=[SKIPPED] * 4, rounds=2, taking_part=4), "loss is nan"),
        (
            line(
                1, 1.0, 1.0, not_taken=[{"round": 1, "reason": "it would move every weight by 2"}]
            ),
            "no step is taken: it would move every weight",
        ),
        (line(1, 2.0, 1.5), "its held-out loss is 2, the base's 1"),
    ],
)
def test_what_is_one(last, reason):
    assert reason in judged(line(0, 1.0), last).reason


def test_a_run_in_which_every_clients_loss_overflows_has_diverged():
    model, clients, held_out = base_model(torch.float32)
    method = FedAvg(training=steps(1e38))
    objective = Supervised(lambda out, y: cross_entropy(out, y, reduction="none"))
    federation = Federation(
        model, clients, method, objective, evaluation={"": held_out}, rounds=2, seed=1
    )
    failure = federation.run().summary["failure"]
    assert failure["kind"] == "diverged" and failure["round"] == 1
    assert failure["reason"].startswith("no client could answer: loss is nan at local step ")


def test_without_held_out_examples_the_local_loss_and_the_norm_tell():
    assert judged(line(0, norm=1.0), line(1, None, 9.0, norm=5.0)).round == 1
    assert judged(line(0, norm=1.0), line(1, None, 9.0, norm=1.0)) is None


def test_the_round_is_the_first_since_when_it_holds():
    history = [line(0, 1.0), line(1, 9.0), line(2, 0.9, 0.9), line(3, 5.0, 5.0), line(4, 6.0, 7.0)]
    assert judged(*history).round == 3


def test_the_loss_of_a_guess_is_that_of_the_words(tmp_path):
    folder = text_bases.write(tmp_path / "base", "llama")
    model = AutoModelForCausalLM.from_pretrained(folder)
    objective = CausalLM(AutoTokenizer.from_pretrained(folder))
    expected = math.log(model.config.vocab_size)
    assert guess_loss(objective, model, None) == pytest.approx(expected)
    assert guess_loss(Supervised(lambda out, y: out), model, None) is None


# -- the command line

RECIPE = """
rounds = 4
[model]
base = "words"
[task]
name = "words"
clients = 2
[method]
name = "fedavg"
[method.training]
learning_rate = {rate}
batch = 8
steps = 4
[evaluation]
every = 2
"""


@pytest.fixture
def recipe(tmp_path):
    def write(name, rate):
        (tmp_path / name).write_text(RECIPE.format(rate=rate))
        return tmp_path / name

    return write


def test_run_and_compare_end_with_3_and_leave_their_files(recipe, tmp_path):
    wrong, right = recipe("wrong.toml", 30.0), recipe("right.toml", 1e-3)
    done = fedseed("run", wrong, "--out", tmp_path / "wrong", "--json")
    assert done.returncode == 3
    assert "fedseed: the run has diverged since round 2: its held-out loss is" in done.stderr
    assert "--set method.training.learning_rate=" in done.stderr
    summary = json.loads(done.stdout)
    assert summary["failure"]["round"] == 2 and summary["rounds"] == 4
    for file in ("summary.json", "model.orbit", "metrics.jsonl", "report.html"):
        assert (tmp_path / "wrong" / file).is_file() or file == "model.orbit"
    # taken up again, it says so again
    assert fedseed("run", wrong, "--out", tmp_path / "wrong", "--resume").returncode == 3
    assert fedseed("run", right, "--out", tmp_path / "right").returncode == 0
    done = fedseed("compare", right, wrong, "--out", tmp_path / "both")
    assert done.returncode == 3 and "fedseed: wrong seed 1: the run has diverged" in done.stderr
    assert (tmp_path / "both" / "compare.md").is_file()


def test_an_attack_is_no_failure_of_the_rates(recipe, tmp_path):
    attack = ["--set", "attack.kind=sign", "--set", "attack.clients=2", "--set", "rounds=8"]
    done = fedseed("run", recipe("a.toml", 1e-2), *attack, "--out", tmp_path / "a", "--json")
    assert json.loads(done.stdout)["failure"] is not None and done.returncode == 0


def test_serve_into_the_folder_of_a_diverged_run_ends_with_3(recipe, tmp_path):
    wrong = recipe("wrong.toml", 30.0)
    fedseed("run", wrong, "--out", tmp_path / "wrong")
    done = fedseed("serve", wrong, "--out", tmp_path / "wrong")
    assert done.returncode == 3 and "the run has diverged" in done.stderr
