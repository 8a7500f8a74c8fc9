"""`fedseed bench`: one shortened round says what a run will cost."""

import pytest

from fedseed.experiments.estimate import FEW_STEPS, cost_table, measure, shortened
from fedseed.methods import FeedSign, Ferret
from fedseed.reports.tables import human_seconds
from fedseed.runs.recipe import read_recipe

TINY = ("task.clients=2", "task.families_per_client=1", "task.examples=20", "task.evaluation=1", "task.unseen=0",
        "federation.per_round=2", "evaluation.rouge=false")  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "settings", "up"),
    [
        pytest.param("small-feedsign", (), 1, marks=pytest.mark.long),
        pytest.param("small-fedkseed", ("method.steps=30",), 8 * 30, marks=pytest.mark.long),
        ("quickstart-ferret", ("method.directions=50",), 8 + 4 + 4 * 50),
    ],
)
def test_costs_are_the_recipes(recipe, settings, up):
    checked = read_recipe(recipe, (*TINY, *settings))
    cost = measure(checked)
    assert cost.bytes_up == up and cost.clients == 2 and cost.rounds == checked.rounds
    assert cost.parameters == 1_195_392 and all(s > 0 for s in cost.operations.values())
    assert cost.round["local"] > 0 and cost.round["rebuild"] > 0
    assert cost.total > cost.rounds * cost.round["local"]
    assert "rounds and" in str(cost_table(cost)[-1])


def test_local_steps_are_shortened_and_reckoned_back():
    short, factor = shortened(Ferret())
    assert short.training.steps == FEW_STEPS and factor == pytest.approx(10 / FEW_STEPS)
    method = FeedSign()
    assert shortened(method) == (method, 1.0)


def test_times_have_units():
    assert [human_seconds(s) for s in (0.0123, 2.5, 600, 7300)] == ["12.3 ms", "2.5 s", "10 min", "2.0 h"]
