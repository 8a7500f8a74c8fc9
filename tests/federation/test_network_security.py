"""TLS, keys and hostile clients, against a real nats-server configured by `fedseed keys`."""

import asyncio
import socket
from datetime import datetime, timedelta

import pytest

from fedseed.errors import NetworkError
from fedseed.orbit import Orbit
from fedseed.transport.base import Access
from fedseed.transport.keys import make
from fedseed.transport.nats_connection import connect
from fedseed.transport.subjects import Subjects
from support import network as network_support

ZO = {
    "method": {
        "name": "zo-fedsgd",
        "basis": "rademacher",
        "learning_rate": 1e-2,
        "batch": 8,
        "seeds": "shared",
    },
    "rounds": 40,
    "evaluation": {"every": 20},
}
HOSTED = ["trio=client-0,client-1,client-2", "client-3", "client-4"]


@pytest.fixture
def secured(tmp_path, request):
    """A server with TLS and keys, for the run that the test's network has."""
    made = []

    def start():
        name = "".join(c if c.isalnum() else "_" for c in request.node.name)
        made.append(network_support.keyed_server(tmp_path / f"nats{len(made)}", name, HOSTED))
        return made[-1]

    yield start
    for server in made:
        server.kill()


def start_all(net, server, **order):
    keys = server.keys
    ca = str(keys / "ca.pem")
    net.common["ca"] = ca
    coordinator = net.coordinator(key=str(keys / "coordinator.nk"))
    hosted = {"trio": (0, 1, 2), "client-3": (3,), "client-4": (4,)}
    hosts = [
        net.host(*numbers, key=str(keys / f"{name}.nk"), **order)
        for name, numbers in hosted.items()
    ]
    net.common["key"] = str(keys / "coordinator.nk")  # for the checks
    return coordinator, hosts


@pytest.mark.parametrize("encrypted", [True, False])
def test_no_plain_payload_is_on_the_wire(
    encrypted, problem, network, secured, shared_server, in_process
):
    settings = {
        "training": {"learning_rate": 0.3, "batch": 8, "steps": 5},
        "seeds": "shared",
        "blocks": "one",
    }
    recipe = {
        "method": {"name": "ferret", "directions": 300, "basis": "hadamard", **settings},
        "rounds": 4,
    }
    server = secured() if encrypted else shared_server
    recorder = network_support.Line(server.port)
    net = network(server, recipe)
    expected = in_process(problem, net.recipe)
    through = f"{'tls' if encrypted else 'nats'}://127.0.0.1:{recorder.port}"
    if encrypted:
        coordinator, hosts = start_all(net, server, nats=through)
    else:
        coordinator, hosts = net.coordinator(), [net.host(0, 1, 2, 3, 4, nats=through)]
    net.check(problem, coordinator, hosts, expected.summary)
    steps = [record.payload for record in Orbit.open(net.out / "model.orbit").steps()]
    found = [payload[at : at + 24] in recorder.bytes for payload in steps for at in (8, 64, 256)]
    assert len(recorder.bytes) > sum(map(len, steps))  # everything went through here
    assert any(found) is not encrypted and all(found) is not encrypted
    assert (b"fedseed." in recorder.bytes) is not encrypted


def test_without_credentials_nothing_can_be_read_or_published(secured, tmp_path):
    server = secured()
    subjects = Subjects("run")
    ca = server.keys / "ca.pem"

    def refusal(*arguments, url=server.url):
        with pytest.raises(NetworkError) as error:
            asyncio.run(connect(Access(url, *arguments), subjects, "client-4"))
        return str(error.value)

    assert "a key is needed" in refusal(None, ca)
    make("other", tmp_path / "other", ["client-4"], ["localhost"], 1)
    assert "is unknown to it" in refusal(tmp_path / "other" / "client-4.nk", ca)
    assert "certificate is not accepted" in refusal(
        server.keys / "client-4.nk", tmp_path / "other" / "ca.pem"
    )
    assert "requires encryption" in refusal(
        server.keys / "client-4.nk", url=f"nats://127.0.0.1:{server.port}"
    )
    # by hand, without encryption: the server does not listen
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        plain.settimeout(10)
        assert b'"tls_required":true' in plain.recv(4096)
        plain.sendall(b"CONNECT {}\r\nSUB fedseed.> 1\r\nPUB fedseed.x 1\r\nx\r\nPING\r\n")
        answer = b""
        while data := plain.recv(4096):
            answer += data
        assert b"PONG" not in answer and b"MSG" not in answer


def test_a_server_without_encryption_is_refused(shared_server, secured):
    server = secured()
    with pytest.raises(
        NetworkError, match="this side requires encryption, but the server has none"
    ):
        asyncio.run(
            connect(Access(shared_server.url, ca=server.keys / "ca.pem"), Subjects("run"), "x")
        )


@pytest.mark.parametrize(("days_ago", "text"), [(-30, "not yet valid"), (400, "expired")])
def test_a_certificate_that_the_clock_makes_invalid(days_ago, text, secured, monkeypatch):
    """As on a machine whose clock is off by weeks."""

    class Off(datetime):
        @classmethod
        def now(cls, zone):
            return datetime.now(zone) - timedelta(days=days_ago)

    monkeypatch.setattr("fedseed.transport.keys.datetime", Off)
    server = secured()
    with pytest.raises(NetworkError, match=f"{text}.*clock is at"):
        reach = Access(server.url, server.keys / "client-4.nk", server.keys / "ca.pem")
        asyncio.run(connect(reach, Subjects("run"), "x"))


def test_a_signed_log_that_is_older_than_it_was_is_read_anew(
    problem, network, secured, in_process, tmp_path
):
    server = secured()
    net = network(server, ZO)
    expected = in_process(problem, net.recipe)
    coordinator, hosts = start_all(net, server, slow=0.05)
    network_support.until(lambda: hosts[0].reached(5), 120, "nothing goes on")
    server.exchange_store(tmp_path / "older")
    network_support.until(lambda: hosts[0].reached(15), 120, "nothing goes on")
    server.exchange_store(tmp_path / "older")
    assert (
        coordinator.wait() == 1
        and "the server has come back with an older log of run" in coordinator.text
    )
    net.check(problem, net.coordinator(), hosts, expected.summary)
    assert not any("that are not the coordinator's" in host.said for host in hosts)
