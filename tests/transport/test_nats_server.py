"""A nats-server that a coordinator starts itself, of the system's version or the extra's."""

import json
import signal
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from fedseed.errors import NetworkError, RecipeError
from fedseed.transport import keys, nats_server
from fedseed.transport.nats_server import OwnServer, find_server, read_listen, server_version
from support.command import refused
from support.forked import fedseed_forked
from support.network import both_servers, free_port, reachable, until

RECIPE = """
rounds = 6
task = {clients = 3, examples = 8, evaluation = 1, unseen = 1}
federation = {joint = false}
method = {name = "feedsign", batch = 2}
evaluation = {every = 3, rouge = false}
"""
COMMAND = [sys.executable, "-c", "from fedseed.cli.app import main; main()"]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def program(request, monkeypatch):
    """A nats-server; the one that is found."""
    monkeypatch.setattr(nats_server, "find_server", lambda: request.param)
    monkeypatch.setattr(keys, "find_server", lambda: request.param)
    return request.param


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("127.0.0.1:4222", ("127.0.0.1", 4222)),
        ("[::1]:5222", ("::1", 5222)),
        ("nats.example.org:80", ("nats.example.org", 80)),
    ],
)
def test_where_it_listens(text, listen):
    assert read_listen(text) == listen


@pytest.mark.parametrize("text", ["", "4222", "here", "here:", ":4222", "::1:4222", "a:b", "a:0"])
def test_what_is_no_place_to_listen_at(text):
    with pytest.raises(RecipeError, match=r"--listen .*write HOST:PORT"):
        read_listen(text)


def test_options_that_do_not_go_together(recipe):
    for more in (["--nats", "nats://x"], ["--key", "x.nk"], ["--ca", "ca.pem"]):
        refused(2, "leave out --nats, --key and --ca", "serve", recipe, "--server", *more)
    refused(
        2, "--listen is only for --server", "serve", recipe, "--nats", "nats://x", "--listen", "a:1"
    )


def test_a_machine_without_the_program_says_what_to_install(tmp_path, monkeypatch):
    def without(name):
        raise PackageNotFoundError

    monkeypatch.setattr(nats_server, "distribution", without)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecipeError, match=r"pip install '.\[server\]'.* apt-get install"):
        OwnServer(tmp_path / "server")


@pytest.mark.long
@both_servers("program")
def test_it_keeps_its_store_and_stops(program, tmp_path):
    """Also with an address of IPv6; who asks for a port that is taken is told."""
    for host in ("127.0.0.1", "[::1]"):
        port = free_port()
        for _ in range(2):
            own = OwnServer(tmp_path / "server", f"{host}:{port}")
            try:
                assert own.url == f"nats://{host}:{port}" and own.version == server_version(program)
                assert reachable(port, own.host) and (own.folder / "store").exists()
                own.wait_until_left(print)
                with pytest.raises(NetworkError, match=f"use it with --nats nats://.*:{port}"):
                    OwnServer(tmp_path / "other", f"{host}:{port}")
            finally:
                own.stop()
            assert not reachable(port, own.host)
    line = next(x for x in own.config.read_text().splitlines() if x.startswith("jetstream"))
    assert ("sync_interval" in line) == (server_version(program) >= (2, 10))


@pytest.mark.long
@both_servers("program")
def test_keys_ask_for_synced_writes_where_the_server_knows_it(program, tmp_path):
    keys.make("run", tmp_path / "keys", ["a"], ["localhost"], 4222)
    text = (tmp_path / "keys" / "nats-server.conf").read_text()
    line = next(line for line in text.splitlines() if line.startswith("jetstream"))
    assert ("sync_interval: always" in line) == (server_version(program) >= (2, 10))
    checked = [program, "-c", tmp_path / "keys" / "nats-server.conf", "-t"]
    assert subprocess.run(checked, capture_output=True).returncode == 0


def serving(recipe, port, out):
    words = ["serve", recipe, "--server", "--listen", f"127.0.0.1:{port}", "--out", out]
    return subprocess.Popen([*COMMAND, *words], stdout=-1, stderr=-2, text=True)


@pytest.mark.long
@pytest.mark.skipif(find_server() is None, reason="there is no nats-server")
def test_serve_starts_one_for_a_first_federation(recipe, tmp_path):
    """It is there until the clients have read the end, and gone with the coordinator, also if that
    is killed; its store is there again at the next start.
    """
    port, out = free_port(), tmp_path / "run"
    first = serving(recipe, port, out)
    until(lambda: reachable(port), 60, "no server")
    first.send_signal(signal.SIGKILL)
    first.wait()
    until(lambda: not reachable(port), 60, "the server outlives its coordinator")
    second = serving(recipe, port, out)
    until(lambda: reachable(port), 60, "no server")
    where = ["--nats", f"nats://127.0.0.1:{port}", "--run", "small"]
    joined = fedseed_forked(
        "join", recipe, *where, "--client", "*", "--out", tmp_path / "model", beside=second
    )
    said = second.communicate(timeout=120)[0]
    assert (joined.returncode, second.returncode) == (0, 0), joined.stdout + joined.stderr + said
    digest = json.loads((out / "summary.json").read_text())["weights_digest"]
    assert f"weights digest: {digest}" in said and f"weights digest: {digest}" in joined.stdout
    assert (tmp_path / "model" / "model.orbit").read_bytes() == (out / "model.orbit").read_bytes()
    assert f"clients join with --nats nats://127.0.0.1:{port}" in said
    assert not reachable(port) and (tmp_path / "run-server" / "store").is_dir()


@pytest.mark.skipif(find_server() is None, reason="there is no nats-server")
def test_a_port_that_is_taken_is_said_in_one_line(recipe, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        refused(
            1,
            "use it with --nats",
            *("serve", recipe, "--server", "--listen", place, "--out", tmp_path / "run"),
        )
    assert list(tmp_path.iterdir()) == [recipe]
