"""Small steps in whole runs: what is lost is said and written down, what is kept is the same anywhere."""

import json

import pytest
import torch

from fedseed import FedAvg, Federation, FedMeZO, FedZO
from fedseed.errors import RecipeError
from fedseed.runs.recipe import read_recipe
from fedseed.training.settings import LocalTraining
from support.heard import Heard

pytestmark = pytest.mark.usefixtures("without_pictures")

SLOW_STEPS = {"learning_rate": 2e-3, "batch": 8, "accumulation": 2, "steps": 10}


@pytest.mark.parametrize("name", ["fedavg", "ferret"])
def test_a_run_says_once_how_many_weights_moved(name, make_problem, tmp_path, without_pictures):
    problem, training = make_problem(torch.bfloat16), LocalTraining(**SLOW_STEPS, small_steps="nearest")
    method = FedAvg(training=training)
    if name == "ferret":
        method = problem.ferret(training=training, allocation="previous")
    heard = Heard()
    result = problem.federation(method, rounds=3, out=tmp_path / "run", progress=heard).run()
    share = result.metrics[1]["weights_moved"]
    assert 0 < share < 0.5 and not any("weights_moved" in line for line in (result.metrics[0], *result.metrics[2:]))
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1])["weights_moved"] == share
    [text] = [text for text in heard.warnings if "16-bit weights moved" in text]
    assert text.startswith(f"round 1: {share:.2%} of the 16-bit weights moved in a client's local training")
    assert all(word in text for word in ("method.training.small_steps", '"master"', '"stochastic"'))
    heard = Heard()  # it is said of the first round only, not again after an interruption
    problem.federation(method, rounds=3, out=tmp_path / "run", progress=heard).run(True)
    assert not any("16-bit weights moved" in text for text in heard.warnings)


@pytest.mark.parametrize("kind", ["fedzo", "fedmezo"])
def test_averages_of_zeroth_order_clients_keep_small_steps_too(kind, make_problem):
    """Rounded to nearest at the coordinator, an average of few clients that moved would be what it was."""

    def moved(small_steps):
        problem = make_problem(torch.bfloat16)
        common = {"learning_rate": 1e-5, "batch": 8, "steps": 5, "small_steps": small_steps}
        method = FedZO(**common) if kind == "fedzo" else FedMeZO(**common, travel="tensors")
        federation = problem.federation(method, rounds=1, per_round=5)
        before = federation.worker.space.snapshot()
        federation.run()
        after = federation.worker.space.parameters
        return sum(int((a != b).sum()) for a, b in zip(before, after, strict=True)) / federation.worker.space.size

    assert moved("stochastic") > 3 * moved("nearest") > 0


def test_autocast_needs_float32_weights():
    few = ["rounds=1", "task.clients=2", "task.families_per_client=1", "federation.per_round=2"]
    for name, dtype, key in (("fedavg", "float16", "method.training"), ("feedsign", "bfloat16", "method")):
        with pytest.raises(RecipeError, match=rf"{key}\.autocast .*{dtype} already"):
            Federation.from_file(f"small-{name}", [*few, f"model.dtype={dtype}", f"{key}.autocast=bfloat16"])
    with pytest.raises(RecipeError, match=r"method\.training.*loss_scale = 4 needs small_steps"):
        read_recipe("small-fedavg", ["method.training.loss_scale=4"])
    assert read_recipe("small-fedavg", ["method.training.small_steps=master"]).method.training.small_steps == "master"
