"""A server that goes away, for a while or with all that it held; a run that is over. Everybody is told, and goes on."""

import shutil
import signal
import threading
import time

import pytest

from fedseed.errors import NetworkError
from fedseed.federation.network_client import NetworkClient
from fedseed.runs.joining import part_of
from fedseed.runs.recipe import Recipe
from fedseed.transport import transport
from fedseed.transport.base import Access
from support.heard import Heard
from support.network import until
from support.network_processes import loader
from support.tiers import mark

TRAINING = {"learning_rate": 0.3, "batch": 8, "accumulation": 2, "steps": 5}
FEEDSIGN = {"name": "feedsign", "basis": "rademacher", "learning_rate": 1e-2, "batch": 8}
METHODS = {
    "feedsign": {"method": FEEDSIGN, "rounds": 24, "evaluation": {"every": 12}},
    "ferret": {"method": {"name": "ferret", "directions": 300, "basis": "hadamard", "blocks": "one", "seeds": "shared",
                          "training": TRAINING}},
    "fedavg": {"method": {"name": "fedavg", "global_rate": 1.5, "training": TRAINING}, "federation": {"per_round": 3}},
    "fedadam": {"method": {"name": "fedavg", "server": "adam", "global_rate": 0.01, "training": TRAINING}},
}  # fmt: skip


def out_for_a_while(server, seconds, stopped):
    """An outage: the server is killed and started again, or hangs."""
    if stopped:
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        server.process.send_signal(signal.SIGCONT)
    else:
        server.kill()
        time.sleep(seconds)
        server.start()


@pytest.mark.parametrize("name", mark(METHODS, lambda name: name in ("feedsign", "ferret", "fedadam")))
def test_an_outage_is_waited_for(name, problem, network, server, in_process):
    """Also while large messages are on their way, and for longer than a client may be silent."""
    recipe = {"rounds": 8, **METHODS[name]}
    recipe["federation"] = {**recipe.get("federation", {}), "dead_after": 2.0}
    net = network(server, recipe, inline=200)
    expected = in_process(problem, net.recipe)
    coordinator, hosts = net.coordinator(), [net.host(0, 1, 2, slow=0.1), net.host(3, 4, slow=0.1)]
    for at, seconds, stopped in ((2, 0.2, False), (3, 2.5, True), (5, 2.5, False)):
        until(lambda at=at: hosts[0].reached(at), 120, "nothing goes on")
        out_for_a_while(server, seconds, stopped)
    digests = {coordinator.digest, *(host.digest for host in hosts)}
    assert digests == {expected.summary["weights_digest"]}
    assert not any(line.get("skipped") for line in net.lines())  # nobody was taken for gone
    assert net.summary()["repeated_rounds"] == 0


@pytest.mark.parametrize("name", mark(["feedsign", "fedavg"], lambda name: name == "feedsign"))
def test_a_server_that_has_lost_the_run_is_said(name, problem, network, server):
    net = network(server, {"rounds": 1000, **{k: v for k, v in METHODS[name].items() if k != "rounds"}}, inline=200)
    coordinator, host = net.coordinator(), net.host(0, 1, 2, 3, 4, slow=0.05)
    until(lambda: host.reached(3), 120, "nothing goes on")
    server.kill()
    shutil.rmtree(server.folder / "store")
    server.start()
    assert coordinator.wait() == 1
    what = "start `fedseed serve` again" if name == "feedsign" else "begin again with another --out"
    assert f"the server has lost the log of run {net.run}: " in coordinator.text and what in coordinator.text
    until(lambda: "the server has lost the log" in host.said, 120, host.said)
    assert not host.ended()  # it waits for the coordinator, as always


@pytest.mark.long
def test_a_log_that_does_not_come_back_is_not_waited_for_without_end(network, server, monkeypatch):
    monkeypatch.setattr("fedseed.transport.nats_log.LOST_SECONDS", 0.5)
    net = network(server, {**METHODS["feedsign"], "rounds": 1000, "federation": {"minimum": 5}})
    net.coordinator(), net.host(0, 1, 2, 3)
    checked, said = Recipe.model_validate(net.recipe), Heard()
    loads = lambda: part_of(loader(checked), ["client-4"])  # noqa: E731
    one = NetworkClient(transport(Access(server.url), net.run), net.run, loads, checked.rounds, said)

    def lose():
        until(lambda: one.at >= 3, 120, "nothing goes on")
        server.kill()
        shutil.rmtree(server.folder / "store")
        server.start()

    losing = threading.Thread(target=lose)
    losing.start()
    with pytest.raises(NetworkError, match="nobody has put it there again: start `fedseed serve`, then this again"):
        one.run()
    losing.join()
    assert any("the server has lost the log" in text for text in said.said)


@pytest.mark.parametrize("name", mark(["feedsign", "fedavg"], lambda name: False))
def test_who_comes_after_the_end_gets_the_model(name, problem, network, shared_server, in_process, tmp_path):
    net = network(shared_server, {**METHODS[name], "rounds": 4, "evaluation": {"every": 4}}, inline=200)
    expected = in_process(problem, net.recipe).summary["weights_digest"]
    coordinator, host = net.coordinator(), net.host(0, 1, 2, 3, 4)
    assert (coordinator.digest, host.digest) == (expected, expected)

    def late(recipe, orbit=None):
        checked, said = Recipe.model_validate(recipe), Heard()
        way = transport(Access(shared_server.url), net.run)
        one = NetworkClient(way, net.run, lambda: part_of(loader(checked), ["client-1"]), checked.rounds, said, orbit)
        return one, said

    orbit = None if name == "fedavg" else tmp_path / "late.orbit"
    one, said = late(net.recipe, orbit)
    assert one.run() == expected and one.at == 4
    assert any("waiting for the coordinator" in text for text in said.said)
    if orbit is not None:
        assert orbit.read_bytes() == (net.out / "model.orbit").read_bytes()
    # another recipe's: it may be about to be replaced, so a coordinator is waited for
    other, said = late({**net.recipe, "seed": 4})

    def note(text):
        said.said.append(text)
        if "is another one" in text:
            other._fail(NetworkError("seen"))

    said.note = note
    with pytest.raises(NetworkError, match="seen"):
        other.run()
