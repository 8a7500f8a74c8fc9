"""Workers and sweeps on a Ray cluster of two nodes: the results are those of one process, also
where actors die.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedseed.actors import Cluster
from fedseed.errors import RecipeError
from support.command import fedseed
from support.left import before, left_by
from support.worker_runs import federation, workers

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quickly")]
TINY = ["--set", "rounds=2", "--set", "method.batch=2", "--set", "task.evaluation=20"]


@pytest.fixture(scope="module")
def address():
    """The address of a cluster of two nodes with two processors each, as they say."""
    from ray.cluster_utils import Cluster as Local

    node = {"num_cpus": 2, "object_store_memory": 10**8, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patched:
        # its 15 gets a thirtieth of a core beside a busy process
        patched.setenv("RAY_worker_niceness", "0")
        local = Local(initialize_head=True, head_node_args=node)
        local.add_node(**node)
    yield local.address
    ray.shutdown()
    local.shutdown()


def there(address, name, count):
    """Workers that are actors."""
    return workers(name, count, cluster=Cluster(address, count, 1))


@pytest.mark.parametrize(
    ("name", "count"), [("feedsign", 2), ("ferret", 4), ("fedavg", 2), ("subspace", 2)]
)
def test_digest_metrics_and_orbit_are_those_of_one_process(tmp_path, address, name, count):
    alone = left_by(federation(name, out=tmp_path / "alone", per_round=5).run().folder)
    result = federation(
        name, out=tmp_path / "shared", workers=there(address, name, count), per_round=5
    ).run()
    assert left_by(result.folder) == alone
    assert result.summary["workers"] == count


@pytest.mark.parametrize("name", ["feedsign", "fedavg"])
def test_actors_that_are_killed_change_nothing(tmp_path, address, name):
    settings = {"rounds": 12}
    alone = left_by(federation(name, out=tmp_path / "alone", **settings).run().folder)
    run = federation(name, out=tmp_path / "shared", workers=there(address, name, 2), **settings)
    killed = []

    def opening(number, *_):
        if len(killed) < 10:
            seat = run.team.seats[len(killed) % 2]
            if seat.process is not None:
                ray.kill(seat.process._life)
                killed.append(number)

    before(run.coordinator, "open", opening)
    assert left_by(run.run().folder) == alone
    assert len(killed) == 10


def test_a_sweep_has_the_tables_of_one_machine(tmp_path, address):
    found = []
    for name, more in (
        ("here", ["--threads", 1]),
        ("there", ["--ray", address, "--jobs", 2, "--threads", 1]),
    ):
        words = [
            "words-feedsign",
            "--each",
            "method.learning_rate=1e-3,3e-3",
            "--seeds",
            "1,2",
            *TINY,
        ]
        done = fedseed("compare", *words, "--out", tmp_path / name, *more)
        assert done.returncode == 0, done.stderr
        found.append(
            [
                (line["label"], [s["weights_digest"] for s in line["summaries"].values()])
                for line in json.loads((tmp_path / name / "compare.json").read_text())
            ]
        )
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_a_cluster_that_is_too_small_or_not_there_is_refused(address):
    with pytest.raises(
        RecipeError, match="5 processes of 1 threads, and the cluster has 4 processors"
    ):
        Cluster(address, 5, 1)
    with pytest.raises(RecipeError, match="no cluster answers there"):
        Cluster("127.0.0.1:1", 1)
    done = fedseed("run", "words-feedsign", "--ray", "auto")
    assert done.returncode == 2 and "--workers" in done.stderr


JOIN = """
import os, sys
from fedseed.actors import Cluster
from fedseed.errors import FedseedError
try:
    notes = []
    cluster = Cluster(sys.argv[1], 1, 1, notes.append)
    print("joined", os.environ.get("RAY_AUTH_MODE"), notes)
except FedseedError as error:
    print("refused", error)
"""


@pytest.fixture
def guarded(tmp_path):
    """A cluster of a home that has a token: it asks for it. Its address, and the home."""
    home, log = tmp_path / "home", tmp_path / "log.txt"
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("0123456789abcdef" * 2)
    with socket.socket() as one, socket.socket() as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        port, client_port = (str(free.getsockname()[1]) for free in (one, other))
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    env["HOME"] = str(home)
    command = [
        Path(sys.executable).with_name("ray"),
        "start",
        "--head",
        "--block",
        *("--port", port, "--num-cpus", "1", "--include-dashboard", "false"),
        # ports that the head's own is not among
        *(
            "--min-worker-port",
            "0",
            "--max-worker-port",
            "0",
            "--ray-client-server-port",
            client_port,
        ),
        *("--disable-usage-stats", "--object-store-memory", "80000000"),
    ]
    with open(log, "w") as out:
        head = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        while "Ray runtime started" not in log.read_text():
            assert head.poll() is None, log.read_text()
            time.sleep(0.2)
        yield f"127.0.0.1:{port}", env
    finally:
        with suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            head.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        head.wait()


def test_a_cluster_that_asks_for_a_token_is_joined_or_named(guarded):
    address, env = guarded

    def said(**more):
        words = [sys.executable, "-c", JOIN, address]
        done = subprocess.run(
            words, env={**env, **more}, capture_output=True, text=True, check=True
        )
        return done.stdout

    joined = said()
    assert joined.startswith("joined token")
    # root may take Ray's 15 away; others are told
    assert ("a niceness of 15" in joined) == (os.geteuid() != 0)
    (Path(env["HOME"]) / ".ray" / "auth_token").unlink()
    refused = said()
    assert refused.startswith("refused") and "RAY_AUTH_MODE=token" in refused
