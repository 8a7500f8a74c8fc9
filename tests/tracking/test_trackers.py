import csv
import sys
from typing import Any, ClassVar, Literal

import pytest
from pydantic import PrivateAttr

from fedseed.tracking import CSV, TRACKERS, Start, TensorBoard, Tracker, Trackers
from fedseed.tracking.remote import RemoteTracker

LINES = [
    {"round": 0, "seconds": {"evaluation": 1.5}, "loss": 4.0, "train_loss": None},
    {"round": 1, "seconds": {"local": 2.0, "rebuild": 0.5}, "clients": ["a", "b"], "bytes_up": 8.0, "digest": "0f"},
    {"round": 2, "seconds": {"local": 3.0, "rebuild": 0.5}, "clients": ["a"], "bytes_up": 8.0, "loss": 3.5},
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
def test_what_every_tracker_keeps_to(kind, tmp_path, elsewhere):
    assert kind.about
    if issubclass(kind, RemoteTracker):
        pytest.importorskip(kind.package, reason=f"the extra {kind.model_fields['name'].default} is not installed")
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


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("known", range(4))
def test_a_resumed_spreadsheet_has_no_line_twice_and_none_missing(known, tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    for folder, sessions in ((whole, [LINES]), (resumed, [LINES, LINES[known:]])):
        folder.mkdir()
        for lines in sessions:  # the first one was killed after it had told of everything, or of too little
            tracker = CSV()
            tracker.start(start(folder, LINES[: len(LINES) - len(lines)]))
            for line in lines:
                tracker.metrics(line)
            tracker.close()
    found = rows(resumed / "metrics.csv")
    assert found == rows(whole / "metrics.csv")
    assert [row["round"] for row in found] == ["0", "1", "2"] and [row["loss"] for row in found] == ["4.0", "", "3.5"]
    assert found[0]["clients"] == "" and found[2]["clients"] == "1" and "digest" not in found[0]


def test_curves_on_a_board(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # killed after round 2, of which metrics.jsonl has round 0 only; then before it was told of round 1
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


@pytest.mark.parametrize("kind", [CSV, TensorBoard])
def test_without_a_folder_it_is_said_and_the_run_goes_on(kind):
    said = []
    trackers = Trackers([kind()], said.append)
    trackers.tell("start", start(None))
    trackers.tell("metrics", LINES[0])
    trackers.close()
    assert len(said) == 1 and "has no folder" in said[0]


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
    bad, good = copies
    assert [what for what, _ in good._told] == [
        "start", "metrics", "metrics", "metrics", "artefacts", "finish", "close",
    ]  # fmt: skip
    heard = [what for what, _ in bad._told]
    if fails == "nowhere":
        assert said == [] and heard == [what for what, _ in good._told]
    else:
        assert said == [f'tracking.name = "noisy" is left out from here on: OSError: no {fails} today']
        assert heard.count(fails) == (2 if fails == "close" else 1) and heard[-1] == "close"
    assert settings[1]._told == []  # a run has copies of its own


def test_a_run_hands_over_the_files_that_it_leaves(problem, tmp_path, without_pictures):
    told = []

    class Keeping(Noisy):
        def finish(self, summary):
            told.extend(self._told)

    run = problem.federation(problem.ferret(), rounds=1, out=tmp_path / "run", trackers=[Keeping()], recipe_text="")
    run.run()
    (files,) = [content for what, content in told if what == "artefacts"]
    assert files == ["recipe.toml", "metrics.jsonl", "model.orbit", "summary.json"]
