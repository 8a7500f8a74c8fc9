"""TLS, keys and hostile clients, against a real nats-server configured by `fedseed keys`."""

import asyncio
import datetime
import json
import os
import signal
import socket
import struct
import threading
import time

import nats.errors
import numpy as np
import pytest

from fedseed.cli.network import ask
from fedseed.errors import NetworkError
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.federation.protocol import Stored
from fedseed.methods import ZOFedSGD
from fedseed.orbit import Orbit
from fedseed.transport.base import Access, Events
from fedseed.transport.keys import Validity, make
from fedseed.transport.nats_connection import connect
from fedseed.transport.signatures import Signatures
from fedseed.transport.subjects import Subjects
from support import network as network_support

ZO = {"method": {"name": "zo-fedsgd", "basis": "rademacher", "learning_rate": 1e-2, "batch": 8, "seeds": "shared"},
      "rounds": 40, "evaluation": {"every": 20}}  # fmt: skip
HOSTED = ["trio=client-0,client-1,client-2", "client-3", "client-4"]


@pytest.fixture
def secured(tmp_path, request, starter):
    """A server with TLS and keys, for the run that the test's network has."""
    module = network_support
    if os.environ.get("FEDSEED_WITHOUT_NATS"):
        pytest.skip("FEDSEED_WITHOUT_NATS is set")
    made = []

    def start(**settings):
        name = "".join(c if c.isalnum() else "_" for c in request.node.name)
        port = module.free_port()
        folder = tmp_path / f"keys{len(made)}"
        make(name, folder, HOSTED, ["localhost", "127.0.0.1"], port, **settings)
        server = module.Server(tmp_path / f"nats{len(made)}", folder / "nats-server.conf", port)
        server.keys = folder
        server.url = f"tls://127.0.0.1:{port}"
        made.append(server)
        return server

    yield start
    for server in made:
        server.kill()


class Recorder:
    """Passes TCP connections on and keeps all their bytes."""

    def __init__(self, port):
        self.bytes = bytearray()
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self._server.accept()
            far = socket.create_connection(("127.0.0.1", self._port))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source, target):
        try:
            while data := source.recv(1 << 16):
                self.bytes += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def start_all(net, server, **order):
    keys = server.keys
    ca = str(keys / "ca.pem")
    net.common["ca"] = ca
    coordinator = net.coordinator(key=str(keys / "coordinator.nk"), server_log=str(server.folder / "server.log"))
    hosts = [
        net.host(0, 1, 2, key=str(keys / "trio.nk"), **order),
        net.host(3, key=str(keys / "client-3.nk"), **order),
        net.host(4, key=str(keys / "client-4.nk"), **order),
    ]
    net.common["key"] = str(keys / "coordinator.nk")  # for the checks
    return coordinator, hosts


@pytest.mark.parametrize("encrypted", [True, False])
def test_no_plain_payload_is_on_the_wire(encrypted, problem, network, secured, shared_server, in_process):
    settings = {"training": {"learning_rate": 0.3, "batch": 8, "steps": 5}, "seeds": "shared", "blocks": "one"}
    recipe = {"method": {"name": "ferret", "directions": 300, "basis": "hadamard", **settings}, "rounds": 4}
    server = secured() if encrypted else shared_server
    recorder = Recorder(server.port)
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
    assert "does not know the key" in refusal(tmp_path / "other" / "client-4.nk", ca)
    assert "certificate is not accepted" in refusal(server.keys / "client-4.nk", tmp_path / "other" / "ca.pem")
    assert "wants encryption" in refusal(server.keys / "client-4.nk", url=f"nats://127.0.0.1:{server.port}")
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
    with pytest.raises(NetworkError, match="encryption was asked for, but this server has none"):
        asyncio.run(connect(Access(shared_server.url, ca=server.keys / "ca.pem"), Subjects("run"), "x"))


@pytest.mark.parametrize(("days_ago", "text"), [(-30, "not yet valid"), (400, "expired")])
def test_a_certificate_that_the_clock_makes_invalid(days_ago, text, secured):
    """As on a machine whose clock is off by weeks."""
    now = datetime.datetime.now(datetime.UTC)
    server = secured(valid=Validity(since=now - datetime.timedelta(days=days_ago)))
    with pytest.raises(NetworkError, match=f"{text}.*clock says"):
        reach = Access(server.url, server.keys / "client-4.nk", server.keys / "ca.pem")
        asyncio.run(connect(reach, Subjects("run"), "x"))


def test_hostile_clients_change_nothing(problem, network, secured, in_process):
    """client-4 is an honest process and an attacker with the same key."""
    server = secured()
    patient = {"minimum": 5, "deadline": 120.0, "dead_after": 120.0}
    net = network(server, {**ZO, "evaluation": {"every": 40}, "federation": patient})
    expected = in_process(problem, net.recipe)
    coordinator, hosts = start_all(net, server, slow=0.03)
    end = time.monotonic() + 240
    while not hosts[2].reached(1):
        assert time.monotonic() < end
        time.sleep(0.01)
    reach = Access(server.url, server.keys / "watcher.nk", server.keys / "ca.pem")

    async def waiting_for(*names):
        """Wait until the open round waits for these clients and no others; its number."""
        end, before = time.monotonic() + 240, 0
        while True:
            status = await ask(reach, net.run)
            now = status["round"] if set(status["waiting_for"]) == set(names) else 0
            if now and now == before:  # twice the same: no answer was under way
                return now
            assert time.monotonic() < end, status
            before = now
            await asyncio.sleep(0.2)

    violations = asyncio.run(attack(server, net, hosts, waiting_for))
    assert coordinator.wait() == 0, coordinator.text
    refused = net.summary()["refusals"]
    of_client, others = refused["client-4"], refused["somebody at 127.0.0.1"]
    for reason in (
        "a message has at least 28 bytes", "not a fedseed message", "checksum differs", "was expected, round",
        "has answered round", "in the name of client 0", "value 0 of 1 is nan", "at most 1e+06 is accepted",
        "104,857,628 bytes", "it speaks for client client-0", "not valid JSON", "update was expected",
        "may not publish to fedseed.{}.up.client-0.update", "may not publish to fedseed.{}.log",
        "may not subscribe to fedseed.{}.up.>", "may not subscribe to fedseed.{}.in.client-0.>",
    ):  # fmt: skip
        assert any(reason.format(net.run) in text for text in of_client), (reason, json.dumps(refused))
    assert others["the server does not know its key"] == 1
    assert others["a message larger than the server takes, bytes: 104857600 vs 1048576"] == 1
    honest = {name for name, reasons in refused.items() if network_support.repeats({name: reasons})}
    delivered = "the server was to deliver the run's log or objects to others"  # if it was looked at meanwhile
    assert set(refused.get("somebody", {})) <= {delivered}
    assert set(refused) - {"a consumer", "somebody"} - honest == {"client-4", "somebody at 127.0.0.1"}
    assert len(violations) == 4 and all("permissions violation" in text.lower() for text in violations)
    net.check(problem, coordinator, hosts, expected.summary)
    assert net.summary()["repeated_rounds"] == 0
    assert net.summary()["refused"] == sum(map(sum, (reasons.values() for reasons in refused.values())))


async def attack(server, net, hosts, waiting_for):
    """Everything that can be tried with a client's key, another key or none; returns what the server refused."""
    hosts[2].signal(signal.SIGSTOP)
    subjects, ca = Subjects(net.run), server.keys / "ca.pem"
    violations = []
    reach = Access(server.url, server.keys / "client-4.nk", ca)
    mallory = await connect(reach, subjects, "client-4", Events(violations.append))
    method = ZOFedSGD(basis="rademacher", learning_rate=1e-2, batch=8, seeds="shared")

    def update(number, value, client=4):
        return Message(MessageKind.UPDATE, method.code, number, client, struct.pack("<f", value)).encode()

    signatures = Signatures.read(server.keys / "client-4.nk")

    async def publish(subject, data):
        await mallory.publish(subject, data, headers=signatures.headers(subject, data))

    mine = subjects.up("client-4", "update")
    # while a round is open and the honest client-4 has not answered: each is refused for what is wrong with it
    number = await waiting_for("client-4")
    for data in (
        b"", b"garbage" * 10, np.random.default_rng(1).bytes(500), update(number - 1, 0.5), update(number, np.nan),
        update(number, 1e38), update(number + 5, 1.0), update(number, 1.0, client=0),
        update(number, 1.0)[:-1] + b"\xff", Message(MessageKind.STEP, method.code, number, EVERYBODY, b"1234").encode(),
        b"FN" + b"\xff" * 400, b"FO" + bytes(40) + b"../../x",
        Stored("big", (100 << 20) + 28, update(number, 1.0)[:28]).encode(),
    ):  # fmt: skip
        await publish(mine, data)
    for what, data in (
        ("hello", b'{"host": "client-0", "header": "", "names": [], "at": 0, "time": 0.0}'),
        ("beat", b"\xff\xfe"),
        ("attach", b'{"client": "client-0", "host": "x", "examples": 1}'),
        ("report", b"[" * 100_000),
    ):
        await publish(subjects.up("client-4", what), data)
    await publish(subjects.up("client-0", "update"), update(number, 1.0, 0))  # another client's subject
    await publish(subjects.log, b"T" + bytes(60))  # a step of its own
    await mallory.subscribe(f"{subjects.root}.up.>")  # what others send
    await mallory.subscribe(f"{subjects.inbox('client-0')}.>")  # what others are told
    # steps of the log, delivered as if client-4 had sent them
    config = {"name": "mine", "deliver_subject": mine, "deliver_policy": "all", "ack_policy": "none",
              "mem_storage": True}  # fmt: skip
    request = {"stream_name": subjects.stream, "config": config}
    answer = await mallory.request(f"$JS.API.CONSUMER.CREATE.{subjects.stream}.mine", json.dumps(request).encode())
    assert b"error" not in answer.data  # the server lets it: the coordinator must not listen to it
    await mallory.flush()
    make("other", net.folder / "other", ["client-4"], ["localhost"], 1)
    with pytest.raises(NetworkError):
        await connect(Access(server.url, net.folder / "other" / "client-4.nk", ca), subjects, "client-4")
    await send_too_much(reach, subjects)
    assert await waiting_for("client-4") == number  # nothing of all that counted
    # while a round is open and client-4 has answered: once more, right but for that
    hosts[0].signal(signal.SIGSTOP)
    hosts[2].signal(signal.SIGCONT)
    number = await waiting_for("client-0", "client-1", "client-2")
    for _ in range(3):
        await publish(mine, update(number, 0.25))
    await mallory.flush()
    assert await waiting_for("client-0", "client-1", "client-2") == number
    hosts[0].signal(signal.SIGCONT)
    await mallory.close()
    return violations


async def send_too_much(reach, subjects):
    """A message larger than the server takes: it ends the connection."""
    mallory = await connect(reach, subjects, "client-4")
    mallory._max_payload = 1 << 30
    mallory.options["allow_reconnect"] = False
    with pytest.raises((nats.errors.Error, OSError)):
        await mallory.publish(subjects.up("client-4", "update"), bytes(100 << 20))
        await mallory.flush(timeout=5)
    end = time.monotonic() + 5
    while mallory.is_connected and time.monotonic() < end:
        await asyncio.sleep(0.05)
    assert not mallory.is_connected


def test_keys_are_not_overwritten_and_private(tmp_path):
    lines = make("run", tmp_path / "keys", ["a", "many=b,c d"], ["host.example"], 4222)
    assert any("fedseed join recipe.toml --run run" in line and "--client b --client 'c d'" in line for line in lines)
    for path in (tmp_path / "keys").glob("*.nk"):
        assert path.stat().st_mode & 0o077 == 0
    text = (tmp_path / "keys" / "nats-server.conf").read_text()
    assert '"fedseed.run.up.c=20d.>"' in text
    with pytest.raises(Exception, match="not overwritten"):
        make("run", tmp_path / "keys", ["a"], ["h"], 1)
