"""One client sends what is huge but finite: it is refused, or the step is not taken, and the run
goes on.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedseed import FedAvg, FedKSeed, FedMeZO, FedSGD, ZOFedSGD
from fedseed.federation.coordinator.bounds import Bounds
from fedseed.federation.messages import Message
from fedseed.objectives.losses import Supervised
from fedseed.runs.assembly import Federation
from support.heard import Heard
from support.left import stop_after
from support.problem import TRAINING, Problem
from support.tiers import mark

ZEROTH = {"learning_rate": 1e-2, "batch": 8}
METHODS = {
    "ferret": Problem().ferret(),
    "fedadam": FedAvg(training=TRAINING, server="adam", global_rate=0.01),
    "fedsgd-momentum": FedSGD(learning_rate=0.1, batch=8, server="momentum"),
    "fedkseed": FedKSeed(**ZEROTH, candidates=64, steps=4),
    "zo-fedsgd-shared": ZOFedSGD(**ZEROTH, seeds="shared"),
    "fedmezo-tensors": FedMeZO(**ZEROTH, steps=4, travel="tensors"),
}


def changed(message, federation, change):
    """A client's message with other content."""
    about = Message.decode(message)
    update = federation.method.decode_update(federation.worker.state, about.round, about.payload)
    return replace(about, payload=change(update, federation).encode()).encode()


def all_at(value):
    """Every number of an update is this one."""

    def change(update, federation):
        if hasattr(update, "gammas"):
            return replace(
                update, gammas=tuple(np.full_like(gamma, value) for gamma in update.gammas)
            )
        if hasattr(update, "scalars"):
            return replace(update, scalars=np.full_like(update.scalars, value))
        return replace(
            update, data=np.full(federation.worker.space.size, value, dtype="<f4").tobytes()
        )

    return change


def far(update, federation):
    """Far from the others, but nothing that could not be."""
    value = 5e5
    if federation.method.name == "fedmezo" and hasattr(update, "scalars"):
        value *= federation.method.learning_rate
    return all_at(1e3 if hasattr(update, "gammas") else value)(update, federation)


def with_a_liar(problem, method, change, rounds_of_lies=range(1, 100), **settings):
    """A federation whose client 4 changes what it sends."""
    defaults = {"rounds": 3, "per_round": 5, "attack": "noise", "attackers": [4]}
    federation = problem.federation(method, **{**defaults, **settings})
    federation.worker.corrupt = lambda message, kind: (
        changed(message, federation, change)
        if Message.decode(message).round in rounds_of_lies
        else message
    )
    return federation


def without_it(problem, method, **settings):
    """The same, of which client 4 has nothing to send."""
    problem.clients[4] = []
    return problem.federation(method, **{"rounds": 3, "per_round": 5, **settings})


@pytest.mark.parametrize(
    "change", [all_at(3e38), pytest.param(far, marks=pytest.mark.slow)], ids=["huge", "far"]
)
@pytest.mark.parametrize(
    "name", mark(METHODS, lambda name: name not in ("fedadam", "fedkseed"), "long")
)
def test_the_others_go_on_as_if_it_had_sent_nothing(name, change, problem):
    method, told = METHODS[name], Heard()
    found = with_a_liar(problem, method, change, progress=told).run()
    expected = without_it(problem, method).run()
    assert found.summary["weights_digest"] == expected.summary["weights_digest"]
    assert found.summary["refused"] == 3 and found.summary["not_taken"] == 0
    assert sum("client-4 counts: refused" in text for text in told.warnings) == 3


def test_whoever_claims_all_the_weight_is_refused(problem):
    method = FedSGD(learning_rate=0.1, batch=8)
    told = Heard()
    federation = with_a_liar(
        problem, method, lambda update, _: replace(update, terms=2**32 - 1), progress=told
    )
    result = federation.run()
    assert (
        result.summary["weights_digest"]
        == without_it(problem, method).run().summary["weights_digest"]
    )
    assert (
        "bounds.claims" in told.warnings[0]
        and "bounds.claims" in result.metrics[-1]["skipped"][0]["reason"]
    )


# -- too few to outvote a liar: what counts are the steps before
# -----------------------------------------------------


def test_a_step_out_of_all_proportion_is_not_taken_whoever_is_asked(problem, tmp_path, quickly):
    """The same decisions after a restart, and nothing is kept of what was not taken."""

    def alone(out, **settings):
        """One client a round, all Byzantine, that lie in rounds 5 and 7 only."""
        settings |= {
            "rounds": 8,
            "per_round": 1,
            "attackers": range(5),
            "out": tmp_path / out,
            "evaluate_every": 8,
        }
        return with_a_liar(problem, METHODS["fedadam"], far, (5, 7), **settings)

    def at_the_end(result):
        return result.summary["weights_digest"], [line.get("not_taken") for line in result.metrics]

    told = Heard()
    whole = alone("whole", progress=told).run()
    assert [line["round"] for line in whole.metrics if "not_taken" in line] == [5, 7]
    assert whole.summary["not_taken"] == 2
    assert (
        sum(
            "the step was not applied: it is out of all proportion" in text
            for text in told.warnings
        )
        == 2
    )
    for last in (4, 5, 6):
        stop_after(alone(f"run-{last}"), last)
        assert at_the_end(alone(f"run-{last}").run(resume=True)) == at_the_end(whole)


def test_a_run_that_diverges_says_so():
    """Least squares at a rate that is far too high, of honest clients."""
    g = torch.Generator().manual_seed(1)
    data = [[(x, x.sum()) for x in torch.randn(20, 4, generator=g)] for _ in range(4)]
    torch.manual_seed(0)
    objective, told = Supervised(lambda out, y: (out[:, 0] - y).square()), Heard()
    method = FedAvg(training=TRAINING.model_copy(update={"learning_rate": 1.0}))
    settings = {
        "rounds": 25,
        "evaluation": {"": data[3]},
        "seed": 3,
        "bounds": Bounds(proportion="off"),
    }
    summary = (
        Federation(torch.nn.Linear(4, 1), data[:3], method, objective, progress=told, **settings)
        .run()
        .summary
    )
    assert summary["final"]["loss"] > 1e6 and summary["diverged"] == 1 and summary["rounds"] == 25
    said = [text for text in told.warnings if "the run has diverged" in text]
    assert len(said) == 1 and said[0].startswith(f"round {summary['diverged']}: ")
    # all are too large: that is nobody's lie, and a step that is not taken
    assert summary["not_taken"] > 0
