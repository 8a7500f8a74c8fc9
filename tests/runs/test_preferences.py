"""Runs on preferences and on scores: losses, resuming, late clients, exports."""

import json
import math

import numpy as np
import pytest
import torch

from fedseed import Federation, FedSGD
from fedseed.models.loading import load_model
from fedseed.objectives.evaluation import preference_metrics
from fedseed.objectives.losses import CausalLM
from fedseed.objectives.preferences import Preferences
from fedseed.recipe.settings import Recipe
from fedseed.runs.assembly import build
from fedseed.runs.preview import preview
from fedseed.runs.tuned import evaluate, find_source, open_tuned
from fedseed.tasks.data import Example, OwnData, Preference
from fedseed.weights.devices import limited
from support.command import well
from support.documents import ROOT
from support.instruction_files import write_lines
from support.left import left_by, stop_after, without_seconds
from support.network import until
from support.sites import PATIENCE, Said, at_hub
from support.text_bases import WORDS, write

pytestmark = pytest.mark.usefixtures("without_pictures")

LOCAL = {"learning_rate": 0.1, "batch": 4, "steps": 4, "accumulation": 1}
METHODS = {
    "fedavg": {"training": LOCAL},
    "ferret": {"directions": 400, "training": LOCAL},
    "subspace": {"bytes": "2kB", "training": LOCAL},
    "feedsign": {"learning_rate": 3e-3, "batch": 8},
    "fedkseed": {"candidates": 64, "steps": 60, "learning_rate": 1e-3, "batch": 8},
    "zo-fedsgd": {"learning_rate": 5e-4, "batch": 8},
    "fedit": {"training": {**LOCAL, "learning_rate": 1.0}},
    "fedavg-scores": {"training": {**LOCAL, "learning_rate": 0.02}},
}
FIRST_ORDER = ("fedavg", "ferret", "subspace", "fedit")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a base, preferences of three clients and a table of scores."""
    folder = tmp_path_factory.mktemp("preferences")
    write(folder / "llama", "llama")
    draws = np.random.default_rng(1)
    words = [word for word in dict.fromkeys(WORDS.split()) if word.isalpha()]
    for number, name in enumerate(("north", "south", "east")):
        rows = []
        for _ in range(12 - 2 * number):
            asked, liked = " ".join(draws.choice(words, 4)), draws.choice(["great", "good"])
            worse = " ".join(draws.choice(["bad", "terrible"], 2))
            rows.append({"prompt": asked, "chosen": f" {liked}", "rejected": f" {worse}"})
        write_lines(folder / "parties" / f"{name}.jsonl", rows)
    lines = ["text,label"]
    for _ in range(40):
        value = draws.integers(4)
        word = ("terrible", "bad", "good", "great")[value]
        lines.append(f"{draws.choice(words)} film was {word},{value + draws.choice([0, 0.5])}")
    (folder / "scores.csv").write_text("\n".join(lines) + "\n")
    return folder


def recipe(place, method, rounds=3, task=(), every=None, **more):
    steps = 60 if method in ("feedsign", "zo-fedsgd") else 1
    return Recipe.model_validate(
        {
            "rounds": rounds * steps,
            "seed": 3,
            "model": {"base": str(place / "llama"), **more.pop("model", {})},
            "task": {
                "name": "files",
                "path": str(place / "parties"),
                "evaluation": 0.25,
                **dict(task),
            },
            "evaluation": {"every": every or rounds * steps},
            "method": {"name": method.removesuffix("-scores"), **METHODS[method]},
            **more,
        }
    )


@pytest.mark.parametrize("method", [name for name in METHODS if name != "fedavg-scores"])
def test_every_method_lowers_dpos_loss(place, method):
    """First order and zeroth order, what is trained on and what is held out."""
    summary = build(recipe(place, method)).run().summary
    before, after = summary["baseline"], summary["final"]
    assert before["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert before["reward_margin"] == pytest.approx(0, abs=1e-5)
    assert after["loss"] < (0.5 if method in FIRST_ORDER else 0.65)
    assert after["reward_accuracy"] > 70 and after["reward_margin"] > 0


@pytest.mark.parametrize("method", ["fedavg", "feedsign"])
def test_resuming_compares_with_the_base_again(place, method, tmp_path):
    """References are computed at the base, though the weights are further on by then."""
    checked = recipe(place, method, rounds=2)
    whole = build(checked, tmp_path / "whole").run()
    stop_after(build(checked, tmp_path / "run"), checked.rounds // 2)
    result = build(checked, tmp_path / "run", resume=True).run(resume=True)
    assert without_seconds(result.metrics) == without_seconds(whole.metrics)
    assert left_by(tmp_path / "run") == left_by(tmp_path / "whole")


def expected_of(place, out, checked, name):
    """Return what a tuned model's figures are on a client's held-out pairs, by hand."""
    data = checked.task.load_own(name, OwnData(place / "parties" / f"{name}.jsonl"))
    base, tokenizer = load_model(str(place / "llama"))
    objective = Preferences(CausalLM(tokenizer))
    items = objective.with_reference(base, objective.prepare(data.evaluation[""]))
    return preference_metrics(open_tuned(find_source(str(out))).model, objective, items)


@pytest.mark.long
def test_who_is_late_compares_with_the_base(place, tmp_path):
    """A process that hosts two clients, and one that joins when others have moved the weights."""
    names = ["north", "south", "east"]
    federation = {"clients": names, "joint": False, "dead_after": PATIENCE}
    federation |= {"start_with": 2, "minimum": 2}
    checked = recipe(place, "fedavg", 4, {"path": ""}, 1, federation=federation)
    sites, own = at_hub(checked), OwnData(place / "parties")

    def east_is_here():
        return any("welcome" in line for line in sites.said["east"].said) or sites.failures

    with limited(1):
        sites.coordinator(tmp_path / "run")
        sites.said["east"] = Said()
        sites.site("north", own, hold=east_is_here, clients=["north", "south"])
        until(lambda: sites.said["north"].at is None, PATIENCE, "no round")
        sites.site("east", own, tmp_path / "east")
        assert len(sites.wait()) == 1
    took_part = [line["clients"] for line in sites.result.metrics[1:]]
    assert took_part[0] == ["north", "south"] and took_part[-1] == names
    last = sites.result.metrics[-1]["by_client"]
    assert set(last) == set(names) and last["east"]["loss"] < 0.5
    for name, figures in last.items():
        found = {key: value for key, value in figures.items() if key != "held_out"}
        assert found == pytest.approx(expected_of(place, tmp_path / "run", checked, name), rel=1e-4)


@pytest.mark.parametrize("method", ["fedit", "feedsign"])
def test_what_evaluates_a_tuned_model_compares_with_the_base(place, method, tmp_path):
    """An adapter's run, an orbit, and a folder that was exported."""
    more = {"model": {"adapter": {"kind": "lora"}}} if method == "feedsign" else {}
    checked = recipe(place, method, **more)
    summary = build(checked, tmp_path / "run").run().summary
    assert summary["baseline"]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert summary["final"]["reward_margin"] > 0.05
    tuned = open_tuned(find_source(str(tmp_path / "run")))
    assert evaluate(tuned, checked)[0] == pytest.approx(summary["final"], rel=1e-4)
    well("export", tmp_path / "run", "--out", tmp_path / "model")
    recipe_of_run = tmp_path / "run" / "recipe.toml"
    told = well("evaluate", tmp_path / "model", "--json", "--recipe", recipe_of_run)
    assert json.loads(told.stdout)["metrics"]["files"] == pytest.approx(summary["final"], rel=1e-4)


def test_a_preview_shows_both_answers(place):
    shown, notes = preview(recipe(place, "fedavg", task={"beta": 0.25}), examples=1)
    (chosen, rejected) = shown
    assert "chosen: " in chosen.title and "rejected: " in rejected.title
    assert "DPO, beta = 0.25" in chosen.note
    learnt = [text.strip() for text, counts in chosen.pieces if counts]
    assert learnt[0] in ("great", "good") and learnt[1:] == ["</s>"]
    assert any("DPO, task.beta = 0.25" in note for note in notes)


def test_a_program_learns_preferences(place):
    """Rows in memory; beta is an argument, and so is an objective of one's own."""
    rows = [
        json.loads(line)
        for line in (place / "parties" / "north.jsonl").read_text().split("\n")[:-1]
    ]
    found = {}
    for beta in (0.1, 0.5):
        model, tokenizer = load_model(str(place / "llama"))
        run = Federation(
            model,
            [rows[:6], rows[6:]],
            FedSGD(learning_rate=0.1),
            rounds=3,
            tokenizer=tokenizer,
            evaluation=rows,
            beta=beta,
        ).run()
        found[beta] = run.summary["final"]
        assert run.summary["baseline"]["loss"] == pytest.approx(math.log(2), abs=1e-6)
        assert found[beta]["loss"] < 0.6 and found[beta]["reward_accuracy"] > 70
    assert found[0.5]["loss"] < found[0.1]["loss"]


def test_dropout_is_off(place):
    """Rewards are differences of small numbers, and the base's part has none."""
    model, tokenizer = load_model(str(place / "llama"))
    modes = []

    class Watched(Preferences):
        def losses(self, model, items):
            modes.append(model.training)
            return super().losses(model, items)

    rows = [Preference(Example("the film was", " good"), Example("the film was", " bad"))]
    objective = Watched(CausalLM(tokenizer))
    Federation(model, [rows], FedSGD(learning_rate=0.1), objective, rounds=1).run()
    assert modes and not any(modes)


@pytest.mark.parametrize("method", ["fedavg-scores", "feedsign"])
def test_scores_are_learnt_and_exported(place, method, tmp_path):
    """The folder is a regression model of plain transformers with the same outputs."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    task = {"path": str(place / "scores.csv"), "clients": 2, "score_field": "label"}
    checked = recipe(place, method, task=task)
    summary = build(checked, tmp_path / "run").run().summary
    before, after = summary["baseline"], summary["final"]
    assert after["loss"] < (0.7 if method == "fedavg-scores" else 0.98) * before["loss"]
    assert method == "feedsign" or after["pearson"] > max(0.5, before["pearson"])
    assert -1 <= after["spearman"] <= 1
    well("export", tmp_path / "run", "--out", tmp_path / "model")
    exported = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert exported.config.problem_type == "regression" and exported.config.num_labels == 1
    tuned = open_tuned(find_source(str(tmp_path / "run")))
    evaluated, _ = evaluate(open_tuned(find_source(str(tmp_path / "model"))), checked)
    assert evaluated == pytest.approx(after, rel=1e-4)
    for text in ("the film was great", "a bad film"):
        given = tokenizer(text, return_tensors="pt")
        ours, theirs = tuned.model(**given).logits, exported(**given).logits
        assert theirs.shape == (1, 1) and torch.allclose(ours, theirs, rtol=1e-5)


def test_a_head_of_one_output_is_kept_and_any_other_drawn_anew(place, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    task = {"path": str(place / "scores.csv"), "clients": 2, "score_field": "label"}
    rows = [{"text": "a film", "label": 0.5}, {"text": "the film", "label": 2}] * 3
    for outputs, line in (
        (1, "base's head is kept, because it predicts"),
        (3, "own is for LABEL_0, LABEL_1"),
    ):
        folder = tmp_path / str(outputs)
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(
            place / "llama", num_labels=outputs
        )
        model.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(place / "llama")
        tokenizer.save_pretrained(folder)
        federation = build(recipe(place, "fedavg", task=task, model={"base": str(folder)}))
        assert any(line in note for note in federation.spec.notes)
        head = federation.worker.space.model.score.weight
        assert head.shape[0] == 1 and torch.equal(head, model.score.weight) == (outputs == 1)
        if outputs == 1:  # in a program, a model with one output predicts a number
            model.config.pad_token_id = tokenizer.pad_token_id
            run = Federation(
                model,
                [rows],
                FedSGD(learning_rate=1e-3),
                rounds=1,
                tokenizer=tokenizer,
                evaluation=rows,
            ).run()
            assert run.summary["final"]["loss"] < run.summary["baseline"]["loss"]


@pytest.mark.long
def test_the_example_prefers_short_answers(tmp_path):
    told = well("run", ROOT / "examples" / "preferences" / "recipe.toml", "--out", tmp_path / "run")
    assert "prefer chosen to rejected answers: DPO" in told.stdout + told.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["final"]["loss"] < 0.5 < summary["baseline"]["loss"]


def test_what_must_be_the_same_in_workers_and_under_an_attack(place, tmp_path):
    """Workers compute references themselves; a liar prefers the rejected answers."""
    checked = recipe(place, "fedavg", rounds=2)
    one, two = build(checked).run(), build(checked, workers=2).run()
    assert one.summary["weights_digest"] == two.summary["weights_digest"]
    lying = recipe(place, "fedavg", rounds=2, attack={"kind": "labels", "clients": 2})
    assert build(lying).run().summary["final"]["loss"] > one.summary["final"]["loss"] + 0.1
