"""Whole runs over the transport in memory: the conversation is the same, whatever carries the
bytes.
"""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedseed import Orbit, ParameterSpace
from fedseed.federation.client.worker import Worker
from fedseed.federation.control import LINE_FIELDS
from fedseed.federation.messages import Message
from fedseed.orbit import NO_DIGEST
from fedseed.recipe.settings import Recipe
from fedseed.runs.network import coordinate
from fedseed.transport.memory import Hub, MemoryEnd
from support import problem as problems
from support.heard import Ending
from support.network import federation_of, repeats
from support.parts import part_of
from support.problem import STEPS, Problem
from support.tiers import tiered
from support.together import LOADING, Together

pytestmark = pytest.mark.usefixtures("quickly")

METHODS = {
    **problems.METHODS,
    "topk": {"name": "topk", "share": 0.1, "training": STEPS},
    "sign": {"name": "sign", "training": STEPS},
    "fedkseed-cosine": {
        "name": "fedkseed",
        "candidates": 64,
        "steps": 6,
        "learning_rate": 1e-2,
        "batch": 8,
        "schedule": {"kind": "cosine", "warmup": 2},
    },
}


def recipe(name, **more):
    federation = {"joint": False, "dead_after": 30.0, **more.pop("federation", {})}
    common = {"seed": 3, "rounds": 6, "evaluation": {"every": 2}}
    return Recipe.model_validate(
        {**common, "method": METHODS[name], "federation": federation, **more}
    )


class Clients(Together):
    """Processes of clients of the small problem at a hub: of each group of names one."""

    def __init__(self, checked, problem, *groups, **more):
        self.hub = Hub()
        super().__init__(checked, lambda: self.hub.transport("run"))
        self.problem, self.more = problem, more
        for names in groups or (["client-0", "client-3"], ["client-[124]"]):
            self.hosting(*names)

    def ended(self, expected, out, progress=None):
        """The coordinator's result, whose weights are everybody's, and those of the run in one
        process.
        """
        result = self.coordinate(out, progress)
        assert (
            self.wait()
            == {expected.summary["weights_digest"]}
            == {result.summary["weights_digest"]}
        )
        return result

    def hosting(self, *names):
        def load():
            with LOADING:
                return part_of(federation_of(self.problem, self.checked, **self.more), names)

        self.host(names, load)


@tiered(
    {"method": METHODS, "largest": [None, 200]},
    quick=2,
    slow=lambda method, largest: method in ("fedadam", "fedsgd", "fedkseed-cosine"),
)
def test_the_result_is_that_of_one_process(
    method, largest, problem, tmp_path, in_process, monkeypatch
):
    if largest is not None:
        monkeypatch.setattr(MemoryEnd, "largest", largest)  # nearly everything becomes a blob
    checked = recipe(method)
    expected = in_process(problem, checked.model_dump(exclude_none=True))
    result = Clients(checked, problem).ended(expected, tmp_path / "run")
    for key in ("clients", "loss"):
        assert [line.get(key) for line in result.metrics[1:]] == [
            line.get(key) for line in expected.metrics[1:]
        ]
    assert repeats(result.summary["refusals"]) and result.summary["repeated_rounds"] == 0
    assert result.summary["exchanged"] == pytest.approx(expected.summary["exchanged"])
    assert result.summary["parameters_exchanged"] > 0 or method == "feedsign"
    assert {name for line in result.metrics for name in line} - LINE_FIELDS == set(
        expected.summary["final"]
    )


def enlarged(worker, message, kind):
    """Far from what the others send, but finite."""
    about = Message.decode(message)
    update = worker.method.decode_update(worker.state, about.round, about.payload)
    payload = replace(update, data=np.full(worker.space.size, 1e5, dtype="<f4").tobytes()).encode()
    return replace(about, payload=payload).encode()


def test_what_is_out_of_all_proportion_is_left_out_as_in_one_process(
    problem, tmp_path, monkeypatch
):
    """One of five by the others, though a round needs five answers."""
    monkeypatch.setattr(Worker, "corrupt", enlarged)
    asked = {"per_round": 5, "minimum": 5}
    checked = recipe("fedadam", federation=asked, bounds={"proportion": 50.0})
    attack = {"attack": "noise", "attackers": [4]}
    torch.set_num_threads(1)
    expected = problem.federation(
        checked.method, rounds=6, seed=3, joint=False, per_round=5, **attack
    ).run()
    result = Clients(checked, problem, **attack).ended(expected, tmp_path / "run")
    for key, count in (("refused", 6), ("not_taken", 0)):
        assert result.summary[key] == expected.summary[key] == count
    (counted,) = result.summary["refusals"].values()
    assert (
        all("bounds.proportion = 50" in reason for reason in counted) and sum(counted.values()) == 6
    )


class Validated(Problem):
    """With validation examples, that a network's client evaluates on."""

    def federation(self, method, **settings):
        return super().federation(
            method, evaluation={"": self.test, "validation_": self.test[:40]}, **settings
        )


@pytest.mark.long
def test_a_run_stops_early_where_one_process_does(tmp_path):
    """Rates far below a weight's last place bring no better loss.

    One coordinator fails when it has made a log, before the first entry, and one just before the
    end."""
    problem, method = Validated(), METHODS["feedsign"] | {"learning_rate": 1e-30}
    checked = recipe("feedsign", rounds=9, stopping={"patience": 2}, method=method)
    expected = problem.federation(
        checked.method, rounds=9, per_round=5, joint=False, patience=2
    ).run()
    clients = Clients(checked, problem, ["client-*"])
    asyncio.run(asyncio.run(clients.way().coordinator()).writer(None))
    with pytest.raises(KeyboardInterrupt):
        coordinate(checked, "run", clients.way(), tmp_path / "run", progress=Ending(4))
    result = clients.ended(expected, tmp_path / "run")
    assert result.summary["rounds"] == expected.summary["rounds"] == 4
    assert result.summary["stopped"] == expected.summary["stopped"]
    assert result.summary["stopped"]["early"] and result.summary["stopped"]["best_round"] == 0


@pytest.mark.long
def test_weights_are_hashed_as_the_recipe_says(problem, tmp_path, in_process, monkeypatch):
    """By its kind of digest, and after the rounds that it names: nobody hashes anything after the
    others.
    """
    settings = {"model": {"digest": "blake2b-tree"}, "evaluation": {"every": 3, "digest_every": 2}}
    checked = recipe("ferret", **settings)
    expected = in_process(problem, checked.model_dump(exclude_none=True))
    counted = []
    digest = ParameterSpace.digest
    monkeypatch.setattr(
        ParameterSpace, "digest", lambda self: counted.append(self.digest_kind) or digest(self)
    )
    result = Clients(checked, problem).ended(expected, tmp_path)
    found = [line["weights_digest"] for line in result.metrics]
    assert found == [line["weights_digest"] for line in expected.metrics]
    assert [digest is not None for digest in found] == [True, False, True, True, True, False, True]
    assert counted == ["blake2b-tree"] * 2 * 5  # by each of two processes
    orbit = Orbit.open(tmp_path / "model.orbit")
    assert [r.digest for r in orbit.records] == [digest or NO_DIGEST for digest in found[1:]]
    assert orbit.replay(problem.model(), check_all=True) == result.summary["weights_digest"]
