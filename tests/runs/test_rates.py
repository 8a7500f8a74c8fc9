"""A learning rate is found by short runs: `fedseed tune-rate`, and learning_rate = "auto"."""

import json
from math import inf, isfinite, log10
from types import SimpleNamespace

import pytest
import torch

from fedseed import Federation, MeZO
from fedseed.errors import RecipeError
from fedseed.methods import REGISTRY
from fedseed.methods.bounds import rate_bound
from fedseed.recipe.reading import read_recipe
from fedseed.runs import rates
from fedseed.runs.assembly import build
from fedseed.runs.loop import rate_of
from fedseed.runs.rates import find_rate, with_rate
from support import command, text_bases
from support.instruction_files import write_lines
from support.tiers import mark

STEPS = "rounds = 150\nevaluation.every = 150\n"
ROUNDS = "rounds = 8\nevaluation.every = 8\n"
LONGER = "rounds = 24\nevaluation.every = 24\n"
METHODS = {  # nobody has tuned these for the base below
    "feedsign": STEPS,
    "zo-fedsgd": STEPS,
    "mezo": STEPS,
    "fedkseed": ROUNDS,
    "fedmezo": ROUNDS,
    "fedzo": ROUNDS,
    "ferret": ROUNDS,
    "fedavg": ROUNDS,
    "fedsgd": ROUNDS,
    "topk": ROUNDS,
    "sign": ROUNDS,
    "subspace": ROUNDS,
    "fedit": ROUNDS,
    "fedptuning": LONGER,
    "fedprompt": LONGER,
    "randopt": LONGER,
}
EXTRA = {
    "fedkseed": "candidates = 64\nsteps = 20\n",
    "fedmezo": "steps = 20\n",
    "fedzo": "steps = 20\nestimates = 4\n",
    "ferret": 'directions = 500\nbasis = "hadamard"\n',
    "mezo": "estimates = 4\n",
}


def recipe(folder, method, rate='"auto"'):
    base = text_bases.write(folder / "base", "llama")
    for name in ("north", "south", "east"):
        rows = [
            {"text": text, "label": ("positive", "negative")[i % 2]}
            for i, text in enumerate(text_bases.TEXTS)
        ]
        write_lines(folder / "data" / f"{name}.jsonl", rows * 3)
    first_order = "training" in REGISTRY.get(method).model_fields
    training = f"[method.training]\nlearning_rate = {rate}\nsteps = 6\nbatch = 4\n"
    own = training if first_order else f"learning_rate = {rate}\n"
    text = (
        f'{METHODS[method]}[model]\nbase = "{base}"\n[task]\nname = "files"\npath = '
        f'"{folder / "data"}"\n'
        f'[method]\nname = "{method}"\n{EXTRA.get(method, "")}{own}'
    )
    (folder / "recipe.toml").write_text(text)
    return folder / "recipe.toml"


def test_all_methods_that_have_a_rate_are_tried():
    own = [
        entry.thing
        for entry in REGISTRY.entries()
        if entry.thing.__module__.startswith("fedseed.methods")
    ]
    assert {method().name for method in own if rate_of(method())} == set(METHODS)


@pytest.mark.long
@pytest.mark.parametrize(
    "method", mark(METHODS, lambda name: name not in ("feedsign", "ferret", "fedavg"))
)
def test_auto_moves_the_loss_of_a_model_that_nobody_tuned_for(method, tmp_path):
    path = recipe(tmp_path, method)
    result = Federation.from_file(path, out=tmp_path / "run", progress=False).run()
    before, after = (result.summary[when]["loss"] for when in ("baseline", "final"))
    assert after < 0.97 * before
    written = read_recipe(tmp_path / "run" / "recipe.toml")
    assert not written.tune_rate  # it has the rate that was found
    again = Federation.from_file(tmp_path / "run" / "recipe.toml", progress=False).run()
    assert again.summary["weights_digest"] == result.summary["weights_digest"]


@pytest.mark.long
@pytest.mark.parametrize("method", ["feedsign", "ferret"])
def test_wherever_it_starts_it_ends_near_the_same_rate_and_within_its_share(method, tmp_path):
    """From defaults that are wrong by a factor of a thousand either way."""
    found = [
        find_rate(read_recipe(recipe(tmp_path, method, rate)), say=str)
        for rate in ("1e-6", "1e-3", "1.0")
    ]
    rates = [one.rate for one in found]
    assert max(rates) <= 10 * min(rates)
    for one in found:
        # whole rounds of such a short run; a tenth where there are more
        assert one.passes <= 0.2 * one.whole
        assert min(loss for _, _, loss in one.trials) < one.before and isfinite(one.before)


@pytest.mark.long
def test_with_more_passes_whole_runs_follow(tmp_path):
    settings = ['method.training.schedule="linear"', "task.validation=0.2", "stopping.patience=2"]
    plain = read_recipe(recipe(tmp_path, "ferret", "1e-6"), settings)
    short, found = (find_rate(plain, say=str, share=share) for share in (0.1, 5))
    assert (
        found.trials[: len(short.trials)] == short.trials
        and len(found.trials) == len(short.trials) + 5
    )
    whole = {rate: loss for rate, rounds, loss in found.trials[len(short.trials) :] if rounds == 8}
    assert len(whole) == 5 and short.rate in whole and found.rate == min(whole, key=whole.get)
    assert found.whole == pytest.approx(short.whole) and 5 < found.passes / found.whole < 5.5
    summary = build(with_rate(plain, found.rate)).run().summary
    assert summary["final"]["validation_loss"] == pytest.approx(whole[found.rate])


@pytest.mark.parametrize(("start", "tried"), [(0.1, 5), (1e-3, 8), (1e-9, 8)])
def test_whole_runs_go_where_it_gets_better_and_then_between(start, tried):
    losses = {}

    def measure(rate):
        assert rate == float(f"{rate:.2g}") and rate not in losses  # as it is told, and once
        losses[rate] = abs(log10(rate / 0.11)) if rate < 1 else inf
        return losses[rate]

    assert rates._whole_runs(start, 8, measure) == losses and len(losses) == tried
    assert start == 1e-9 or min(losses.values()) < 0.12


class Steps:
    """Stands in for trials: each step of a rate is along signs, on a quadratic loss."""

    per_round = 3

    def __init__(self, spectrum, start):
        self.spectrum, self.place = torch.tensor(spectrum), torch.tensor(start)
        self.start = [self.place.clone()]
        space = SimpleNamespace(snapshot=lambda: [self.place.clone()], restore=self.restore)
        self.trial = SimpleNamespace(worker=SimpleNamespace(space=space))

    def restore(self, tensors):
        self.place = tensors[0].clone()

    def run(self, method, rounds, clients, seed_offset):
        signs = torch.tensor([1.0 if seed_offset >> i & 1 else -1.0 for i in range(4)])
        gradient = self.spectrum * self.start[0]
        self.place = self.start[0] - method.learning_rate * float(gradient @ signs) * signs
        return self.trial

    def loss(self, trial):
        return float((self.place.double() ** 2 * self.spectrum).sum()) / 2


def test_curvature_along_random_steps_gives_the_trace_and_the_bound():
    # tr H = 11; z^T H z is 11 for any signs z, and |z|^2 is 4: a curvature of 2.75
    trials = Steps([5.0, 3.0, 2.0, 1.0], [10.0, 10.0, 10.0, 10.0])
    method = MeZO(learning_rate=1e-4)
    found = rates._start(trials, method, method.learning_rate, 8, 1, 3)
    known = found.landscape
    assert (known.parameters, known.clients) == (4, 3)
    assert known.curvature == pytest.approx(2.75, rel=1e-3)
    assert known.trace == pytest.approx(11, rel=1e-3)
    # |g^T z| / 2 over the eight signs of offsets 0 to 7, whose last sign is -1
    signs = [[1 if n >> i & 1 else -1 for i in range(4)] for n in range(8)]
    slopes = [abs(sum(10 * c * s for c, s in zip((5, 3, 2, 1), z, strict=True))) / 2 for z in signs]
    assert known.slope == pytest.approx(sum(slopes) / 8, rel=1e-3)
    # d = 4, L = 2.75: (4 * 11 + 2 * 2.75) / 6 + 2.75 = 11
    assert rate_bound(method, known).most == pytest.approx(2 / 11, rel=1e-3)


def test_the_command_finds_a_rate(tmp_path):
    path = recipe(tmp_path, "feedsign", "1e-9  # too small")
    done = command.fedseed("tune-rate", path, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["key"] == "method.learning_rate" and found["rate"] > 1e-6
    assert found["bound"]["theorem"] == "FeedSign, Theorem B.1 (of 3.11)"
    assert "FeedSign, Theorem B.1 (of 3.11): the loss falls" in done.stderr
    assert f"--set method.learning_rate={found['rate']:g}" in done.stderr


def test_what_can_not_be_tuned_is_said(tmp_path):
    path = recipe(tmp_path, "ferret")
    private = (
        "privacy.level=client privacy.clip=1.0 privacy.noise=1.0 method.seeds=shared "
        "method.allocation=size"
    )
    with pytest.raises(RecipeError, match="set a rate"):
        find_rate(read_recipe(path, private.split()), say=str)
    done = command.fedseed("serve", path, "--nats", "nats://127.0.0.1:1", cwd=tmp_path)
    assert (
        done.returncode == 2 and 'learning_rate = "auto" works in a simulation only' in done.stderr
    )
    assert with_rate(read_recipe(path), 0.25).method.training.learning_rate == 0.25
