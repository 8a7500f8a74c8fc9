"""The recipes of the words base: each runs as it is, and votes alone make the base answer rightly."""

import pytest

from fedseed import Federation
from fedseed.runs.recipe import packaged_recipes

pytestmark = pytest.mark.usefixtures("without_pictures")

NAMES = [name for name in packaged_recipes() if name.startswith("words-")]
LITTLE = ["rounds=1", "task.examples=60", "task.evaluation=40", "task.validation=10"]


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
