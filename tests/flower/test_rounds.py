"""Runs over a Grid: the bits of a simulation, whatever becomes of the nodes' processes and of the
nodes.
"""

import json

import pytest

from fedseed import Orbit
from fedseed.errors import FedseedError
from fedseed.flower import client
from fedseed.flower.server import coordinate
from fedseed.transport import flower
from fedseed.transport import flower_wire as wire
from support.flower import PAIR, grid, run, written
from support.heard import Ending, Heard

METHODS = ("ferret", "feedsign", "fedkseed-pro", "fedadam", "fedmezo", "subspace")
VIRTUAL = [{"partition-id": number, "num-partitions": 3} for number in range(3)]

pytestmark = pytest.mark.usefixtures("quickly")


@pytest.fixture
def begun(problem, tmp_path, in_process):
    """Makes a run of a method: the recipe's file, the nodes, and the result of one process."""

    def begin(method, configs=PAIR, processes=True):
        path, recipe = written(tmp_path, method)
        over = grid(path, problem, recipe, tmp_path / "run", configs, processes=processes)
        return path, over, in_process(problem, recipe)

    return begin


@pytest.mark.parametrize("processes", [True, False], ids=["a process a message", "an actor"])
@pytest.mark.parametrize("method", METHODS)
def test_the_result_is_that_of_one_process(method, processes, problem, tmp_path, begun):
    """Nodes of two clients each with weights made anew from their steps, or three in turn in one
    process.
    """
    path, over, expected = begun(method, PAIR if processes else VIRTUAL, processes)
    result, _ = run(over, path)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["weights_digest"] == expected.summary["weights_digest"]
    assert result.summary == summary
    assert [line["weights_digest"] for line in result.metrics] == [
        line["weights_digest"] for line in expected.metrics
    ]
    for key in (
        "payload_bytes_up",
        "payload_bytes_down",
        "forward_passes",
        "baseline",
        "final",
        "exchanged",
    ):
        assert summary[key] == expected.summary[key], key
    if method in ("ferret", "feedsign", "fedkseed-pro", "subspace"):
        orbit = Orbit.open(tmp_path / "run" / "model.orbit")
        assert orbit.complete and orbit.replay(problem.model()) == summary["weights_digest"]


def test_a_process_for_many_nodes_tells_each_nodes_figures_and_measures_them_once(
    problem, tmp_path
):
    names, measured = [f"client-{number}" for number in range(5)], []
    path, recipe = written(
        tmp_path,
        "feedsign",
        rounds=2,
        task={"name": "files"},
        federation={"clients": names, "per_round": 5},
    )

    def figures(name):
        measured.append(name)
        return {"held_out": 4, "loss": float(name[-1])}

    result, _ = run(
        grid(path, problem, recipe, tmp_path / "run", VIRTUAL, figures, processes=False), path
    )
    for line in (result.metrics[0], result.metrics[-1]):
        assert line["by_client"] == {
            name: {"held_out": 4, "loss": float(name[-1])} for name in names
        }
        assert line["loss"] == 2.0
    assert sorted(measured) == sorted(2 * names)
    assert not any(
        "evaluates for" in str(reasons) for reasons in result.summary["refusals"].values()
    )


def test_a_node_that_has_lost_its_state_is_sent_all_steps(begun):
    path, over, expected = begun("ferret")
    since = []

    def at(node, message):
        if node.number == 11:
            since.append(wire.table(message)["since"])
            if len(since) == 8:
                node.context = None  # the SuperNode was started again: Flower's state of it is gone

    over.at = at
    result, _ = run(over, path)
    assert result.summary["weights_digest"] == expected.summary["weights_digest"]
    assert since[7] > 0 and 0 in since[8:]
    assert result.summary["skipped"] == 0


def test_a_round_goes_on_without_a_node_that_fails_or_has_gone(problem, tmp_path):
    path, recipe = written(
        tmp_path, "ferret", federation={"deadline": 1.5}, rounds=3, evaluation={"every": 3}
    )
    over = grid(path, problem, recipe, tmp_path / "run")

    def at(node, message):
        plans = [data for data in wire.table(message).get("told", []) if data[:1] == b"P"]
        return "the disk is\nfull" if node.number == 12 and plans else None

    over.at = at
    result, said = run(over, path)
    skipped = {
        (s["client"], s["reason"]) for line in result.metrics for s in line.get("skipped", ())
    }
    assert {name for name, _ in skipped} <= {"client-1", "client-2", "client-4"} and skipped
    assert {reason for _, reason in skipped} == {"it is no longer reachable"}
    assert any("client-1 is refused: Flower reports: the disk is full" in line for line in said)
    assert result.summary["rounds"] == 3


QUOTED = "no such word: Ada Lovelace"


def asked_of_second_node(message, node):
    """Whether a message asks the second node for an answer; `node`: it, or its context."""
    config = node.config if hasattr(node, "config") else node.node_config
    plans = [data for data in wire.table(message).get("told", []) if data[:1] == b"P"]
    return bool(plans) and config == PAIR[1]


@pytest.mark.parametrize("caught", [True, False])
def test_of_an_exception_at_a_node_only_its_kind_is_sent_and_noted(
    caught, problem, tmp_path, capfd
):
    """Also of one that reaches Flower, which would send its text."""
    path, recipe = written(
        tmp_path, "ferret", federation={"deadline": 1.5}, rounds=2, evaluation={"every": 2}
    )
    over = grid(path, problem, recipe, tmp_path / "run")
    whole, sent = over._reply, []

    def fail(names):
        raise KeyError(QUOTED)

    def answer(message, context):
        if not (caught and asked_of_second_node(message, context)):
            return whole(message, context)
        reply = client.reply(message, context, path, fail)
        sent.append(wire.table(reply))
        return reply

    over._reply = answer
    if not caught:
        failure = 2, f"<class 'KeyError'>:<'{QUOTED}'>"
        over.at = lambda node, message: failure if asked_of_second_node(message, node) else None
    result, said = run(over, path)
    assert result.summary["rounds"] == 2
    assert any("KeyError" in line and "node's own output" in line for line in said)
    everything = [*said, *map(str, sent), (tmp_path / "run" / "log.txt").read_text()]
    assert not any("Ada" in text for text in everything)
    assert not caught or (sent and QUOTED in capfd.readouterr().err)


@pytest.mark.parametrize("method", ["ferret", "fedadam"])
def test_an_interrupted_run_goes_on_in_its_folder(method, problem, tmp_path, in_process):
    path, recipe = written(tmp_path, method)
    expected = in_process(problem, recipe)
    over = grid(path, problem, recipe, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        coordinate(over, over.context, path, Ending(3))
    # Flower keeps nothing from one run to the next
    second = grid(path, problem, recipe, tmp_path / "run")
    result, said = run(second, path)
    assert "resumed after round 3 of 6" in said
    assert result.summary["weights_digest"] == expected.summary["weights_digest"]
    assert [line["round"] for line in result.metrics] == list(range(7))
    asked = len(second.answered)
    _, said = run(second, path)
    assert any("is finished" in line for line in said) and len(second.answered) == asked


def test_who_comes_is_checked_and_late_ones_catch_up(begun):
    """A node for a client that there is not, and one of none; then one that fits."""
    path, over, expected = begun("ferret", [*PAIR, {"client": "client-9"}, {"node": 1}])
    over.nodes[12].there = False

    class Waiting(Heard):
        def note(self, text):
            super().note(text)
            over.nodes[12].there = over.nodes[12].there or "node 14 is refused" in text

        warn = note

    said = Waiting()
    result = coordinate(over, over.context, path, said)
    assert result.summary["weights_digest"] == expected.summary["weights_digest"]
    assert any(
        "node 13 is refused: --client client-9: the recipe's clients are" in line
        for line in said.said
    )
    assert any(
        "node 14 is refused: node config: name the node's clients" in line for line in said.said
    )


def test_nobody_is_waited_for_who_would_be_refused(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(flower, "AGAIN_SECONDS", 0.1)
    path, recipe = written(tmp_path, "ferret", seed=4)
    over = grid(path, problem, {**recipe, "seed": 5}, tmp_path / "run")
    with pytest.raises(
        FedseedError, match=r"every node has failed 3 times.*another recipe or model: seed"
    ):
        run(over, path)


def test_a_token_on_the_command_line_is_kept_out_of_a_runs_files(problem, tmp_path, monkeypatch):
    """Flower starts a ServerApp with one."""
    path, recipe = written(tmp_path, "ferret", rounds=1)
    monkeypatch.setattr("sys.argv", ["/bin/flwr-serverapp", "--token", "5ec7e7", "--insecure"])
    result, _ = run(grid(path, problem, recipe, tmp_path / "run"), path)
    assert result.summary["command"] == "flwr-serverapp --token '***' --insecure"
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert files and not any(b"5ec7e7" in file.read_bytes() for file in files)
