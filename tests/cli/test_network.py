"""fedseed serve, join, status and keys: what goes wrong is one line and an exit code."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedseed.cli import app as cli
from fedseed.cli.network import describe
from fedseed.transport import nats_connection
from support.command import refused, well
from support.forked import fedseed_forked
from support.network import free_port, until

RECIPE = """
rounds = 6
task = {clients = 3, examples = 8, evaluation = 1, unseen = 1}
federation = {joint = false}
method = {name = "feedsign", batch = 2}
evaluation = {every = 3, rouge = false}
"""
FEEDSIGN = {
    "method": {"name": "feedsign", "basis": "rademacher", "learning_rate": 1e-2, "batch": 8},
    "rounds": 30,
    "evaluation": {"every": 10},
}


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return path


def test_servers_that_are_not_there(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(nats_connection, "CONNECT_SECONDS", 1)
    port = free_port()
    serve = ("serve", recipe, "--out", tmp_path / "run", "--nats")
    why = (
        f"fedseed: 127.0.0.1:{port}: can't be reached: nothing listens there; check that "
        "nats-server is running\n"
    )
    refused(1, why, *serve, f"nats://127.0.0.1:{port}")
    why = "fedseed: no-such-host.invalid:4222: there is no host of this name\n"
    refused(1, why, "status", "small", "--nats", "nats://no-such-host.invalid:4222")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        refused(1, "no answer within", *serve, f"nats://127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("join", "RECIPE", "--nats", "nats://127.0.0.1:1"), "--client NAME"),
        (("serve", "RECIPE"), "the server's address is missing"),
        (("serve", "RECIPE", "--nats", "http://x"), "write nats://HOST:PORT"),
        (("serve", "RECIPE", "--nats", "nats://x", "--run", "a.b"), "run name 'a.b'"),
        (
            ("serve", "RECIPE", "--nats", "nats://x", "--key", "/no/such.nk"),
            "/no/such.nk: there is no such file",
        ),
        (
            ("serve", "RECIPE", "--nats", "nats://x", "--set", "federation.base_digest=xyz"),
            "federation.base_digest",
        ),
        (
            ("join", "RECIPE", "--nats", "nats://x", "--client", "client-01", "--data", "/no/such"),
            "divides its data itself",
        ),
        (
            ("join", "RECIPE", "--nats", "nats://127.0.0.1:1", "--client", "nobody"),
            "--client nobody: the recipe's",
        ),
    ],
)
def test_wrong_command_lines(arguments, text, recipe):
    refused(2, text, *(recipe if a == "RECIPE" else a for a in arguments))


@pytest.fixture
def without_torch(tmp_path):
    """The environment of a process in which torch and what needs it can't be imported."""
    guard = tmp_path / "guard"
    guard.mkdir()
    (guard / "sitecustomize.py").write_text(
        "import sys\n"
        "for name in ('torch', 'transformers', 'numba', 'tokenizers', 'peft'):\n"
        "    sys.modules[name] = None\n"
    )
    path = f"{guard}:{os.environ.get('PYTHONPATH', '')}:{Path(cli.__file__).parents[1]}"
    return {**os.environ, "PYTHONPATH": path}


def test_a_run_by_its_commands(recipe, shared_server, tmp_path, without_torch):
    """The real commands and model: the digest is that of `fedseed run`, and `serve` imports no
    torch.
    """
    where = ["--nats", shared_server.url, "--run", "commands"]
    command = [
        sys.executable,
        "-c",
        "from fedseed.cli.app import main; main()",
        "serve",
        recipe,
        *where,
    ]
    words = [*command, "--out", tmp_path / "net"]
    serving = subprocess.Popen(words, env=without_torch, stdout=-1, stderr=-2, text=True)
    clients = ["--client", "client-0[12]", "--client", "client-03"]
    joined = fedseed_forked("join", recipe, *where, *clients, beside=serving)
    if joined.returncode:
        serving.kill()  # it would wait for clients
    served = serving.communicate(timeout=200)[0]
    assert (joined.returncode, serving.returncode) == (0, 0), joined.stdout + joined.stderr + served
    assert fedseed_forked("run", recipe, "--out", tmp_path / "here").returncode == 0
    expected = json.loads((tmp_path / "here" / "summary.json").read_text())["weights_digest"]
    for text in (served, joined.stdout):
        assert f"weights digest: {expected}" in text.splitlines()
    assert (
        "no coordinator answers" in well("status", "commands", "--nats", shared_server.url).stdout
    )
    refused(1, "the server knows no run nothing", "status", "nothing", "--nats", shared_server.url)
    assert "is finished" in well("serve", recipe, *where, "--out", "net", cwd=tmp_path).stdout
    differ = "method.learning_rate is 5e-06 there, 0.01 here; method.batch is 2 there, 3 here"
    other = ("--set", "method.batch=3", "--set", "method.learning_rate=0.01")
    refused(2, differ, "serve", recipe, *where, "--out", tmp_path / "net", *other)
    refused(1, "--fresh", "serve", recipe, *where, "--out", tmp_path / "new")
    refused(
        1,
        "method.batch",
        "serve",
        recipe,
        *where,
        "--out",
        tmp_path / "new",
        "--set",
        "method.batch=3",
    )


def test_another_base_another_recipe(problem, network, shared_server, in_process):
    net = network(shared_server, FEEDSIGN)
    expected = in_process(problem, net.recipe)
    coordinator, host = net.coordinator(), net.host(0, 1, 2, slow=0.02)
    until(lambda: "3 of 5 clients are here" in coordinator.said, 120, "three do not come")
    wrong = net.host(3, 4, other_base=True)
    assert wrong.wait() == 1 and "refuses client-3: another base: its digest is" in wrong.text
    wrong = net.host(
        3, 4, recipe={**net.recipe, "method": {**net.recipe["method"], "learning_rate": 0.5}}
    )
    assert (
        wrong.wait() == 1
        and "another recipe or model: method.learning_rate: 0.5, 0.01 here" in wrong.text
    )
    late = net.host(3, 4)
    status = until(
        lambda: (said := net.status() or {}).get("last", {}).get("loss") and said,
        120,
        "no loss is told",
    )
    net.check(problem, coordinator, [host, late], expected.summary)
    assert status["alive"] == 5 and status["clients"] == 5
    lines = describe(status)
    assert f"of {net.recipe['rounds']}" in lines[0] and "5 of 5 alive" in lines[1]
    assert any(line.startswith("held-out loss") for line in lines) and any(
        "another base" in line for line in lines
    )


def test_a_program_that_runs_commands_has_its_environment_back(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedseed", "status", "nothing.toml"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "FEDSEED_COMMAND" not in os.environ
