"""`Federation(model, datasets=[...], method=...)`: rows in memory are learnt as a recipe's files
are.
"""

import pytest
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from fedseed import Federation, FeedSign
from fedseed.errors import RecipeError
from fedseed.models.loading import load_model
from fedseed.objectives.classification import TextClasses
from fedseed.objectives.losses import CausalLM, Choices
from fedseed.objectives.seq2seq import Seq2SeqLM
from fedseed.tasks.data import ClientData, Example
from support import text_bases
from support.instruction_files import write_lines

METHOD = {"name": "feedsign", "learning_rate": 1e-3, "batch": 2}
FORMS = {
    "completions": lambda name, i: {
        "prompt": f"the film was {name}",
        "completion": f" {'good' if i % 2 else 'bad'}",
    },
    "texts": lambda name, i: {"text": f"a fine story {'not' if i % 2 else 'so'} great"},
    "labels": lambda name, i: {
        "text": f"a {('bad', 'good')[i % 2]} film",
        "label": ("negative", "positive")[i % 2],
    },
}


def federation(model, tokenizer, datasets, **settings):
    return Federation(
        model, datasets, FeedSign(**METHOD), tokenizer=tokenizer, rounds=3, seed=5, **settings
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["lists", "datasets"])
def test_rows_give_the_digest_of_the_recipe_with_their_files(form, kind, base, tmp_path):
    sets = {name: [FORMS[form](name, i) for i in range(6)] for name in ("east", "north")}
    held = [FORMS[form]("story", i) for i in range(4)]
    for name, rows in {**sets, "test/held": held}.items():
        write_lines(tmp_path / f"{name}.jsonl", rows)
    (tmp_path / "recipe.toml").write_text(f"""
        rounds = 3
        seed = 5
        model = {{ base = "{base}" }}
        evaluation = {{ every = 1, rouge = false }}
        method = {{ name = "feedsign", learning_rate = 1e-3, batch = 2 }}
        [task]
        name = "files"
        path = "{tmp_path}"
        evaluation_file = "{tmp_path}/test/held.jsonl"
    """)
    expected = Federation.from_file(tmp_path / "recipe.toml").run().summary
    data = (
        {name: Dataset.from_list(rows) for name, rows in sets.items()}
        if kind == "datasets"
        else sets
    )
    clients = [ClientData(name, rows) for name, rows in data.items()]
    found = (
        federation(*load_model(base), clients, evaluation=held, out=tmp_path / "run").run().summary
    )
    assert (found["weights_digest"], found["final"]) == (
        expected["weights_digest"],
        expected["final"],
    )
    assert found["final"]["loss"] != found["baseline"]["loss"]


def test_plain_texts_examples_and_labels_are_data_too(base):
    texts = ["a fine story", "the film was great"]
    run = federation(*load_model(base), [texts, texts], evaluation={"a_": texts[:1], "b_": texts})
    dicts = federation(*load_model(base), [[{"text": text} for text in texts]] * 2)
    assert isinstance(run.worker.objective, CausalLM) and run.names == ["client-0", "client-1"]
    assert run.items == dicts.items
    assert {"a_loss", "b_loss", "b_perplexity"} <= set(run.run().summary["final"])
    ready = federation(*load_model(base), [[Example("the film", " was great")]])
    assert (
        ready.items
        == federation(
            *load_model(base), [[{"prompt": "the film", "completion": " was great"}]]
        ).items
    )
    labelled = federation(*load_model(base), [[FORMS["labels"]("a", i) for i in range(4)]])
    assert isinstance(labelled.worker.objective, Choices)


def test_the_model_says_what_is_learnt_of_rows(tmp_path):
    t5 = federation(
        *load_model(str(text_bases.write(tmp_path / "t5", "t5"))), [[FORMS["completions"]("a", 1)]]
    )
    assert isinstance(t5.worker.objective, Seq2SeqLM)
    base = str(text_bases.write(tmp_path / "bert", "bert"))
    tokenizer = AutoTokenizer.from_pretrained(base)
    texts = ["the film was good", "the film was bad", "a story"]

    def classifier(labels, **names):
        model = AutoModelForSequenceClassification.from_pretrained(base, **names)
        rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
        return federation(model, tokenizer, [rows], evaluation=rows)

    # not in the alphabet's order
    named = {"id2label": {0: "positive", 1: "negative", 2: "neutral"}}
    by_name = classifier(["positive", "negative", "neutral"], **named)
    by_number = classifier([0, 1, 2], **named)
    assert isinstance(by_name.worker.objective, TextClasses)
    assert (
        [item.gold for item in by_name.items[0]]
        == [item.gold for item in by_number.items[0]]
        == [0, 1, 2]
    )
    assert by_name.header.classes == by_number.header.classes == ("positive", "negative", "neutral")
    assert {"loss", "accuracy"} <= set(by_name.run().summary["final"])
    assert [item.gold for item in classifier([10, 2, 0], num_labels=11).items[0]] == [10, 2, 0]
    with pytest.raises(
        RecipeError,
        match=r"client-0, row 0, evaluation, row 0: \"label\" = 'great': not in task.labels ",
    ):
        classifier(["great", "negative", "neutral"], **named)


def test_what_is_wrong_names_client_and_row(base):
    model, tokenizer = load_model(base)
    good = FORMS["completions"]("a", 1)
    with pytest.raises(
        RecipeError,
        match=r"client-1, row 0: its fields \(question\) are not one of the known forms",
    ):
        federation(model, tokenizer, [[], [{"question": "?"}]])
    with pytest.raises(RecipeError, match='north, row 1: no "prompt"'):
        federation(model, tokenizer, [ClientData("north", [good, {"completion": " x"}])])
    with pytest.raises(RecipeError, match="the clients have no example"):
        federation(model, tokenizer, [[], []])
    with pytest.raises(RecipeError, match="give the model's tokenizer, or an objective"):
        Federation(model, [[good]], FeedSign())
