"""Addresses: IPv6, and WebSocket for sites behind proxies that let nothing else through."""

import asyncio
import shlex

import pytest

from fedseed.errors import NetworkError, RecipeError
from fedseed.transport import keys, nats_connection
from fedseed.transport.base import Access
from fedseed.transport.nats_address import Address, read_address
from fedseed.transport.nats_connection import connect
from fedseed.transport.subjects import Subjects
from support.network import Server, free_port, reachable, until
from support.problem import METHODS

FEEDSIGN = {"method": METHODS["feedsign"], "rounds": 12, "evaluation": {"every": 6}}
WS = "ws", "wss"


@pytest.mark.parametrize(
    ("url", "address", "place"),
    [
        ("nats://host", Address("nats", "host", 4222), "host:4222"),
        ("nats://[::1]:4223", Address("nats", "::1", 4223), "[::1]:4223"),
        ("tls://[2001:db8::7]", Address("tls", "2001:db8::7", 4222), "[2001:db8::7]:4222"),
        ("ws://host:8080", Address("ws", "host", 8080), "host:8080"),
        ("wss://host/nats?x=1", Address("wss", "host", 443, "/nats?x=1"), "host:443"),
        ("wss://[::1]/", Address("wss", "::1", 443, "/"), "[::1]:443"),
    ],
)
def test_what_an_address_means(url, address, place):
    found = read_address(url)
    assert (found, found.place) == (address, place)
    assert read_address(found.url(encrypted=found.encrypted)) == address


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("tls://2001:db8::7:4222", r"needs brackets: tls://\[2001:db8::7:4222\], or with the port"),
        ("nats://::1", r"nats://\[::1\]"),
        ("nats://[::1", "write nats://HOST:PORT"),
        ("nats://host:port", "port"),
        ("nats://host:99999", "range"),
        ("nats://", "write nats://HOST:PORT"),
        ("http://host", "or wss://"),
        ("nats://one:4222,nats://two:4222", "the address of one server"),
        ("nats://host:0", "from 1 to 65535"),
        # nats-py would have got neither of the two
        ("tls://user:secret@host", r"tls://\.\.\.@host: a name and a password.*--key"),
    ],
)
def test_what_is_no_address(url, text):
    with pytest.raises(RecipeError, match=text):
        read_address(url)


def test_a_websocket_without_its_library_says_what_to_install(monkeypatch):
    monkeypatch.setattr(nats_connection, "find_spec", lambda name: None)
    for scheme in WS:
        access = Access(f"{scheme}://localhost")
        with pytest.raises(RecipeError, match=r"needs aiohttp: pip install '\.\[websocket\]'"):
            asyncio.run(connect(access, Subjects("run"), "a"))


def test_a_plain_websocket_takes_no_certificates(tmp_path):
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install '.[websocket]'")
    with pytest.raises(RecipeError, match="write wss://"):
        asyncio.run(connect(Access("ws://localhost", ca=ca), Subjects("run"), "a"))


@pytest.mark.long
def test_a_federation_over_ipv6(problem, network, in_process, tmp_path):
    server = Server(tmp_path / "nats", host="::1")
    try:
        net = network(server, FEEDSIGN)
        assert server.url.startswith("nats://[::1]:")
        expected = in_process(problem, net.recipe)
        coordinator, host = net.coordinator(), net.host(0, 1, 2, 3, 4)
        net.check(problem, coordinator, [host], expected.summary)
    finally:
        server.kill()
    with pytest.raises(NetworkError, match=rf"\[::1\]:{server.port}: can't be reached"):
        asyncio.run(connect(Access(server.url), Subjects("run"), "a"))


@pytest.mark.long
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_keys_print_an_address_that_can_be_used(host, tmp_path):
    port, folder = free_port(), tmp_path / "keys"
    lines = keys.make("run", folder, ["a"], [host], port)
    words = shlex.split(next(line for line in lines if line.startswith("fedseed join")))
    url = words[words.index("--nats") + 1]
    assert url == f"tls://[::1]:{port}"
    server = Server(tmp_path / "nats", folder / "nats-server.conf", port, host="::1")
    try:
        access = Access(url, folder / "a.nk", folder / "ca.pem")

        async def reach():
            await (await connect(access, Subjects("run"), "a")).close()

        asyncio.run(reach())
    finally:
        server.kill()


@pytest.mark.parametrize(
    "host", ["host:4222", "1:2", "[host]:1", "::1::", "[::1", "2001:db8::7:70000"]
)
def test_what_is_no_host(host, tmp_path):
    with pytest.raises(RecipeError, match="--host"):
        keys.make("run", tmp_path / "keys", ["a"], [host], 4222)
    assert not (tmp_path / "keys").exists()


@pytest.fixture
def web_socket(request, tmp_path):
    """A server that is reached over WebSocket, too, with the keys and certificates of a run."""
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install '.[websocket]'")
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)
    port, ws, folder = free_port(), free_port(), tmp_path / "keys"
    keys.make(
        name, folder, ["all=" + ",".join(f"client-{n}" for n in range(5))], ["127.0.0.1"], port
    )
    secured = f'tls {{ cert_file: "{folder}/server.pem", key_file: "{folder}/server.key" }}'
    encryption = secured if request.param == "wss" else "no_tls: true"
    text = (folder / "nats-server.conf").read_text()
    if request.param == "ws":  # the other way in has no encryption, either
        begin = text.index("tls {")
        text = text[:begin] + text[text.index("\n}\n", begin) + 3 :]
    config = folder / "nats-server.conf"
    config.write_text(f'{text}websocket {{ host: "127.0.0.1", port: {ws}, {encryption} }}\n')
    server = Server(tmp_path / "nats", config, port)
    until(lambda: reachable(ws), 60, "no WebSocket")
    server.keys, server.url = folder, f"{request.param}://127.0.0.1:{ws}"
    yield server
    server.kill()


@pytest.mark.long
@pytest.mark.parametrize("web_socket", WS, indirect=True)
def test_a_federation_over_websocket(web_socket, problem, network, in_process):
    """Also through an outage of the server."""
    folder = web_socket.keys
    net = network(web_socket, {**FEEDSIGN, "rounds": 40})
    if web_socket.url.startswith("wss"):
        net.common["ca"] = str(folder / "ca.pem")
    expected = in_process(problem, net.recipe)
    coordinator = net.coordinator(key=str(folder / "coordinator.nk"))
    host = net.host(0, 1, 2, 3, 4, key=str(folder / "all.nk"), slow=0.02)
    until(lambda: host.reached(5), 120, "nothing goes on")
    web_socket.kill()
    web_socket.start()
    net.common["key"] = str(folder / "coordinator.nk")  # for the checks
    net.check(problem, coordinator, [host], expected.summary)


@pytest.mark.long
@pytest.mark.parametrize("web_socket", ["wss"], indirect=True)
def test_a_certificate_of_somebody_else_is_refused_over_websocket(web_socket, tmp_path):
    keys.make("other", tmp_path / "other", ["a"], ["127.0.0.1"], 1)
    access = Access(web_socket.url, web_socket.keys / "all.nk", tmp_path / "other" / "ca.pem")
    with pytest.raises(NetworkError, match="certificate is not accepted"):
        asyncio.run(connect(access, Subjects("run"), "all"))
