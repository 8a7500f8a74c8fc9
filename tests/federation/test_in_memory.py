"""Whole runs over the transport in memory: the conversation is the same, whatever carries the bytes."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedseed import Orbit, ParameterSpace
from fedseed.federation.control import LINE_FIELDS
from fedseed.federation.messages import Message
from fedseed.federation.worker import Worker
from fedseed.orbit import NO_DIGEST
from fedseed.runs.network import coordinate
from fedseed.runs.recipe import Recipe
from fedseed.transport.memory import Hub, MemoryClient, MemoryEnd
from support import problem as problems
from support.heard import Ending, Heard
from support.network import repeats
from support.parts import part_of
from support.problem import STEPS, Problem
from support.tiers import tiered
from support.together import LOADING, Together

pytestmark = pytest.mark.usefixtures("quickly")

METHODS = {
    **problems.METHODS,
    "topk": {"name": "topk", "share": 0.1, "training": STEPS},
    "sign": {"name": "sign", "training": STEPS},
    "fedkseed-cosine": {"name": "fedkseed", "candidates": 64, "steps": 6, "learning_rate": 1e-2, "batch": 8,
                        "schedule": {"kind": "cosine", "warmup": 2}},
}  # fmt: skip


def recipe(method, **more):
    federation = {"joint": False, "dead_after": 30.0, **more.pop("federation", {})}
    return Recipe.model_validate(
        {
            "seed": 3,
            "rounds": 6,
            "evaluation": {"every": 2},
            "method": METHODS[method],
            "federation": federation,
            **more,
        }
    )


class Clients(Together):
    """Processes of clients of the small problem at a hub."""

    def __init__(self, checked, hub, problem, **more):
        super().__init__(checked, lambda: hub.transport("run"))
        self.problem, self.more = problem, more

    def hosting(self, *names):
        def load():
            with LOADING:
                federation = self.problem.federation(
                    self.checked.method, rounds=self.checked.rounds, seed=self.checked.seed, joint=False,
                    per_round=self.checked.federation.count(5), digest=self.checked.model.digest, **self.more,
                )  # fmt: skip
                return part_of(federation, names)

        self.host(names, load)


@tiered(
    {"method": METHODS, "largest": [None, 200]},
    quick=2,
    slow=lambda method, largest: method in ("fedadam", "fedsgd", "fedkseed-cosine"),
)
def test_the_result_is_that_of_one_process(method, largest, problem, tmp_path, in_process, monkeypatch):
    if largest is not None:
        monkeypatch.setattr(MemoryEnd, "largest", largest)  # nearly everything becomes a blob
    checked, hub = recipe(method), Hub()
    expected = in_process(problem, checked.model_dump(exclude_none=True))
    clients = Clients(checked, hub, problem)
    clients.hosting("client-0", "client-3")
    clients.hosting("client-[124]")
    result = clients.coordinate(tmp_path / "run")
    assert clients.wait() == {expected.summary["weights_digest"]} == {result.summary["weights_digest"]}
    assert [line["clients"] for line in result.metrics[1:]] == [line["clients"] for line in expected.metrics[1:]]
    assert [line["loss"] for line in result.metrics if "loss" in line] == [
        line["loss"] for line in expected.metrics if "loss" in line
    ]
    assert repeats(result.summary["refusals"]) and result.summary["repeated_rounds"] == 0
    assert result.summary["exchanged"] == pytest.approx(expected.summary["exchanged"])
    assert result.summary["parameters_exchanged"] > 0 or method == "feedsign"


def enlarged(worker, message, kind):
    """Far from what the others send, but finite."""
    about = Message.decode(message)
    update = worker.method.decode_update(worker.state, about.round, about.payload)
    payload = replace(update, data=np.full(worker.space.size, 1e5, dtype="<f4").tobytes()).encode()
    return replace(about, payload=payload).encode()


def test_what_is_out_of_all_proportion_is_left_out_as_in_one_process(problem, tmp_path, monkeypatch):
    """One of five by the others, though a round needs five answers."""
    monkeypatch.setattr(Worker, "corrupt", enlarged)
    asked = {"per_round": 5, "minimum": 5}
    checked, hub = recipe("fedadam", federation=asked, bounds={"proportion": 50.0}), Hub()
    attack = {"attack": "noise", "attackers": [4]}
    torch.set_num_threads(1)
    federation = problem.federation(
        checked.method, rounds=6, seed=3, joint=False, per_round=asked["per_round"], **attack
    )
    expected = federation.run()
    clients = Clients(checked, hub, problem, **attack)
    clients.hosting("client-0", "client-3")
    clients.hosting("client-[124]")
    told = Heard()
    result = clients.coordinate(tmp_path / "run", progress=told)
    assert clients.wait() == {expected.summary["weights_digest"]} == {result.summary["weights_digest"]}
    for key, count in (("refused", 6), ("not_taken", 0)):
        assert result.summary[key] == expected.summary[key] == count
    (counted,) = result.summary["refusals"].values()
    assert all("bounds.proportion = 50" in reason for reason in counted) and sum(counted.values()) == 6


class Validated(Problem):
    """With validation examples, that a network's client evaluates on."""

    def federation(self, method, **settings):
        return super().federation(method, evaluation={"": self.test, "validation_": self.test[:40]}, **settings)


@pytest.mark.long
def test_a_run_stops_early_where_one_process_does(tmp_path, name="feedsign"):
    """Rates far below a weight's last place bring no better loss. One coordinator fails just before the end."""
    problem, hub = Validated(), Hub()
    method = METHODS[name] | {"learning_rate": 1e-30}
    checked = recipe(name, rounds=9, stopping={"patience": 2})
    checked = Recipe.model_validate(checked.model_dump(exclude_none=True) | {"method": method})
    expected = problem.federation(checked.method, rounds=9, per_round=5, joint=False, patience=2).run()
    clients = Clients(checked, hub, problem)
    clients.hosting("client-*")
    with pytest.raises(KeyboardInterrupt):
        coordinate(checked, "run", hub.transport("run"), tmp_path / "run", progress=Ending(4))
    result = clients.coordinate(tmp_path / "run")
    assert clients.wait() == {expected.summary["weights_digest"]} == {result.summary["weights_digest"]}
    assert result.summary["rounds"] == expected.summary["rounds"] == 4
    assert result.summary["stopped"] == expected.summary["stopped"]
    assert result.summary["stopped"]["early"] and result.summary["stopped"]["best_round"] == 0


@pytest.mark.long
def test_weights_are_hashed_as_the_recipe_says(problem, tmp_path, in_process, monkeypatch):
    """By its kind of digest, and after the rounds that it names: nobody hashes anything after the others."""
    settings = {"model": {"digest": "blake2b-tree"}, "evaluation": {"every": 3, "digest_every": 2}}
    checked, hub = recipe("ferret", **settings), Hub()
    expected = in_process(problem, checked.model_dump(exclude_none=True))
    counted = []
    digest = ParameterSpace.digest
    monkeypatch.setattr(ParameterSpace, "digest", lambda self: counted.append(self.digest_kind) or digest(self))
    clients = Clients(checked, hub, problem)
    clients.hosting("client-0", "client-3")
    clients.hosting("client-[124]")
    result = clients.coordinate(tmp_path)
    assert clients.wait() == {expected.summary["weights_digest"]} == {result.summary["weights_digest"]}
    found = [line["weights_digest"] for line in result.metrics]
    assert found == [line["weights_digest"] for line in expected.metrics]
    assert [digest is not None for digest in found] == [True, False, True, True, True, False, True]
    assert counted == ["blake2b-tree"] * 2 * 5  # by each of two processes
    orbit = Orbit.open(tmp_path / "model.orbit")
    assert [r.digest for r in orbit.records] == [digest or NO_DIGEST for digest in found[1:]]
    assert orbit.replay(problem.model(), check_all=True) == result.summary["weights_digest"]


POISON = [
    {"spent": {"counted": 10**400}}, {"spent": {"losses": 1e308, "counted": 1}}, {"spent": {"losses": math.nan}},
    {"spent": {"forward_passes": 10**4299}}, {"ratio": "x"}, {"metrics": {"seconds": 1.0}},
    {"metrics": {"loss": 0.0, "rounds": 0}}, {"metrics": {"round": 999999}}, {"by_client": {"client-0": {}}},
    {"round": 2**40}, {"digest": "\x1b[2J"}, {"at": 10**400}, {"epsilon": 0.0},
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("method", ["feedsign", "fedavg"])
def test_poisoned_reports_change_nothing(method, problem, tmp_path, in_process, monkeypatch):
    """Of the client with the lowest number, which is to evaluate, and says nothing else; also of one started again."""
    checked, hub, heard = recipe(method), Hub(), Heard()
    expected = in_process(problem, checked.model_dump(exclude_none=True))
    send, sent = MemoryClient.send, []

    async def poisoned(self, client, what, data):
        if what != "report" or client != "client-0":
            return await send(self, client, what, data)
        for poison in POISON:
            sent.append(poison)
            await send(self, client, what, json.dumps({**json.loads(data), **poison}).encode())

    monkeypatch.setattr(MemoryClient, "send", poisoned)
    clients = Clients(checked, hub, problem)
    clients.hosting("client-0")
    clients.hosting("client-[1234]")
    with pytest.raises(KeyboardInterrupt):
        coordinate(checked, "run", hub.transport("run"), tmp_path, progress=Ending(4))
    result = clients.coordinate(tmp_path, heard)
    assert clients.wait() == {expected.summary["weights_digest"]} == {result.summary["weights_digest"]}
    for name in ("round", "rounds", "loss"):
        assert [line.get(name) for line in result.metrics] == [line.get(name) for line in expected.metrics]
    assert result.summary["rounds"] == 6 and result.summary["final"] == expected.summary["final"]
    assert {name for line in result.metrics for name in line} - LINE_FIELDS == set(expected.summary["final"])
    refused = result.summary["refusals"]["client-0"]
    assert len(refused) >= len(POISON) and all(text.isprintable() and len(text) <= 200 for text in refused)
    assert all(text.startswith("report: ") for text in refused if "answered" not in text)
    assert len(sent) >= 2 * len(POISON) and any(
        "is refused: report: ratio: Input should be a valid number" in text for text in heard.warnings
    )
