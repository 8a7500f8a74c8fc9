"""`fedseed.patch(trainer)`: Trainers of transformers as clients of a run, to the digest of its
recipe.
"""

import asyncio
from functools import partial
from math import isfinite

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorForSeq2Seq,
    Trainer,
    TrainingArguments,
)

import fedseed
from fedseed.errors import RecipeError
from fedseed.models.loading import load_model
from fedseed.objectives.losses import CausalLM
from fedseed.own.trainer import TrainerLoss, _TrainersPart
from fedseed.recipe.settings import Recipe
from fedseed.reports.progress import choose_progress
from fedseed.reports.results import read_metrics
from fedseed.runs.assembly import build
from fedseed.runs.joining import Loading
from fedseed.tasks.data import Example, OwnData
from fedseed.transport import transport
from fedseed.transport.base import Access
from fedseed.weights.devices import limited
from support import text_bases
from support.instruction_files import write_lines
from support.tiers import mark
from support.together import Together

NAMES = ("north", "south", "east")


def tokenised(tokenizer, examples):
    """Rows as one makes them for a Trainer: the prompt carries no loss."""
    rows = []
    for example in examples:
        prompt = tokenizer(example.prompt)["input_ids"]
        answer = [
            *tokenizer(example.response, add_special_tokens=False)["input_ids"],
            tokenizer.eos_token_id,
        ]
        rows.append({"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer})
    return rows


def trainer_of(model, tokenizer, rows, folder, held=None, kind=Trainer, **more):
    arguments = TrainingArguments(
        output_dir=str(folder), report_to=[], use_cpu=True, disable_tqdm=True
    )
    collator = DataCollatorForSeq2Seq(tokenizer)
    return kind(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=held,
        data_collator=collator,
        processing_class=tokenizer,
        **more,
    )


def sft_of(model, tokenizer, rows, folder, held=None):
    """TRL's Trainer, with a data set that is tokenised already."""
    from trl import SFTConfig, SFTTrainer

    arguments = SFTConfig(output_dir=str(folder), report_to=[], use_cpu=True, disable_tqdm=True)
    sets = [None if part is None else Dataset.from_list(part) for part in (rows, held)]
    return SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=sets[0],
        eval_dataset=sets[1],
        processing_class=tokenizer,
    )


class Own(Trainer):
    """One with a loss of its own, which happens to be the model's."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs).loss


def recipe(base, folder, method, **more):
    settings = {
        "feedsign": {"name": "feedsign", "batch": 2, "learning_rate": 1e-3},
        "ferret": {
            "name": "ferret",
            "directions": 50,
            "training": {"learning_rate": 0.1, "steps": 2, "batch": 2, "accumulation": 2},
        },
        "subspace": {
            "name": "subspace",
            "rank": 3,
            "training": {"learning_rate": 1e-2, "steps": 2, "batch": 2, "accumulation": 2},
        },
    }
    return Recipe.model_validate(
        {
            "rounds": 4,
            "seed": 5,
            "method": settings[method],
            "model": {"base": base},
            "task": {"name": "files", "path": str(folder), "evaluation": 0.25},
            "federation": {"joint": False, "dead_after": 60.0, "clients": list(NAMES)},
            "evaluation": {"every": 2, "rouge": False},
            **more,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, words = (
        tmp_path_factory.mktemp("data"),
        ["film", "story", "fine film", "very good story"],
    )
    for name in NAMES:
        rows = [
            {"prompt": f"the {words[i % 4]} was", "completion": f" {'good' if i % 3 else name}"}
            for i in range(8)
        ]
        write_lines(folder / f"{name}.jsonl", rows)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    "method", mark(["feedsign", "ferret", "subspace"], lambda name: name == "ferret")
)
def test_three_trainers_end_with_the_digest_of_the_recipe(
    base, folder, method, shared_server, tmp_path
):
    part = {"trainable": "head"} if method == "feedsign" else {}
    checked = recipe(base, folder, method, model={"base": base, **part})
    with limited(1):
        expected = build(checked).run().summary
    run, trainers, found = f"trainers-{method}", {}, {}
    together = Together(checked, lambda: transport(Access(shared_server.url), run), run)
    for name in NAMES:
        model, tokenizer = load_model(base)
        own = Loading(checked, [name], own_data=OwnData(folder / f"{name}.jsonl"))
        train, held = (
            tokenised(tokenizer, part)
            for part in (own.data.clients[0].examples, own.data.evaluation[""])
        )
        make = sft_of if name == "east" else trainer_of
        trainers[name] = make(model, tokenizer, train, tmp_path / name, held)
        fedseed.patch(trainers[name], checked, name, nats=shared_server.url, run=run)

    async def in_a_notebook(name):
        return trainers[name].train()

    def live(name):
        found[name] = (
            asyncio.run(in_a_notebook(name)) if name == "south" else trainers[name].train()
        )

    with limited(1):
        for name in NAMES:
            together.begin(name, partial(live, name))
        result = together.coordinate(tmp_path / "run").summary
        together.wait()
    assert result["weights_digest"] == expected["weights_digest"]
    losses = [line["train_loss"] for line in read_metrics(tmp_path / "run")[1:]]
    told = sum(one.training_loss for one in found.values()) / len(found)
    assert told == pytest.approx(sum(losses) / len(losses), rel=1e-3)
    assert result["final"]["loss"] == pytest.approx(expected["final"]["loss"], abs=1e-6)
    tuned = fedseed.from_orbit(tmp_path / "run").state_dict()
    for name, trainer in trainers.items():
        assert found[name].metrics["weights_digest"] == expected["weights_digest"]
        assert (found[name].global_step, trainer.state.global_step) == (4, 4)
        assert isfinite(found[name].training_loss)
        assert all(
            torch.equal(tensor, tuned[key]) for key, tensor in trainer.model.state_dict().items()
        )
        assert trainer.evaluate()["eval_loss"] < 10  # it goes on as a Trainer


def test_its_loss_is_that_of_the_same_examples(base, tmp_path):
    model, tokenizer = load_model(base)
    examples = [
        Example("the film was", " good"),
        Example("a very fine story", " so great and good"),
        Example("a", ""),
    ]
    rows = tokenised(tokenizer, examples)
    # nothing is learnt of it: it is left out
    rows.append({"input_ids": [5, 6], "labels": [-100, -100]})
    plain = CausalLM(tokenizer)
    objective, own = (
        TrainerLoss(trainer_of(model, tokenizer, rows, tmp_path, kind=kind))
        for kind in (Trainer, Own)
    )
    trl = TrainerLoss(sft_of(model, tokenizer, rows, tmp_path))
    expected, made, alone = plain.prepare(examples), objective.prepare(rows), own.prepare(rows)
    assert [objective.weight(item) for item in made] == [plain.weight(item) for item in expected]
    model.eval()
    with torch.no_grad():
        losses = plain.losses(model, expected)
        assert torch.equal(objective.losses(model, made), losses)
        torch.testing.assert_close(own.losses(model, alone), losses)
        assert torch.equal(trl.losses(model, trl.prepare(rows)), losses)


def test_a_classifier_and_smoothed_labels_are_the_trainer_s(tmp_path):
    base = str(text_bases.write(tmp_path / "bert", "bert"))
    model, (_, tokenizer) = (
        AutoModelForSequenceClassification.from_pretrained(base, num_labels=3),
        load_model(base),
    )
    rows = [
        {**tokenizer(text), "labels": i}
        for i, text in enumerate(["the film was good", "bad", "a story"])
    ]
    from transformers import DataCollatorWithPadding

    trainer = trainer_of(model, tokenizer, rows, tmp_path)
    trainer.data_collator = DataCollatorWithPadding(tokenizer)
    objective = TrainerLoss(trainer)
    items = objective.prepare(rows)
    model.eval()
    with torch.no_grad():
        mean = trainer.compute_loss(model, trainer.data_collator(rows))
        assert objective.losses(model, items).mean() == pytest.approx(float(mean), abs=1e-6)
    assert [objective.weight(item) for item in items] == [1, 1, 1]


def test_what_a_collator_draws_is_the_same_for_the_same_rows(base, tmp_path, monkeypatch):
    model, tokenizer = load_model(base)
    trainer = trainer_of(model, tokenizer, [{"input_ids": [5, 6, 7, 8]}] * 3, tmp_path)

    def drawing(features):
        ids = torch.tensor([one["input_ids"] for one in features])
        return {"input_ids": ids, "labels": torch.where(torch.rand(ids.shape) < 0.5, ids, 9)}

    trainer.data_collator = drawing
    objective = TrainerLoss(trainer)
    items = objective.prepare(trainer.train_dataset)
    with torch.no_grad():
        first = objective.losses(model, items)
        torch.rand(7)
        # what they draw is not begun anew: a client's training has given them its own seed
        gpus = []
        monkeypatch.setattr(torch.cuda, "manual_seed_all", gpus.append)
        assert torch.equal(objective.losses(model, items), first)
        assert not torch.equal(objective.losses(model, items[::-1]), first.flip(0))
    assert not gpus


def test_what_does_not_fit_is_refused(base, folder, tmp_path):
    model, tokenizer = load_model(base)
    trainer = trainer_of(model, tokenizer, tokenised(tokenizer, []), tmp_path)
    checked, where = recipe(base, folder, "feedsign"), {"nats": "nats://127.0.0.1:1", "run": "run"}
    with pytest.raises(
        RecipeError, match="client west is not in the recipe: choose one of north, south, east"
    ):
        fedseed.patch(trainer, checked, "west", **where)
    with pytest.raises(RecipeError, match="the server's address is missing"):
        fedseed.patch(trainer, checked, "north", run="run")
    dealt = recipe(base, folder, "feedsign", federation={}, task={"name": "words"})
    with pytest.raises(RecipeError, match=r"name the clients in federation\.clients"):
        fedseed.patch(trainer, dealt, "north", **where)


def test_a_quantised_model_is_tuned_by_an_adapter_and_never_in_part(base, folder, tmp_path):
    """Its codes are frozen, which is no choice of what trains."""

    def part(**settings):
        model, tokenizer = load_model(base, quantization="int4")
        rows = tokenised(tokenizer, [Example("the film was", " good")])
        checked = recipe(base, folder, "feedsign", model={"base": base, **settings})
        trainer = trainer_of(model, tokenizer, rows, tmp_path)
        load = _TrainersPart(trainer, checked, "north", None, choose_progress(None))
        load.opened = None
        return load

    with pytest.raises(RecipeError, match=r"the base is quantised: .* adapter"):
        part()()
    header = part(adapter={"kind": "lora", "rank": 2})().header
    assert header.quantization == "int4" and header.trainable is None
    assert all(".lora_" in entry.name for entry in header.layout.tensors)
