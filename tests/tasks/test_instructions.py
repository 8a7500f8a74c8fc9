"""The generated instruction corpus, and the task that deals it."""

import hashlib
import runpy
from pathlib import Path

import pytest

from fedseed.errors import RecipeError
from fedseed.tasks.families import families, instances
from fedseed.tasks.instructions import InstructionsTask

# Changes whenever a family, a wording or a word of the world does; the committed base was made from
# this corpus.
KNOWN_DIGEST = "342aebd8670411511715073847b0737f085e923d7c41c0261cdddc6eda6315b6"


def test_the_corpus_is_the_same_on_any_machine():
    drawn = [one for family in families() for one in instances(family, 60, seed=0)]
    text = "\n".join(f"{one.instruction}|{one.input}|{one.output}" for one in drawn)
    statements = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "make_base.py"))[
        "statements"
    ]
    text += "\n".join(statements(0, 1000))
    assert hashlib.sha256(text.encode()).hexdigest() == KNOWN_DIGEST


def test_clients_hold_families_of_their_own_and_no_evaluation_example_is_trained_on():
    data = InstructionsTask(examples=40, evaluation=5, validation=5, unseen=5).load()
    assert len(data.clients) == 20
    assert all(len(c.examples) == 80 for c in data.clients)
    trained = [e for c in data.clients for e in c.examples]
    parts = [set(map(key, part)) for part in (trained, data.validation, *data.evaluation.values())]
    assert list(map(len, parts))[:3] == [20 * 80, 200, 200]  # no example is with two clients
    assert len(set().union(*parts)) == sum(map(len, parts))


def key(example):
    return example.prompt, example.response


def test_choosing_settings_never_sees_the_test_instances():
    task = InstructionsTask(examples=5)
    tuning = InstructionsTask(examples=5, evaluate_on="validation").load()
    assert set(map(key, tuning.evaluation[""])) == set(map(key, task.load().validation))
    assert list(tuning.evaluation) == [""]


def test_families_are_named_and_asked_in_another_form():
    names = ["count_items", "sort_down", "home_of"]  # of all three groups
    task = InstructionsTask(
        clients=3, families_per_client=1, families=names, examples=4, evaluation=2, unseen=0
    )
    data = task.load()
    assert {label for client in data.clients for label in client.labels} == set(names)
    asked = task.model_copy(update={"prompt": "question"}).load()
    for plain, other in zip(data.evaluation[""], asked.evaluation[""], strict=True):
        assert plain.response == other.response and plain.prompt.startswith("### Instruction:\n")
        words = (
            plain.prompt.replace("### Instruction:\n", "")
            .replace("\n\n### Input:", "")
            .removesuffix("\n")
        )
        assert other.prompt == f"Question: {words.removesuffix('### Response:').rstrip()}\nAnswer:"
    for wrong, problem in (
        (["sort_dwn"], "did you mean sort_down"),
        (["home_of"] * 2, "'home_of': twice"),
    ):
        with pytest.raises(RecipeError, match=problem):
            InstructionsTask(families=wrong).load()
    with pytest.raises(RecipeError, match="60 families are needed, but there are only 3"):
        task.model_copy(update={"clients": 60}).load()
