"""Flower itself: its simulation, and a SuperLink with two SuperNodes, run the example to a
simulation's bits.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is missing: extra flower")

import fedseed
from fedseed import Orbit
from support.command import fedseed as command
from support.network import free_port, reachable, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_pictures")]

EXAMPLES = Path(fedseed.__file__).parents[2] / "examples"
DATA = EXAMPLES / "three-hospitals" / "data"
SHORT = (
    "rounds=2",
    "method.directions=500",
    "method.training.steps=2",
    "evaluation.every=2",
    "evaluation.digest_every=2",
)


class Flower:
    """Flower's processes, each with a home of its own."""

    def __init__(self, folder):
        self.folder, self.port, self._started = folder, free_port(), []
        self.out = folder / "run"

    def environment(self, name):
        home = self.folder / name
        home.mkdir(exist_ok=True)
        paths = [str(Path(fedseed.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
        }

    def start(self, name, *words):
        """A process that stays."""
        with open(self.folder / f"{name}.log", "w") as log:
            process = subprocess.Popen(
                list(map(str, words)),
                stdout=log,
                stderr=log,
                env=self.environment(name),
                cwd=self.folder,
            )
        self._started.append(process)

    def link(self, *words):
        self.start(
            "link",
            "flower-superlink",
            "--insecure",
            "--host",
            "127.0.0.1",
            "--port",
            self.port,
            *words,
        )
        until(lambda: reachable(self.port), 120, "the SuperLink does not start")

    def node(self, name, config):
        words = (
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--port",
            free_port(),
            "--node-config",
            config,
        )
        self.start(name, "flower-supernode", "--insecure", *words)

    def run(self, *words, **config):
        """`flwr run`; returns the summary."""
        config = {"out": self.out, "set": ";".join(SHORT), **config}
        pairs = " ".join(f"{key}='{value}'" for key, value in config.items())
        environment = self.environment("user")
        (self.folder / "user" / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n[superlink.here]\naddress = '
            f'"127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        done = subprocess.run(
            [
                "flwr",
                "run",
                str(EXAMPLES / "flower"),
                "here",
                "--run-config",
                pairs,
                "--stream",
                *words,
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        said = done.stdout + done.stderr
        logs = {path.name: path.read_text()[-3000:] for path in self.folder.glob("*.log")}
        assert (self.out / "summary.json").exists(), (said, logs)
        assert "Traceback" not in said, said
        return json.loads((self.out / "summary.json").read_text())

    def stop(self):
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def flower(tmp_path):
    found = Flower(tmp_path)
    yield found
    found.stop()


@pytest.fixture
def expected(tmp_path):
    """The same recipe in this process."""
    from fedseed.weights.devices import limited

    words = [word for pair in (*SHORT, f"task.path={DATA}") for word in ("--set", pair)]
    with limited(1):
        done = command(
            "run", EXAMPLES / "flower" / "recipe.toml", *words, "--out", tmp_path / "expected"
        )
    assert done.returncode == 0, done.stderr
    return tmp_path / "expected"


def compare(expected, out):
    """The same orbit to the last byte, the same figures, and no token in any file."""
    here, there = (json.loads((folder / "summary.json").read_text()) for folder in (expected, out))
    for key in (
        "weights_digest",
        "baseline",
        "final",
        "by_client",
        "payload_bytes_up",
        "payload_bytes_down",
    ):
        assert here[key] == there[key], key
    assert (expected / "model.orbit").read_bytes() == (out / "model.orbit").read_bytes()
    assert Orbit.open(out / "model.orbit").complete
    assert "--token" not in there["command"] or "--token '***'" in there["command"]


def test_flowers_simulation(flower, expected):
    flower.link("--simulation")
    flower.run("--federation-config", "num-supernodes=3", data=DATA)
    compare(expected, flower.out)


def test_a_superlink_with_two_supernodes(flower, expected, tmp_path):
    """Each with its own data; one works for two clients."""
    flower.link()
    both = tmp_path / "both"
    both.mkdir()
    for name in ("south.jsonl", "east.csv"):
        shutil.copy(DATA / name, both)
    flower.node("first", f'client="north" data="{DATA / "north.jsonl"}"')
    flower.node("second", f'client="south,east" data="{both}"')
    flower.run()
    compare(expected, flower.out)
