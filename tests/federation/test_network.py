"""Runs over a real nats-server, with real processes: the same results as in one process, whatever
happens.
"""

import shutil
import signal

import pytest

from support.network import Line, repeats, until
from support.problem import METHODS
from support.tiers import mark

RECIPES = {name: {"method": method} for name, method in METHODS.items()}
for some in ("ferret", "fedavg"):
    RECIPES[some]["federation"] = {"per_round": 3}
RECIPES["feedsign"].update(rounds=30, evaluation={"every": 10})
RECIPES["zo-fedsgd"].update(rounds=12, evaluation={"every": 5})
# remembers outcomes
CLIPPING = {"name": "centred-clipping", "liars": 1, "radius": 0.5, "momentum": 0.5}
RECIPES["fedavg-clipping"] = {**RECIPES["fedavg"], "aggregation": CLIPPING}
SAME = (
    "round",
    "loss",
    "clients",
    "skipped",
    "bytes_up",
    "bytes_down",
    "forward_passes",
    "backward_passes",
    "weights_digest",
    "rounds",
    "attacked",
)


# every method goes over the transport in memory always (test_in_memory.py); over NATS the others
# when there is time
@pytest.mark.parametrize(
    "name", mark(RECIPES, lambda name: name not in ("ferret", "feedsign", "fedadam"))
)
def test_the_result_is_that_of_one_process(name, problem, network, shared_server, in_process):
    net = network(shared_server, RECIPES[name])
    expected = in_process(problem, net.recipe)
    coordinator = net.coordinator(pictures=True)
    hosts = [net.host(0, 3), net.host(1), net.host(2, 4)]
    net.check(problem, coordinator, hosts, expected.summary)
    for ours, theirs in zip(net.lines(), expected.metrics, strict=True):
        assert {k: ours.get(k) for k in SAME} == {k: theirs.get(k) for k in SAME}
        for key in ("train_loss", "step_over_weights"):
            assert ours.get(key) == pytest.approx(theirs.get(key))
    summary = net.summary()
    assert (
        summary["repeated_rounds"] == 0
        and repeats(summary["refusals"])
        and summary["drifted"] == []
    )
    for key in ("payload_bytes_up", "payload_bytes_down", "fedavg_bytes", "final", "baseline"):
        assert summary[key] == expected.summary[key]
    assert (net.out / "metrics.png").exists()


SLOW = {"method": METHODS["feedsign"], "rounds": 40, "evaluation": {"every": 10}}


def test_a_killed_client_is_waited_for_where_its_answer_is_needed(
    problem, network, shared_server, in_process
):
    net = network(shared_server, {**SLOW, "federation": {"minimum": 5}})
    expected = in_process(problem, net.recipe)
    coordinator, other = net.coordinator(), net.host(0, 1, 2, slow=0.03)
    victim = net.host(3, 4, slow=0.03)
    for at in (7, 23):
        until(lambda at=at, victim=victim: victim.reached(at), 120, "the victim does nothing")
        victim.kill()
        victim = net.host(3, 4, slow=0.03)
    net.check(problem, coordinator, [other, victim], expected.summary)


def test_a_run_goes_on_without_a_killed_client(problem, network, shared_server):
    net = network(shared_server, {**SLOW, "federation": {"dead_after": 2.0}})
    coordinator, other, victim = (
        net.coordinator(),
        net.host(0, 1, 2, slow=0.03),
        net.host(3, 4, slow=0.03),
    )
    until(lambda: victim.reached(7), 120, "the victim does nothing")
    victim.kill()
    until(lambda: other.reached(20), 120, "the others do not go on")
    late = net.host(3, 4)  # joins at a round in the middle, and catches up
    net.check(problem, coordinator, [other, late])
    # on a busy machine others may be silent for so long, too
    assert {"client-3", "client-4"} <= {
        s["client"] for line in net.lines() for s in line.get("skipped", [])
    }


# in the orbit, and in what a dense method's coordinator keeps
@pytest.mark.parametrize(
    "name", mark(["feedsign", "fedadam", "fedavg-clipping"], lambda name: "-" in name)
)
def test_a_coordinator_may_be_killed(name, problem, network, shared_server, in_process):
    recipe = {**RECIPES[name], "rounds": 30 if name == "feedsign" else 8}
    net = network(shared_server, recipe)
    expected = in_process(problem, net.recipe)
    coordinator = net.coordinator()
    hosts = [net.host(0, 1, 2, slow=0.05), net.host(3, 4, slow=0.05)]
    for at in (0, 3, 5) if name != "feedsign" else (4, 13, 20):
        until(lambda at=at: hosts[0].reached(at), 120, "nothing goes on")
        coordinator.kill()
        coordinator = net.coordinator()
    net.check(problem, coordinator, hosts, expected.summary)
    for ours, theirs in zip(net.lines(), expected.metrics, strict=True):
        same = ("round", "loss", "weights_digest", "rounds", "bytes_up", "clients")
        assert {k: ours.get(k) for k in same} == {k: theirs.get(k) for k in same}


def test_a_client_that_holds_the_others_up_is_named_and_left_out(problem, network, shared_server):
    """Long before the deadline, which is 600 seconds."""
    net = network(shared_server, {**SLOW, "federation": {"patience": 1.0}})
    coordinator, others, late = net.coordinator(), net.host(0, 1, 2), net.host(3, slow=10.0)
    others = [others, net.host(4)]
    until(lambda: (net.status() or {}).get("late") == ["client-3"], 120, "nobody is named")
    net.check(problem, coordinator, [*others, late])
    assert {s["client"] for line in net.lines() for s in line.get("skipped", [])} == {"client-3"}


@pytest.mark.slow
def test_large_answers_over_a_slow_line_are_no_refusals(
    problem, network, shared_server, in_process
):
    """Plans go out once more before they are there, and are answered once more."""
    net = network(shared_server, {**RECIPES["fedavg"], "rounds": 4}, inline=200)
    expected = in_process(problem, net.recipe)
    far = f"nats://127.0.0.1:{Line(shared_server.port, 0.3).port}"
    coordinator, hosts = net.coordinator(), [net.host(0, 1, 2, nats=far), net.host(3, 4, nats=far)]
    net.check(problem, coordinator, hosts, expected.summary)
    assert net.summary()["refusals"] == {}


def test_a_second_coordinator_refuses(problem, network, shared_server, in_process, tmp_path):
    net = network(shared_server, SLOW)
    expected = in_process(problem, net.recipe)
    coordinator, host = net.coordinator(), net.host(0, 1, 2, 3, 4, slow=0.05)
    until(lambda: host.reached(5), 120, "nothing goes on")
    second = net.coordinator(out=str(tmp_path / "second"))
    assert second.wait() == 1 and "another coordinator already runs" in second.text
    # one that does not answer any more is taken for dead: the new one goes on, the old one can
    # write no more
    coordinator.signal(signal.SIGSTOP)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(net.out, elsewhere)
    heir = net.coordinator(out=str(elsewhere))
    at = host.said.count("round")
    until(lambda: host.said.count("round") > at + 3, 120, "the heir does not go on")
    coordinator.signal(signal.SIGCONT)
    assert coordinator.wait() == 1 and "another coordinator has written" in coordinator.text
    net.out = elsewhere
    net.check(problem, heir, [host], expected.summary)


def test_orbit_and_log_repair_each_other(problem, network, server, in_process, tmp_path):
    net = network(server, SLOW)
    expected = in_process(problem, net.recipe)
    coordinator, host = net.coordinator(), net.host(0, 1, 2, 3, 4, slow=0.02)
    until(lambda: host.reached(23), 120, "nothing goes on")
    coordinator.kill()
    orbit = net.out / "model.orbit"
    # as after a power cut: the newest steps are on the server only
    orbit.write_bytes(orbit.read_bytes()[:-200])
    (net.out / "progress.jsonl").write_bytes(b"")
    coordinator = net.coordinator()
    until(lambda: host.reached(33), 120, "the run does not go on")
    coordinator.kill()
    server.kill()  # now the server loses everything
    shutil.rmtree(server.folder / "store")
    server.start()
    coordinator = net.coordinator()
    net.check(problem, coordinator, [host], expected.summary)
    assert "the server has lost the run and got it again" in host.said


def test_clients_that_drift_apart_repair_themselves(problem, network, shared_server, in_process):
    net = network(shared_server, RECIPES["ferret"])
    expected = in_process(problem, net.recipe)
    coordinator = net.coordinator()
    hosts = [net.host(0, 1), net.host(2, 3), net.host(4, drift_at=6)]
    net.check(problem, coordinator, hosts, expected.summary)
    assert net.summary()["drifted"] == ["client-4"]
    assert "replaying from the base" in hosts[2].said
