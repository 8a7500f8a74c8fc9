"""A server that goes away, for a while or with all that it held; a run that is over.

Everybody is told, and goes on.
"""

import asyncio
import os
import random
import shutil
import signal
import time
from collections import deque
from types import SimpleNamespace

import pytest

from fedseed.errors import MessageError, NetworkError
from fedseed.federation.client import replica
from fedseed.federation.client.answers import Responder
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.federation.protocol import Entry, plan_message
from support.heard import Heard
from support.network import until
from support.problem import METHODS
from support.tiers import mark

RECIPES = {name: {"method": METHODS[name]} for name in ("feedsign", "ferret", "fedavg", "fedadam")}
RECIPES["fedavg"]["federation"] = {"per_round": 3}
# after which round, seconds, whether the server hangs in place of being killed
OUTAGES = [(2, 0.2, False), (3, 2.5, True), (5, 2.5, False)]
if "FEDSEED_OUTAGES" in os.environ:  # so many, of 0.2 to 60 seconds
    COUNT, DRAWN = int(os.environ["FEDSEED_OUTAGES"]), random.Random(7)
    OUTAGES = [(3 * i + 2, 0.2 * 300 ** DRAWN.random(), DRAWN.random() < 0.4) for i in range(COUNT)]


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


@pytest.mark.parametrize(
    "name", mark(RECIPES, lambda name: name in ("feedsign", "ferret", "fedadam"))
)
def test_an_outage_is_waited_for(name, problem, network, server, in_process):
    """Also while large messages are on their way, and for longer than a client may be silent."""
    recipe = {**RECIPES[name], "rounds": OUTAGES[-1][0] + 3}
    recipe["federation"] = {**recipe.get("federation", {}), "dead_after": 2.0}
    net = network(server, recipe, inline=200)
    expected = in_process(problem, net.recipe)
    coordinator, hosts = net.coordinator(), [net.host(0, 1, 2, slow=0.1), net.host(3, 4, slow=0.1)]
    for at, seconds, stopped in OUTAGES:
        until(lambda at=at: hosts[0].reached(at), 120, "nothing goes on")
        out_for_a_while(server, seconds, stopped)
    digests = {coordinator.digest, *(host.digest for host in hosts)}
    assert digests == {expected.summary["weights_digest"]}
    assert not any(line.get("skipped") for line in net.lines())  # nobody was taken for gone
    assert net.summary()["repeated_rounds"] == 0


@pytest.mark.parametrize("name", mark(["feedsign", "fedavg"], lambda name: name == "feedsign"))
def test_a_server_that_has_lost_the_run_is_said(name, problem, network, server, in_process):
    net = network(server, {**RECIPES[name], "rounds": 24}, inline=200)
    expected = in_process(problem, net.recipe)
    coordinator, host = net.coordinator(), net.host(0, 1, 2, 3, 4, slow=0.05)
    until(lambda: host.reached(3), 120, "nothing goes on")
    server.kill()
    shutil.rmtree(server.folder / "store")
    server.start()
    assert coordinator.wait() == 1
    what = "start `fedseed serve` again with the same --out"
    assert (
        f"the server has lost the log of run {net.run}: " in coordinator.text
        and what in coordinator.text
    )
    until(lambda: "the server has lost the log" in host.said, 120, host.said)
    net.check(problem, net.coordinator(), [host], expected.summary)  # which it waits for, as always


OLDER = [
    (name, back, moment)
    for moment in range(int(os.environ.get("FEDSEED_OLDER", "1")))  # ten: the whole sweep
    for back in (1, 40, None)
    for name in ("feedsign", "fedavg", "ferret", "fedkseed-pro")
]
SOON = (("feedsign", 40, 0), ("fedavg", 1, 0))


@pytest.mark.parametrize(
    "case", mark(OLDER, lambda case: case not in SOON), ids="{0[0]}-{0[1]}-{0[2]}".format
)
def test_a_server_that_comes_back_with_an_older_log(
    case, problem, network, server, in_process, tmp_path
):
    """Everybody goes on from there: the clients by themselves, the coordinator when it is started
    again.

    Args:
        case: the method; by how many steps the log is older (None: all); which draw of the moments.
    """
    name, back, moment = case
    drawn = random.Random(moment)
    at, more = (
        0 if back is None else drawn.randint(1, 12),
        drawn.randint(1, 12) if back is None else back,
    )
    rounds = at + more + 12
    net = network(
        server,
        {"method": METHODS[name], "rounds": rounds, "evaluation": {"every": rounds // 2}},
        inline=200,
    )
    expected = in_process(problem, net.recipe)
    coordinator, hosts = net.coordinator(), [net.host(0, 1, 2, slow=0.1), net.host(3, 4, slow=0.1)]
    until(
        lambda: hosts[0].reached(at) and any(server.folder.rglob(f"fedseed--{net.run}/meta.sum")),
        120,
        "no log",
    )
    server.exchange_store(tmp_path / "older")
    at = max(host.round() for host in hosts)
    until(lambda: all(host.reached(at + more) for host in hosts), 120, "nothing goes on")
    time.sleep(drawn.uniform(0.0, 0.2))
    server.exchange_store(tmp_path / "older")
    assert (
        coordinator.wait() == 1
        and "the server has come back with an older log of run" in coordinator.text
    )
    net.check(problem, net.coordinator(), hosts, expected.summary)


def test_a_plan_of_a_log_that_was_set_back_is_in_nobodys_way():
    """A coordinator that makes rounds again asks for the first.

    What was asked before it waits no longer.
    """
    hosted = SimpleNamespace(items={}, secure=None)
    copy = SimpleNamespace(
        hosted=hosted, end=None, at=0, version=0, current=True, numbers={}, has_header=True
    )
    responder = Responder(copy, SimpleNamespace(welcome=True))
    for number in (2, 2, 1):
        plan = Message(MessageKind.PLAN, 5, number, EVERYBODY, b"").encode()
        responder.hear(plan_message([], True, plan))
    assert asyncio.run(responder.try_plan()) and not responder.has_request


def test_a_plan_waits_for_the_logs_header():
    """Before it the client knows neither its number in the run nor whether it is this run."""
    hosted = SimpleNamespace(items={}, secure=None)
    copy = SimpleNamespace(
        hosted=hosted, end=None, at=0, version=0, current=True, numbers={}, has_header=False
    )
    responder = Responder(copy, SimpleNamespace(welcome=True))
    responder.hear(plan_message([], True, Message(MessageKind.PLAN, 5, 1, EVERYBODY, b"").encode()))
    assert not asyncio.run(responder.try_plan()) and responder.has_request
    copy.has_header = True
    assert asyncio.run(responder.try_plan()) and not responder.has_request


@pytest.mark.parametrize("name", mark(["feedsign", "fedavg"], lambda name: False))
def test_who_comes_after_the_end_gets_the_model(
    name, problem, network, shared_server, in_process, tmp_path
):
    net = network(
        shared_server, {**RECIPES[name], "rounds": 4, "evaluation": {"every": 4}}, inline=200
    )
    expected = in_process(problem, net.recipe).summary["weights_digest"]
    coordinator, host = net.coordinator(), net.host(0, 1, 2, 3, 4)
    assert (coordinator.digest, host.digest) == (expected, expected)

    def late(recipe, orbit=None):
        said = Heard()
        return net.client("client-1", said, recipe, orbit), said

    orbit = None if name == "fedavg" else tmp_path / "late.orbit"
    one, said = late(net.recipe, orbit)
    assert one.run() == expected and one.last_step == 4
    assert any("waiting for the coordinator" in text for text in said.said)
    if orbit is not None:
        assert orbit.read_bytes() == (net.out / "model.orbit").read_bytes()
    # another recipe's: it may be about to be replaced, so a coordinator is waited for
    other, said = late({**net.recipe, "seed": 4})

    def note(text):
        said.said.append(text)
        if "differs from this recipe and base" in text:
            other._fail(NetworkError("seen"))

    said.note = note
    with pytest.raises(NetworkError, match="seen"):
        other.run()


@pytest.mark.parametrize("begins_again", [True, False])
def test_a_step_whose_object_a_server_has_lost_is_asked_for_again_or_passed_over(
    begins_again, monkeypatch
):
    """It was handed out before the server came back with an older store.

    A header after it begins the log again.
    """
    monkeypatch.setattr(replica, "MISSED_SECONDS", 0.0)
    entries = [Entry("T", b"lost"), Entry("M", b""), *([Entry("H", b"")] if begins_again else [])]
    one = SimpleNamespace(_log=SimpleNamespace(missed=None), _queue=deque(entries[1:]))
    asyncio.run(replica.Replica._handle_missing(one, entries[0], MessageError("it is not there")))
    assert [entry.kind for entry in one._queue] == (["H"] if begins_again else ["T", "M"])
    if not begins_again:
        one._log.missed -= replica.WEIGHTS_PATIENCE_SECONDS
        with pytest.raises(
            NetworkError, match=("a step of the log can't be fetched: it is not there")
        ):
            asyncio.run(
                replica.Replica._handle_missing(
                    one, one._queue.popleft(), MessageError("it is not there")
                )
            )
