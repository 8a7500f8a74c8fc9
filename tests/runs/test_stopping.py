import math
import shutil

import pytest

from fedseed.errors import RecipeError
from fedseed.reports.results import read_metrics
from fedseed.runs import stopping
from fedseed.runs.assembly import build
from fedseed.runs.recipe import read_recipe


def lines(*losses):
    return [{"round": i, **({} if loss is None else {"validation_loss": loss})} for i, loss in enumerate(losses)]


def test_patience_counts_rounds_since_the_best_one():
    assert not stopping.over([], 2) and not stopping.over(lines(1.0), 2)
    assert not stopping.over(lines(3.0, 2.0, 2.5), 2)
    assert stopping.over(lines(3.0, 2.0, 2.5, 2.0), 2)  # as good is not better
    assert not stopping.over(lines(3.0, 2.0, 2.5, 1.9), 2)
    assert stopping.over(lines(3.0, None, None, 3.1), 2)  # rounds without an evaluation count
    assert stopping.over(lines(3.0, math.nan, math.nan), 2)
    assert not stopping.over(lines(3.0, 3.0, 3.0), None)
    assert stopping.best(lines(3.0, 2.0, None, 2.0)) == (1, 2.0)
    assert stopping.describe(lines(3.0, 2.0, 2.5, 2.0), 2) == {
        "early": True, "best_round": 1, "best_validation_loss": 2.0,
    }  # fmt: skip


def problem(make_problem, validation):
    made = make_problem()
    calls = iter(validation)
    return made, lambda model: {"loss": 1.0, "validation_loss": next(calls)}


def test_a_run_stops_and_a_resumed_one_stops_there_too(make_problem, tmp_path):
    losses = [3.0, 2.0, 2.5, 2.6, 2.7, 2.8]

    def federation(out, values):
        made, evaluation = problem(make_problem, values)
        return made.federation(made.ferret(), out=out, rounds=30, evaluate_every=1, evaluation=evaluation, patience=3)

    whole = federation(tmp_path / "whole", losses).run().summary
    assert whole["rounds"] == 4
    assert whole["stopped"] == {"early": True, "best_round": 1, "best_validation_loss": 2.0}
    assert len(read_metrics(tmp_path / "whole")) == 5
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    (tmp_path / "again" / "summary.json").unlink()  # killed just before the end
    again = federation(tmp_path / "again", []).run(resume=True).summary
    assert again["rounds"] == 4 and again["weights_digest"] == whole["weights_digest"]


def test_a_recipe_stops_by_validation_examples(natural_instructions):
    tiny = ("rounds=9", "task.examples=5", "task.evaluation=1", "task.unseen=0", "task.validation=1",
            "evaluation.rouge=false", "evaluation.every=1", "method.learning_rate=1e-12",
            "stopping.patience=2")  # fmt: skip
    summary = build(read_recipe("small-fedkseed", (*tiny, "method.steps=1"))).run().summary
    assert summary["rounds"] < 9 and summary["stopped"]["early"]
    assert "validation_loss" in summary["final"]
    with pytest.raises(RecipeError, match=r"stopping: task\.name"):
        words = ("task.name=natural-instructions", f"task.path={natural_instructions()}", "stopping.patience=2")
        build(read_recipe("published-fedkseed", ("model.base=small", "model.dtype=float32", *words)))
