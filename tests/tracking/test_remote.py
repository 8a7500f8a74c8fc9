"""Trackers whose runs live elsewhere: a run that is killed and goes on is one run there, every round once.

What all have in common is tested with one that keeps its runs here. The real ones are told of a real run, which is
killed and resumed, and are read back with the services' own readers; those that are not installed are left out
(`make trackers` brings and tests them).
"""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import pytest
from pydantic import PrivateAttr

from fedseed.errors import RecipeError
from fedseed.tracking import MLflow, Start, TensorBoard, WandB
from fedseed.tracking.remote import FILE, RemoteTracker

LINES = [{"round": n, "loss": 4.0 - n, "seconds": {"local": 1.0}} for n in range(5)]
STORE: dict[str, dict[int, Any]] = {}  # what the service has, by its name for the run


class Service(RemoteTracker):
    """A tracker of a service that lives in this process."""

    name: Literal["service"] = "service"
    about: ClassVar[str] = "for the tests"
    package: ClassVar[str] = "json"

    _files: list[str] = PrivateAttr(default_factory=list)

    def open(self, run, known):
        identity = known or f"run-{len(STORE)}"
        there = STORE.setdefault(identity, {})
        return identity, max(there, default=-1)

    def send(self, number, values):
        assert number not in STORE[self._run_id]
        STORE[self._run_id][number] = values

    def send_files(self, files):
        self._files += [file.name for file in files]


@pytest.fixture(autouse=True)
def empty():
    STORE.clear()


def session(folder, known, told, **settings):
    """A session that begins with `known` lines and tells of those up to `told`, and is killed then."""
    tracker = Service(**settings)
    tracker.start(Start("ferret", 4, 1, ["a"], folder, "rounds = 4\n", LINES[:known]))
    for line in LINES[known:told]:
        tracker.metrics(line)
    return tracker


@pytest.mark.parametrize(("known", "told"), [(0, 0), (1, 3), (3, 1), (2, 2)])
def test_a_run_that_goes_on_is_the_same_one_with_every_round_once(known, told, tmp_path):
    """Killed when it had been told of less than metrics.jsonl has, of as much, or of more."""
    session(tmp_path, 0, told)
    session(tmp_path, known, 5)
    assert list(STORE) == ["run-0"] and list(STORE["run-0"]) == list(range(5))
    assert STORE["run-0"][3] == {"loss": 1.0, "seconds.local": 1.0}


def test_files_are_sent_if_they_are_wanted_and_not_too_large(tmp_path):
    for name, size in (("small", 10), ("large", 200)):
        (tmp_path / name).write_bytes(bytes(size))
    files = [tmp_path / "small", tmp_path / "large"]
    for settings, sent in (({"largest": 100}, ["small"]), ({}, ["small", "large"]), ({"upload": False}, [])):
        tracker = session(tmp_path, 0, 1, **settings)
        tracker.artefacts(files)
        assert tracker._files == sent


@pytest.mark.parametrize("kind", [WandB, MLflow, TensorBoard])
def test_the_extra_is_named_where_its_package_is_missing(kind, monkeypatch):
    monkeypatch.setattr("fedseed.tracking.base.find_spec", lambda name: None)
    name = kind.model_fields["name"].default
    with pytest.raises(RecipeError, match=rf'tracking\.name = "{name}" needs the package {kind.package}: .*{name}\]'):
        kind().check()


# -- the real ones -----------------------------------------------------------------------------------------------------

SESSION = """
import os, signal, sys
from pathlib import Path
from typing import ClassVar, Literal
from fedseed.runs.loop import Run
from fedseed.tracking import REGISTRY, Tracker
from support.problem import Problem

folder, stop, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]

class Killer(Tracker):
    name: Literal["killer"] = "killer"
    about: ClassVar[str] = "kills this process after a round"
    def metrics(self, line):
        if line["round"] == stop:
            os.kill(os.getpid(), signal.SIGKILL)

Run.draw = lambda self, folder, metrics: None
problem = Problem()
trackers = [*(REGISTRY.get(name)() for name in names)]
trackers.insert(len(trackers) // 2, Killer())  # some have heard of the round by then, some have not
recipe = 'rounds = 5\\nseed = 3\\n[method]\\nname = "ferret"\\n'
run = problem.federation(
    problem.ferret(), rounds=5, evaluate_every=1, out=folder, recipe_text=recipe, trackers=trackers
)
run.run(resume=True)
"""
REMOTE = {"wandb": "wandb", "mlflow": "sqlalchemy"}  # package that reading back needs


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """The folder of a run that was killed after rounds 1 and 3, its lines of metrics, where services keep theirs."""
    home = tmp_path_factory.mktemp("trackers")
    places = {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db",
              "OMP_NUM_THREADS": "1"}  # fmt: skip
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, **places, "PYTHONPATH": paths}
    names = ["csv", *(name for name, package in REMOTE.items() if find_spec(package)), "tensorboard"]
    codes = []
    for stop in (1, 3, -1):
        words = [sys.executable, "-c", SESSION, str(home / "run"), str(stop), *names]
        done = subprocess.run(words, env=environment, cwd=home, capture_output=True, text=True)
        assert "is left out" not in done.stdout + done.stderr
        codes.append(done.returncode)
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0], done.stderr
    lines = [json.loads(line) for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(6))
    return home, [(line["round"], line["loss"]) for line in lines]


def mine(folder, name):
    """By what a folder's run is known at a service."""
    return json.loads((folder / FILE).read_text())[f"{name}:fedseed"]["id"]


def digest(home):
    return json.loads((home / "run" / "summary.json").read_text())["weights_digest"]


@pytest.mark.slow
def test_mlflow_has_every_round_once(resumed):
    pytest.importorskip("sqlalchemy", reason="the extra mlflow is not installed")
    from mlflow import MlflowClient

    home, losses = resumed
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("fedseed").experiment_id])
    assert run.info.run_id == mine(home / "run", "mlflow") and run.info.status == "FINISHED"
    for metric in ("loss", "round", "seconds.local"):
        history = client.get_metric_history(run.info.run_id, metric)
        assert [point.step for point in history] == list(range(1 if metric.startswith("seconds") else 0, 6))
    assert [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, "loss")] == losses
    assert run.data.params["method.name"] == "ferret" and run.data.tags["summary.weights_digest"] == digest(home)
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {"recipe.toml", "metrics.jsonl", "model.orbit", "summary.json"}


@pytest.mark.slow
def test_wandb_has_one_offline_run(resumed):
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    home, _ = resumed
    (folder,) = (home / "run" / "wandb").glob("offline-run-*")  # those of the killed sessions are replaced by it
    assert [file.name for file in folder.glob("*.wandb")] == [f"run-{mine(home / 'run', 'wandb')}.wandb"]
