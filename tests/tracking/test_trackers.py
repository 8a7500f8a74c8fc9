import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import PrivateAttr

from fedseed.errors import RecipeError
from fedseed.tracking import TRACKERS, MLflow, Start, TensorBoard, Tracker, Trackers, WandB
from fedseed.tracking.wandb import FILE

LINES = [
    {"round": 0, "seconds": {"evaluation": 1.5}, "loss": 4.0, "train_loss": None},
    {
        "round": 1,
        "seconds": {"local": 2.0, "rebuild": 0.5},
        "clients": ["a", "b"],
        "bytes_up": 8.0,
        "digest": "0f",
    },
    {
        "round": 2,
        "seconds": {"local": 3.0, "rebuild": 0.5},
        "clients": ["a"],
        "bytes_up": 8.0,
        "loss": 3.5,
    },
]


def start(folder, earlier=()):
    return Start("ferret", 2, 1, ["a", "b"], folder, "rounds = 2\n", earlier)


class Noisy(Tracker):
    name: Literal["noisy"] = "noisy"
    about: ClassVar[str] = "fails where it is told to"

    fails: str = ""

    _told: list[Any] = PrivateAttr(default_factory=list)

    def _hear(self, what, content=None):
        self._told.append((what, content))
        if what == self.fails:
            raise OSError(f"no {what}\ntoday")

    def start(self, run):
        self._hear("start", run)

    def metrics(self, line):
        self._hear("metrics", line)

    def artefacts(self, files):
        self._hear("artefacts", [file.name for file in files])

    def finish(self, summary):
        self._hear("finish", summary)

    def close(self):
        self._hear("close")


@pytest.mark.parametrize("kind", TRACKERS)
def test_what_every_tracker_keeps_to(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")  # it stays on this machine
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/store.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    assert kind.about
    if kind.package is not None:
        pytest.importorskip(
            kind.package, reason=f"the extra {kind.model_fields['name'].default} is not installed"
        )
    with pytest.raises(ValueError, match="extra"):
        kind(folders="x")
    for run in (start(tmp_path), start(tmp_path, LINES[:2])):
        tracker = kind()
        tracker.check()
        tracker.start(run)
        for line in LINES[len(run.earlier) :]:
            tracker.metrics(line)
        tracker.artefacts([])
        tracker.finish({"rounds": 2})
        tracker.close()
        tracker.close()
        assert tracker.model_dump() == kind().model_dump()  # settings stay settings


def test_curves_on_a_board(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # killed after round 2, of which metrics.jsonl has round 0 only; then before it was told of
    # round 1
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # a coordinator has none
    for known, told in ((0, 3), (1, 1), (2, 3)):
        tracker = TensorBoard()
        tracker.start(start(tmp_path, LINES[:known]))
        for line in LINES[known:told]:
            tracker.metrics(line)
        tracker.close()
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in board.Scalars("loss")] == [(0, 4.0), (2, 3.5)]
    assert [event.step for event in board.Scalars("seconds/local")] == [1, 2]


def test_without_a_folder_it_is_said_and_the_run_goes_on():
    said = []
    trackers = Trackers([TensorBoard()], said.append)
    trackers.tell("start", start(None))
    trackers.tell("metrics", LINES[0])
    trackers.close()
    assert len(said) == 1 and "has no folder" in said[0]


@pytest.mark.parametrize("kind", [WandB, TensorBoard])
def test_the_extra_is_named_where_its_package_is_missing(kind, monkeypatch):
    monkeypatch.setattr("fedseed.tracking.base.find_spec", lambda name: None)
    name = kind.model_fields["name"].default
    with pytest.raises(
        RecipeError,
        match=rf'tracking\.name = "{name}" needs the package {kind.package}: .*{name}\]',
    ):
        kind().check()


class Service:
    """What W&B has of a run, in this process; its module is `wandb` here."""

    runs: ClassVar[dict[str, "Service"]] = {}

    def __init__(self, identity):
        self.id, self.step, self.resumed, self.told, self.files = identity, 0, False, [], []
        self.settings = self
        self.mode = "online"

    @classmethod
    def init(cls, id, **settings):
        found = cls.runs.setdefault(id, cls(id))
        found.resumed = bool(found.told)
        return found

    def log(self, values, step):
        self.told.append((step, values))
        self.step = step + 1

    def log_artifact(self, files):
        self.files += files


class Files(list):
    def __init__(self, name, type):
        super().__init__()

    def add_file(self, name):
        self.append(Path(name).name)


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(Service, "runs", {})
    module = type(sys)("wandb")
    module.init, module.Settings, module.Artifact = Service.init, dict, Files
    monkeypatch.setitem(sys.modules, "wandb", module)
    return Service.runs


@pytest.mark.parametrize(("known", "told"), [(0, 0), (1, 3), (3, 1), (2, 2)])
def test_a_run_that_goes_on_is_the_same_one_with_every_round_once(known, told, tmp_path, service):
    """Killed when it had been told of less than metrics.jsonl has, of as much, or of more."""
    for earlier, upto in ((0, told), (known, len(LINES))):
        tracker = WandB()
        tracker.start(start(tmp_path, LINES[:earlier]))
        for line in LINES[earlier:upto]:
            tracker.metrics(line)
    (run,) = service.values()
    assert [step for step, _ in run.told] == [0, 1, 2]
    assert json.loads((tmp_path / FILE).read_text()) == {"wandb:fedseed": {"id": run.id}}
    assert run.told[1][1] == {
        "seconds/local": 2.0,
        "seconds/rebuild": 0.5,
        "clients": 2,
        "bytes_up": 8.0,
    }


@pytest.mark.parametrize(("upload", "sent"), [(True, ["small"]), (False, [])])
def test_files_are_sent_if_they_are_wanted_and_not_too_large(
    upload, sent, tmp_path, service, monkeypatch
):
    monkeypatch.setattr("fedseed.tracking.wandb.LARGEST", 100)
    files = [tmp_path / "small", tmp_path / "large"]
    for file, size in zip(files, (10, 200), strict=True):
        file.write_bytes(bytes(size))
    tracker = WandB(upload=upload)
    tracker.start(start(tmp_path))
    tracker.artefacts(files)
    assert next(iter(service.values())).files == sent


@pytest.mark.parametrize("fails", ["start", "metrics", "artefacts", "finish", "close", "nowhere"])
def test_one_that_fails_is_named_once_and_left_out(fails):
    said: list[str] = []
    settings = [Noisy(fails=fails), Noisy()]
    trackers = Trackers(settings, said.append)
    copies = trackers._trackers[:]
    trackers.tell("start", start(None))
    for line in LINES:
        trackers.tell("metrics", line)
    trackers.tell("artefacts", [])
    trackers.tell("finish", {})
    trackers.close()
    heard, good = ([what for what, _ in one._told] for one in copies)
    assert good == ["start", "metrics", "metrics", "metrics", "artefacts", "finish", "close"]
    if fails == "nowhere":
        assert said == [] and heard == good
    else:
        assert said == [
            f'tracking.name = "noisy" is left out from here on: OSError: no {fails} today'
        ]
        assert heard.count(fails) == (2 if fails == "close" else 1) and heard[-1] == "close"
    assert settings[1]._told == []  # a run has copies of its own


def test_a_run_hands_over_the_files_that_it_leaves(problem, tmp_path, without_pictures):
    told = []

    class Keeping(Noisy):
        def finish(self, summary):
            told.extend(self._told)

    run = problem.federation(
        problem.ferret(), rounds=1, out=tmp_path / "run", trackers=[Keeping()], recipe_text=""
    )
    run.run()
    (files,) = [content for what, content in told if what == "artefacts"]
    assert files == ["recipe.toml", "metrics.jsonl", "model.orbit", "summary.json"]


SESSION = """
import os, signal, sys
from pathlib import Path
from typing import ClassVar, Literal
from fedseed.runs.loop import Run
from fedseed.tracking import Tracker, WandB
from support.problem import Problem

folder, stop = Path(sys.argv[1]), int(sys.argv[2])

class Killer(Tracker):
    name: Literal["killer"] = "killer"
    about: ClassVar[str] = "kills this process after a round"
    def metrics(self, line):
        if line["round"] == stop:
            os.kill(os.getpid(), signal.SIGKILL)

Run.draw = lambda self, folder, metrics: None
problem = Problem()
run = problem.federation(
    problem.ferret(), rounds=5, evaluate_every=1, out=folder, recipe_text="rounds = 5",
    trackers=[WandB(), Killer()],
)
run.run(resume=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("wandb") is None, reason="the extra wandb is not installed")
def test_wandb_itself_has_one_offline_run_of_three_sessions(tmp_path):
    environment = {**os.environ, "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    for stop, code in ((1, -signal.SIGKILL), (3, -signal.SIGKILL), (-1, 0)):
        words = [sys.executable, "-c", SESSION, str(tmp_path / "run"), str(stop)]
        done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
    known = json.loads((tmp_path / "run" / FILE).read_text())["wandb:fedseed"]["id"]
    # W&B's own process may still write its log
    kept = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert [file.name for file in kept] == [f"run-{known}.wandb"]


SESSIONS = [(0, 0), (1, 3), (3, 1), (2, 2)]  # lines that metrics.jsonl has, and that were sent


def run_sessions(kind, folder, known, sent, **settings):
    """A run that is killed and taken up again."""
    for earlier, upto in ((0, sent), (known, len(LINES))):
        tracker = kind(**settings)
        tracker.start(start(folder, LINES[:earlier]))
        for line in LINES[earlier:upto]:
            tracker.metrics(line)
        if upto == len(LINES) and earlier == known:
            (folder / "summary.json").write_text("{}")
            tracker.artefacts([folder / "summary.json"])
            tracker.finish({"rounds": 2, "method": "ferret", "final": {"loss": 3.5}})
        tracker.close()


@pytest.mark.long
@pytest.mark.parametrize(("known", "sent"), SESSIONS)
def test_mlflow_has_every_round_once_and_the_files(known, sent, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    uri = f"sqlite:///{tmp_path}/store.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = mlflow.MlflowClient(tracking_uri=uri)
    client.create_experiment("hospitals", artifact_location=(tmp_path / "files").as_uri())
    folder = tmp_path / "mine"
    folder.mkdir()
    run_sessions(MLflow, folder, known, sent, project="hospitals")
    experiment = client.get_experiment_by_name("hospitals").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.run_name == "mine" and run.info.status == "FINISHED"
    assert run.data.params["rounds"] == "2" and run.data.tags["summary.method"] == "ferret"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(0, 4.0), (2, 3.5)]
    local = client.get_metric_history(run.info.run_id, "seconds.local")
    assert [point.step for point in local] == [1, 2]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["summary.json"]


@pytest.mark.long
@pytest.mark.parametrize(("known", "sent"), SESSIONS)
def test_trackio_has_every_round_once(known, sent, tmp_path):
    """In a process of its own: the library reads its folder's place when it is imported."""
    pytest.importorskip("trackio", reason="the extra trackio is not installed")
    code = f"""
import json
from pathlib import Path
from tracking.test_trackers import run_sessions
from fedseed.tracking import Trackio
folder = Path({str(tmp_path / "mine")!r})
folder.mkdir()
run_sessions(Trackio, folder, {known}, {sent}, project="hospitals")
from trackio.sqlite_storage import SQLiteStorage
(name,) = SQLiteStorage.get_runs("hospitals")
print(name, json.dumps(SQLiteStorage.get_logs("hospitals", name)))
"""
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    environment["PYTHONPATH"] = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    name, _, text = done.stdout.partition(" ")
    lines = json.loads(text)
    assert name.startswith("mine-")
    assert [(line["step"], line["loss"]) for line in lines if "loss" in line] == [
        (0, 4.0),
        (2, 3.5),
    ]
    assert [line["step"] for line in lines if "seconds/local" in line] == [1, 2]
    assert [line["summary/final/loss"] for line in lines if "summary/rounds" in line] == [3.5]
