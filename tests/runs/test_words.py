"""The recipes of the words base: each runs as it is, and votes alone make the base answer rightly."""

import pytest

from fedseed import Federation
from fedseed.runs.preview import preview
from fedseed.runs.recipe import packaged_recipes, read_recipe
from support.command import fedseed

pytestmark = pytest.mark.usefixtures("without_pictures")

NAMES = [name for name in packaged_recipes() if name.startswith("words-")]
LITTLE = ["rounds=1", "task.examples=60", "task.evaluation=40", "task.validation=10"]


def test_there_is_a_recipe_for_each_method():
    assert [name.removeprefix("words-") for name in NAMES] == [
        "fedavg", "fedkseed", "fedmezo", "feedsign", "ferret", "zo-fedsgd",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_measures_accuracy_before_and_after(name):
    trained = ["method.training.steps=2"]
    few = {"fedavg": trained, "ferret": trained, "feedsign": [], "zo-fedsgd": []}
    overrides = few.get(name.removeprefix("words-"), ["method.steps=2"])
    result = Federation.from_file(name, [*LITTLE, *overrides]).run()
    assert set(result.summary["final"]) == {
        f"{family}{metric}" for family in ("", "feeling_", "topic_") for metric in ("loss", "accuracy")
    }
    assert result.summary["baseline"]["loss"] != result.summary["final"]["loss"]
    assert 30 <= result.summary["baseline"]["accuracy"] <= 70  # of 40: half right, where chance is 37.5


def test_the_examples_can_be_looked_at(tmp_path):
    shown = preview(read_recipe("words-feedsign", ["task.examples=20"]), examples=1)
    (example,) = shown.shown
    assert "the loss is which option follows" in example.title and example.note == "options: terrible / great"
    assert [piece.learnt for piece in example.pieces[-2:]] == [False, True]
    assert (example.pieces[-2].text.strip(), example.pieces[-1].text.strip()) in {("was", "great"), ("was", "terrible")}
    said = fedseed("preview", "words-feedsign", "--set", "task.examples=20")
    assert said.returncode == 0 and "terrible / great" in said.stdout
