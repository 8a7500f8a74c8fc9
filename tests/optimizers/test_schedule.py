"""Learning-rate schedules: their factors, the rates that methods step with, and runs that stop and
go on.
"""

import pytest
import torch
from transformers import get_scheduler

from fedseed import FedAvg, FedKSeed, FeedSign, MeZO, Orbit
from fedseed.errors import RecipeError
from fedseed.optimizers.schedule import Schedule, lasting
from fedseed.recipe.reading import read_recipe
from fedseed.training.settings import LocalTraining
from support.left import stop_after
from support.tiers import mark
from support.zeroth_order import QUICK, federation, model

COSINE = Schedule(kind="cosine", warmup=2, final=0.1)


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_factors_are_those_of_transformers_after_the_warmup(kind):
    schedule = Schedule(kind=kind, warmup=3, rounds=20)
    name = "constant_with_warmup" if kind == "constant" else kind
    theirs = get_scheduler(name, torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 1.0), 3, 20)
    for number in range(1, 21):
        expected = number / 4 if number <= 3 else theirs.lr_lambdas[0](number - 1)
        assert schedule.factor(number) == pytest.approx(expected, abs=1e-14)
    assert schedule.factor(40) == (1.0 if kind == "constant" else pytest.approx(0.0, abs=1e-30))


def test_in_a_recipe_a_name_or_a_table(tmp_path):
    recipe = read_recipe("quickstart-ferret", ["method.training.schedule=cosine", "rounds=9"])
    assert recipe.method.training.schedule == Schedule(kind="cosine", rounds=9)
    again = tmp_path / "again.toml"
    again.write_text(recipe.to_toml())
    assert read_recipe(again) == recipe
    table = read_recipe(
        "small-feedsign", ["method.schedule.kind=linear", "method.schedule.warmup=10"]
    )
    assert table.method.schedule.rounds == table.rounds
    with pytest.raises(
        RecipeError, match=r"method.schedule = 'square': input should be 'constant', 'linear'"
    ):
        read_recipe("small-feedsign", ["method.schedule=square"])
    with pytest.raises(RecipeError, match=r"schedule.warmup = 3: fewer than the run's rounds, 3"):
        read_recipe(
            "small-feedsign",
            ["method.schedule.kind=linear", "method.schedule.warmup=3", "rounds=3"],
        )


METHODS = {
    "fedkseed-from-base": FedKSeed(
        **QUICK, candidates=64, steps=5, small_steps="from-base", schedule=COSINE
    ),
    "feedsign-from-base": FeedSign(
        **QUICK, schedule=COSINE, small_steps="from-base", basis="hadamard"
    ),
    "mezo-adam": MeZO(**QUICK, schedule=COSINE, optimizer="adam"),
    "fedavg": FedAvg(training=LocalTraining(learning_rate=0.1, steps=3, schedule=COSINE)),
}


@pytest.mark.parametrize("name", mark(METHODS, lambda name: name == "fedkseed-from-base"))
def test_a_run_that_stops_and_goes_on_and_a_replay_find_the_same_rates(name, tmp_path, quickly):
    method, settings = (
        METHODS[name],
        {"rounds": 6, "evaluate_every": 3, "clients": 1 if "mezo-" in name else 3},
    )
    whole = federation(method, out=tmp_path / "whole", **settings).run().summary
    stop_after(federation(method, out=tmp_path / "part", **settings), 4)
    resumed = federation(method, out=tmp_path / "part", **settings).run(resume=True).summary
    assert resumed["weights_digest"] == whole["weights_digest"]
    plain = method.model_copy(
        update={"training": method.training.model_copy(update={"schedule": None})}
        if hasattr(method, "training")
        else {"schedule": None}
    )
    assert federation(plain, **settings).run().summary["weights_digest"] != whole["weights_digest"]
    if (tmp_path / "whole" / "model.orbit").exists():
        orbit = Orbit.open(tmp_path / "whole" / "model.orbit")
        assert lasting(method, 6) == orbit.header.method
        assert orbit.replay(model()) == whole["weights_digest"]
