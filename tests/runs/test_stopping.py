import math
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseed import FedAvg, FeedSign
from fedseed.errors import RecipeError
from fedseed.recipe.reading import read_recipe
from fedseed.runs.assembly import build
from fedseed.runs.loop import Run
from support.heard import Heard
from support.left import StoppedError, before
from support.problem import Problem
from support.tiers import SLOW

PROBLEM = Problem()
METHODS = {  # an orbit a round, an orbit by the step, whole weights
    "ferret": PROBLEM.ferret(directions=10),
    "feedsign": FeedSign(basis="rademacher", learning_rate=1e-2, scale=1e-3, batch=4),
    "fedavg": FedAvg(training=PROBLEM.training.model_copy(update={"steps": 1})),
}


def scripted(out, method, losses, killed=None, place=None, **settings):
    """A federation whose validation loss after each round is given.

    `killed` in a round, at a place.
    """
    at = {}
    federation = PROBLEM.federation(
        METHODS[method],
        out=out,
        evaluation=lambda model: {"loss": 1.0, "validation_loss": losses[at["round"]]},
        **settings,
    )

    def wrap(owner, name, known):
        def note(*arguments):
            at["round"] = known(*arguments)
            if (at["round"], name) == (killed, place):
                raise StoppedError

        before(owner, name, note)

    wrap(federation.coordinator, "open", lambda number, *_: number)
    wrap(federation, "publish", lambda step, line: line.round)  # the step is lost
    # the step counts, its line is lost
    wrap(federation, "examine", lambda line, evaluate: line.round)
    return federation


def expected_end(rounds, every, patience, losses):
    """The last round of a run, by counting."""
    best, waited = math.inf, 0
    for number in range(rounds + 1):
        if number % every and number != rounds:
            continue
        loss = math.inf if math.isnan(losses[number]) else losses[number]
        waited = 0 if number == 0 or loss < best else waited + 1
        best = min(best, loss)
        if waited >= patience:
            return number
    return rounds


LOSSES = st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0, math.nan]), min_size=13, max_size=13)


@pytest.mark.long
@settings(max_examples=40 if SLOW else 6)
@given(
    method=st.sampled_from(sorted(METHODS)),
    rounds=st.integers(1, 12),
    every=st.integers(1, 14),
    patience=st.integers(1, 5),
    losses=LOSSES,
    killed=st.integers(0, 12),
    place=st.sampled_from(["open", "publish", "examine"]),
)
def test_any_patience_ends_with_a_summary_and_a_killed_run_where_a_whole_one_ends(
    method, rounds, every, patience, losses, killed, place, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("run")
    settings = {
        "rounds": rounds,
        "evaluate_every": every,
        "patience": patience,
        "losses": losses,
        "method": method,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "draw", lambda self, folder, metrics: None)
        whole = scripted(folder / "whole", **settings).run()
        summary, end = whole.summary, expected_end(rounds, every, patience, losses)
        assert summary["rounds"] == end and summary["stopped"]["early"] == (end < rounds)
        assert end % every == 0 or end == rounds  # the model at the end was evaluated
        last = whole.metrics[-1]
        assert summary["final"] == {
            "loss": last["loss"],
            "validation_loss": last["validation_loss"],
        } or math.isnan(last["validation_loss"])
        try:
            again = scripted(folder / "again", **settings, killed=killed, place=place).run()
        except StoppedError:
            again = scripted(folder / "again", **settings).run(resume=True)
        assert (
            again.summary["rounds"] == end
            and again.summary["weights_digest"] == summary["weights_digest"]
        )
        assert str(again.summary["stopped"]) == str(summary["stopped"])
        assert [line["round"] for line in again.metrics] == [
            line["round"] for line in whole.metrics
        ]
        assert again.summary["exchanged"] == pytest.approx(summary["exchanged"])
    shutil.rmtree(folder)


def test_a_run_that_was_to_be_longer_has_the_metrics_of_its_last_evaluation(
    tmp_path, without_pictures
):
    losses = [5.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.25]
    settings = {"method": "ferret", "losses": losses, "evaluate_every": 2}
    with pytest.raises(StoppedError):
        scripted(tmp_path / "run", rounds=6, killed=4, place="open", **settings).run()
    summary = scripted(tmp_path / "run", rounds=3, **settings).run(resume=True).summary
    assert summary["rounds"] == 3 and summary["final"]["validation_loss"] == 3.0  # of round 2


def test_what_there_is_nothing_to_stop_by_is_said(problem):
    federation = problem.federation(problem.ferret(), patience=2)
    with pytest.raises(
        RecipeError,
        match='stopping: patience = 2, but the evaluation does not measure "validation_loss"',
    ):
        federation.run()


@pytest.mark.long
def test_a_recipe_stops_by_validation_examples(natural_instructions):
    tiny = (
        "rounds=9",
        "task.examples=5",
        "task.evaluation=1",
        "task.unseen=0",
        "task.validation=1",
        "evaluation.rouge=false",
        "evaluation.every=1",
        "method.learning_rate=1e-12",
        "stopping.patience=2",
    )
    summary = build(read_recipe("small-fedkseed", (*tiny, "method.steps=1"))).run().summary
    assert summary["rounds"] < 9 and summary["stopped"]["early"]
    assert "validation_loss" in summary["final"]
    with pytest.raises(RecipeError, match=r"stopping: task\.name"):
        words = (
            "task.name=natural-instructions",
            f"task.path={natural_instructions()}",
            "stopping.patience=2",
        )
        build(
            read_recipe("published-fedkseed", ("model.base=small", "model.dtype=float32", *words))
        )


@pytest.mark.parametrize(
    ("rate", "every", "at"),
    [(1e-9, 1, 2), (1e-9, 6, 6), (1e-2, 1, None)],
    ids=["too small", "later", "right"],
)
def test_a_run_that_stands_still_says_so_once(rate, every, at):
    heard = Heard()
    method = METHODS["feedsign"].model_copy(update={"learning_rate": rate})
    PROBLEM.federation(method, rounds=20, evaluate_every=every, progress=heard).run()
    said = [text for text in heard.warnings if "the loss has hardly moved" in text]
    assert [text.partition(":")[0] for text in said] == ([] if at is None else [f"round {at}"])
    assert all("method.learning_rate = 1e-09 is too small" in text for text in said)
