"""Runs over a Grid: the bits of a simulation, whatever becomes of the nodes' processes and of the nodes."""

import json

import pytest

pytest.importorskip("flwr", reason="Flower is missing: extra flower")

import threading

from fedseed import Orbit
from fedseed.errors import FedseedError
from fedseed.flower import client
from fedseed.flower.server import coordinate
from fedseed.reports.progress import Silent
from fedseed.runs.joining import part_of
from support.flower import Grid, told
from support.problem import TRAINING

METHODS = {
    "ferret": {"name": "ferret", "directions": 300, "basis": "hadamard", "blocks": "one", "seeds": "shared",
               "allocation": "previous", "training": TRAINING.model_dump(exclude_none=True)},
    "feedsign": {"name": "feedsign", "basis": "rademacher", "learning_rate": 1e-2, "batch": 8},
    "fedkseed": {"name": "fedkseed", "basis": "hadamard", "basis_size": 64, "candidates": 64, "steps": 6,
                 "learning_rate": 1e-2, "scale": 1e-3, "batch": 8, "importance": True},
    "fedadam": {"name": "fedavg", "server": "adam", "global_rate": 0.01,
                "training": TRAINING.model_dump(exclude_none=True)},
    "fedmezo": {"name": "fedmezo", "travel": "tensors", "personal": "update", "steps": 4, "learning_rate": 1e-2,
                "batch": 8},
}  # fmt: skip
NAMES = [f"client-{number}" for number in range(5)]
PAIR = [{"client": "client-0,client-3"}, {"client": "client-[124]"}]
VIRTUAL = [{"partition-id": number, "num-partitions": 3} for number in range(3)]

pytestmark = pytest.mark.usefixtures("quickly")


def written(folder, method, **more):
    """The recipe's file, and what is in it."""
    import tomli_w

    federation = {"joint": False, "deadline": 30.0, **more.pop("federation", {})}
    recipe = {"seed": 3, "rounds": 6, "evaluation": {"every": 2}, "method": METHODS[method], **more}
    recipe["federation"] = federation
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(recipe))
    return path, recipe


def grid(path, problem, recipe, out, configs=PAIR, **more):
    from fedseed.runs.recipe import Recipe

    checked = Recipe.model_validate(recipe)

    def load(names):
        federation = problem.federation(
            checked.method, rounds=checked.rounds, seed=checked.seed, joint=False,
            per_round=checked.federation.count(5), digest=checked.model.digest,
        )  # fmt: skip
        return part_of(federation, names or ["*"])

    return Grid(configs, path, load, run_config={"out": str(out)}, **more)


class Said(Silent):
    """Notes what is said."""

    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)

    warn = note


def run(grid, path):
    said = Said()
    return coordinate(grid, grid.context, path, said), said.lines


@pytest.mark.parametrize("processes", [True, False], ids=["a process a message", "an actor"])
@pytest.mark.parametrize("method", METHODS)
def test_the_result_is_that_of_one_process(method, processes, problem, tmp_path, in_process):
    """Nodes of two clients each with weights made anew from their steps, or three in turn in one process."""
    path, recipe = written(tmp_path, method)
    expected = in_process(problem, recipe)
    over = grid(path, problem, recipe, tmp_path / "run", PAIR if processes else VIRTUAL, processes=processes)
    result, _ = run(over, path)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["weights_digest"] == expected.summary["weights_digest"]
    assert result.summary == summary
    assert [line["weights_digest"] for line in result.metrics] == [line["weights_digest"] for line in expected.metrics]
    for key in ("payload_bytes_up", "payload_bytes_down", "forward_passes", "baseline", "final", "exchanged"):
        assert summary[key] == expected.summary[key], key
    carried = summary["flower"]
    assert carried["bytes_up"] > summary["payload_bytes_up"] * 5 and carried["messages"] == 2 * len(over.answered)
    if method in ("ferret", "feedsign", "fedkseed"):
        orbit = Orbit.open(tmp_path / "run" / "model.orbit")
        assert orbit.complete and orbit.replay(problem.model()) == summary["weights_digest"]


def test_a_node_that_has_lost_its_state_is_sent_all_steps(problem, tmp_path, in_process):
    path, recipe = written(tmp_path, "ferret")
    expected = in_process(problem, recipe)
    over = grid(path, problem, recipe, tmp_path / "run")
    since = []

    def at(node, message):
        if node.number == 11 and message.metadata.message_type == "train":
            since.append(told(message)["since"])
            if len(since) == 4:
                node.forget()

    over.at = at
    result, _ = run(over, path)
    assert result.summary["weights_digest"] == expected.summary["weights_digest"]
    assert since == [0, 1, 2, 3, 0, 4, 5]
    assert result.summary["skipped"] == 0


def test_a_node_whose_weights_differ_begins_again(problem, tmp_path, in_process):
    import torch

    path, recipe = written(tmp_path, "ferret")
    expected = in_process(problem, recipe)
    over = grid(path, problem, recipe, tmp_path / "run", [{"client": f"client-{n}"} for n in range(5)], processes=False)

    def at(node, message):
        kind, body = message.metadata.message_type, told(message)
        if node.number == 12 and kind == "evaluate" and body["at"] == 6:
            for key, site in client._SITES.items():
                if key[1] == ("client-1",):
                    with torch.no_grad():
                        site.hosted.worker.space.parameters[0].view(-1)[0] += 1
                        site._digest = None

    over.at = at
    result, said = run(over, path)
    assert result.summary["weights_digest"] == expected.summary["weights_digest"]
    assert result.summary["drifted"] == ["client-1"]
    assert any("client-1: other weights" in line for line in said)


def test_a_round_goes_on_without_a_node_that_fails_or_has_gone(problem, tmp_path):
    path, recipe = written(tmp_path, "ferret", federation={"deadline": 1.5}, rounds=3, evaluation={"every": 3})
    over = grid(path, problem, recipe, tmp_path / "run")

    def at(node, message):
        if node.number == 12 and message.metadata.message_type == "train":
            number = message.metadata.group_id
            if number == "1":
                return "the disk is\nfull"
            if number == "2":
                return "lost"
        return None

    over.at = at
    result, said = run(over, path)
    skipped = {(s["client"], s["reason"]) for line in result.metrics for s in line.get("skipped", ())}
    assert {name for name, _ in skipped} <= {"client-1", "client-2", "client-4"}
    assert {reason for _, reason in skipped} == {"Flower reports: the disk is full", "no answer before the deadline"}
    assert any("counts: Flower reports: the disk is full" in line for line in said)
    assert result.summary["rounds"] == 3


def test_updates_that_are_not_valid_are_refused_and_counted(problem, tmp_path, monkeypatch):
    path, recipe = written(tmp_path, "ferret", rounds=2)
    over = grid(path, problem, recipe, tmp_path / "run", [{"client": f"client-{n}"} for n in range(5)])
    train = client.Site.train

    def lying(self, asked):
        found = train(self, asked)
        if list(asked["clients"]) == ["client-2"]:
            found["updates"] = [found["updates"][0][:-1] + b"?"]
        return found

    monkeypatch.setattr(client.Site, "train", lying)
    result, _ = run(over, path)
    refused = [s for line in result.metrics for s in line.get("skipped", ())]
    taken = sum("client-2" in line.get("clients", ()) for line in result.metrics)
    assert taken and result.summary["refused"] == len(refused) == taken
    assert all("checksum differs" in s["reason"] and s["client"] == "client-2" for s in refused)


class Failing(Silent):
    """Ends a ServerApp after a round."""

    def __init__(self, number):
        self.number = number

    def round(self, line):
        if line.round == self.number:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["ferret", "fedadam"])
def test_an_interrupted_run_goes_on_in_its_folder(method, problem, tmp_path, in_process):
    path, recipe = written(tmp_path, method)
    expected = in_process(problem, recipe)
    over = grid(path, problem, recipe, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        coordinate(over, over.context, path, Failing(3))
    second = grid(path, problem, recipe, tmp_path / "run")  # Flower keeps nothing from one run to the next
    result, said = run(second, path)
    assert "resumed after round 3 of 6" in said
    assert result.summary["weights_digest"] == expected.summary["weights_digest"]
    assert [line["round"] for line in result.metrics] == list(range(7))
    asked = len(second.answered)
    _, said = run(second, path)
    assert any("is finished" in line for line in said) and len(second.answered) == asked


def test_who_comes_is_checked_and_late_ones_catch_up(problem, tmp_path, in_process):
    """Another recipe's node, one for a client that there is not, and two for one client; then the one that fits."""
    path, recipe = written(tmp_path, "ferret")
    expected = in_process(problem, recipe)
    configs = [*PAIR, {"client": "client-1"}, {"client": "client-9"}, {"node": 1}]
    over = grid(path, problem, recipe, tmp_path / "run", configs)
    over.nodes[12].there = False
    calm = threading.Event()

    class Waiting(Said):
        def note(self, text):
            super().note(text)
            if "to come: client-2" in text and not calm.is_set():
                calm.set()
                over.nodes[13].there = False  # it has come first, and leaves
                over.nodes[12].there = True

        warn = note

    said = Waiting()
    result = coordinate(over, over.context, path, said)
    assert calm.is_set() and result.summary["weights_digest"] == expected.summary["weights_digest"]
    refusals = [line for line in said.lines if "takes no part" in line]
    assert any("node 14 takes no part: --client client-9: the recipe's clients are" in line for line in refusals)
    assert any("node 15 takes no part: node config: whose work does this node do?" in line for line in refusals)


def test_nobody_is_waited_for_who_would_be_refused(problem, tmp_path):
    path, recipe = written(tmp_path, "ferret", model={"digest": "blake2b"})
    over = grid(path, problem, recipe, tmp_path / "run", [{"client": "client-9"}])
    with pytest.raises(FedseedError, match="no node fits the run; the first says: --client client-9"):
        run(over, path)
    elsewhere, other = written(tmp_path, "ferret", seed=4)
    over = grid(elsewhere, problem, {**other, "seed": 5}, tmp_path / "run")
    with pytest.raises(FedseedError, match="no node fits the run; the first says: another recipe or model: seed"):
        run(over, elsewhere)


def test_a_wrong_configuration_is_named(problem, tmp_path):
    path, recipe = written(tmp_path, "ferret")
    over = grid(path, problem, recipe, tmp_path / "run")
    over.run_config["rouds"] = 3
    with pytest.raises(FedseedError, match="run config: unknown key 'rouds'; there are recipe, out, data, set"):
        run(over, path)


def test_a_token_on_the_command_line_is_kept_out_of_a_runs_files(problem, tmp_path, monkeypatch):
    """Flower starts a ServerApp with one."""
    path, recipe = written(tmp_path, "ferret", rounds=1)
    monkeypatch.setattr("sys.argv", ["/bin/flwr-serverapp", "--token", "5ec7e7", "--insecure"])
    result, _ = run(grid(path, problem, recipe, tmp_path / "run"), path)
    assert result.summary["command"] == "flwr-serverapp --token '***' --insecure"
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert files and not any(b"5ec7e7" in file.read_bytes() for file in files)
