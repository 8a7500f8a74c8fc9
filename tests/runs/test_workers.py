"""Local worker processes: the results are one process', whatever happens to the workers."""

import gc
import os
import random
import signal
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from fedseed.errors import FedseedError, RecipeError
from fedseed.runs import workers as workers_module
from fedseed.runs.assembly import build
from fedseed.runs.recipe import read_recipe
from fedseed.runs.workers import MOST_DEATHS, Team, Workers
from support.heard import Heard
from support.network import until
from support.worker_runs import RUNS, endless, federation, not_loading, workers

LONG = pytest.mark.long
SLOW = pytest.mark.slow


pytestmark = pytest.mark.usefixtures("quickly")


def outcome(result):
    """All that must be the same with workers and without: metrics but for seconds, and the files' bytes."""
    folder, summary = result.folder, dict(result.summary)
    for key in ("seconds", "seconds_per_client", "peak_memory_bytes", "workers", "worker_peak_memory_bytes",
                "started", "ended"):  # fmt: skip
        summary.pop(key, None)
    metrics = [{k: v for k, v in line.items() if k != "seconds"} for line in result.metrics]
    if (folder / "model.orbit").exists():
        model = (folder / "model.orbit").read_bytes()
    else:  # its metadata come in any order
        with safe_open(folder / "model.safetensors", framework="np") as file:
            model = file.metadata(), {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return {"summary": summary, "metrics": metrics, "model": model}


# -- the same as one process -------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "count"),
    [(name, 4 if name in ("ferret", "feedsign", "fedavg") else 2) for name in RUNS if name != "fedsgd"],
)
def test_digest_metrics_and_orbit_are_those_of_one_process(tmp_path, name, count):
    settings = {"per_round": 5} if count > 3 else {}
    alone = outcome(federation(name, out=tmp_path / "alone", **settings).run())
    run = federation(name, out=tmp_path / "shared", workers=workers(name, count), **settings)
    result = run.run()
    assert outcome(result) == alone
    assert result.summary["workers"] == len(run.team.seats) == count
    assert result.summary["worker_peak_memory_bytes"] > 0
    assert all(seat.process.exitcode is not None for seat in run.team.seats)


def test_gradients_that_one_process_adds_up_are_not_dealt_out():
    heard = Heard()
    run = federation("fedsgd", workers=workers("fedsgd", 2), progress=heard)
    assert run.team is None
    assert run.run().summary["weights_digest"] == federation("fedsgd").run().summary["weights_digest"]
    assert any("fedsgd" in note and "federation.joint = false" in note for note in heard.said)


TINY = ["rounds=2", "federation.per_round=4", "task.clients=4", "task.examples=5", "task.evaluation=1", "task.unseen=0",
        "task.validation=1", "evaluation.rouge=false"]  # fmt: skip
FEDIT = ["small-fedit", "--set", "method.training.steps=2", "--set", "method.training.batch=2"]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        pytest.param(2, FEDIT, marks=LONG, id="fedit-2"),
        pytest.param(
            2,
            ["quickstart-ferret", "--set", "method.training.steps=2", "--set", "aggregation.name=clipped-mean",
             "--plugin", Path(__file__).parents[2] / "examples" / "plugin_clipped_mean.py"],
            marks=SLOW, id="plugin",
        ),
    ],
)  # fmt: skip
def test_the_command_with_workers_ends_with_the_same_files(tmp_path, count, words):
    """The workers load the recipe themselves, plug-ins too."""
    from support.command import fedseed

    overrides = [word for pair in TINY for word in ("--set", pair)]
    files = []
    for name, options in (("alone", ["--threads", 1]), ("shared", ["--threads", 1, "--workers", count])):
        done = fedseed("run", *words, *overrides, "--out", tmp_path / name, *options)
        assert done.returncode == 0, done.stderr
        if name == "shared":
            assert f"{count} worker processes, 1 thread each" in done.stdout
        kept = tmp_path / name / ("model.safetensors" if words[0] == "small-fedit" else "model.orbit")
        if kept.suffix == ".orbit":
            files.append(kept.read_bytes())
        else:
            with safe_open(kept, framework="np") as file:
                files.append({key: file.get_tensor(key).tobytes() for key in file.keys()})  # noqa: SIM118
    assert files[0] == files[1]


# -- workers that die --------------------------------------------------------------------------------------------------


class Killer:
    """Kills a worker at random moments of a run: when something was just said to one, or heard of one.

    Rounds wait for all workers to be there while there are kills left, so that none is missed.

    Args:
        kills: how many.
        seed: decides when, and whom.
    """

    def __init__(self, kills, seed, monkeypatch):
        self.left = kills
        self.random = random.Random(seed)
        self.hit = {}  # what each killed worker was doing, by its process id
        self.team = None
        self._lock = threading.Lock()
        tell, take, begin = workers_module._Seat.tell, Team._take, Team.begin

        def telling(seat, order):
            tell(seat, order)
            self.moment()

        def taking(team, seat):
            take(team, seat)
            self.moment()

        def beginning(team, orders):
            self.team = team
            team.start()
            if self.left:
                until(lambda: all(seat.ready for seat in team.seats), 300, "workers do not come back")
            begin(team, orders)

        monkeypatch.setattr(workers_module._Seat, "tell", telling)
        monkeypatch.setattr(Team, "_take", taking)
        monkeypatch.setattr(Team, "begin", beginning)

    def moment(self):
        """Something has happened: perhaps a worker dies of it. None does so often in a row that the run gives up.

        The last kills are kept for what no worker was hit at yet: each loads again after the one before, and works
        in every round.
        """
        with self._lock:
            missing = DOINGS - set(self.hit.values())
            kept = self.left <= len(missing)
            if self.team is None or not self.left or (not kept and self.random.random() > 0.3):
                return
            alive = [
                seat
                for seat in self.team.seats
                if seat.process.exitcode is None and seat.process.pid not in self.hit
                and (not kept or doing(seat) in missing)
                and max(seat.deaths, 0 if seat.task is None else seat.task.losses) < MOST_DEATHS - (1 if kept else 2)
            ]  # fmt: skip
            if alive:
                self.random.shuffle(alive)
                done = Counter(self.hit.values())
                seat = min(alive, key=lambda one: done[doing(one)])  # of the kind that was hit least often
                self.left -= 1
                self.hit[seat.process.pid] = doing(seat)
                os.kill(seat.process.pid, signal.SIGKILL)


DOINGS = {"loading", "working", "idle"}


def doing(seat):
    """What a worker does at the moment: one of `DOINGS`."""
    return "loading" if not seat.ready else "working" if seat.task is not None else "idle"


@pytest.mark.long
@pytest.mark.parametrize("name", ["ferret", "feedsign-apart", "fedavg"])
def test_workers_killed_at_ten_random_moments_change_nothing(tmp_path, monkeypatch, name):
    alone = outcome(federation(name, out=tmp_path / "alone", rounds=12).run())
    killer, heard = Killer(10, 1, monkeypatch), Heard()
    run = federation(name, out=tmp_path / "shared", rounds=12, workers=workers(name, 2), progress=heard)
    assert outcome(run.run()) == alone
    assert len(killer.hit) == 10 and set(killer.hit.values()) == DOINGS
    died = [text for text in heard.warnings if "died (killed by SIGKILL" in text]
    assert len(died) in (9, 10)  # the last one may have died with the run


@pytest.mark.long
def test_a_worker_that_has_loaded_nothing_again_and_again_ends_the_run():
    heard = Heard()
    run = federation("ferret", workers=Workers(partial(not_loading, "die"), 1), progress=heard)
    with pytest.raises(FedseedError, match=r"died 5 times in a row before .* loaded.*exit code 7.*fewer --workers"):
        run.run()
    assert len(heard.warnings) == MOST_DEATHS - 1
    assert all(seat.process.exitcode is not None for seat in run.team.seats)


@pytest.mark.long
def test_work_that_kills_every_worker_ends_the_run():
    """Though the other clients' work goes well in between."""
    run = federation("ferret", "die", workers=workers("ferret", 2, "die"))
    with pytest.raises(FedseedError, match=r"died 5 times in a row over the same work \(exit code 7\)"):
        run.run()


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("act", "kind", "text"),
    [("refuse", RecipeError, "this client's examples are no good"), ("odd", RuntimeError, "OddError: this and that")],
)
def test_what_one_process_would_raise_is_raised(act, kind, text):
    run = federation("ferret", act, workers=workers("ferret", 2, act))
    with pytest.raises(kind) as caught:
        run.run()
    assert str(caught.value) == text
    assert kind is RuntimeError or "in a worker process:" in caught.value.__notes__[0]
    assert all(seat.process.exitcode is not None for seat in run.team.seats)


@pytest.mark.long
def test_a_worker_with_another_base_is_refused():
    run = federation("ferret", workers=workers("ferret", 1, dtype=torch.bfloat16))
    with pytest.raises(FedseedError, match="worker 1 has loaded another model"):
        run.run()


def test_numbers_that_make_no_sense():
    with pytest.raises(RecipeError, match="workers = 0: at least 1"):
        workers("ferret", 0)
    with pytest.raises(RecipeError, match="threads = 0: at least 1"):
        federation("ferret", threads=0)


# -- taking up, and ends -----------------------------------------------------------------------------------------------


class StoppedError(Exception):
    pass


@pytest.mark.long
@pytest.mark.parametrize("name", ["ferret", "feedsign", "fedavg-adam"])
def test_a_run_goes_on_with_another_number_of_workers(tmp_path, name):
    whole = outcome(federation(name, out=tmp_path / "whole").run())
    for count, stop in ((2, 3), (None, 4), (3, 6)):  # a run stops when this round begins
        team = None if count is None else workers(name, count)
        run = federation(name, out=tmp_path / "run", workers=team)
        opened = run.coordinator.open

        def opening(number, *more, stop=stop, opened=opened):
            if number == stop:
                raise StoppedError
            return opened(number, *more)

        run.coordinator.open = opening
        with pytest.raises(StoppedError):
            run.run(resume=True)
    result = federation(name, out=tmp_path / "run", workers=workers(name, 2)).run(resume=True)
    assert outcome(result) == whole


def gone(pid):
    """Whether a process has ended; one that nobody has waited for has, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_its_run(how, tmp_path):
    from support.forked import start

    out, errors = tmp_path / "out", tmp_path / "errors"
    process = start(endless, str(out), str(errors))
    until(lambda: (out.exists() and out.read_text().endswith("\n")) or process.exitcode is not None, 300, "no worker")
    pids = [int(word) for word in out.read_text().split()]
    assert len(pids) == 2 and not any(map(gone, pids)), errors.read_text()
    os.kill(process.pid, how)
    process.join()
    assert process.exitcode != 0
    until(lambda: all(map(gone, pids)), 60, "a worker is still there")
    said = errors.read_text()
    assert said.count("KeyboardInterrupt") == (how == signal.SIGINT), said  # the workers say nothing


@pytest.mark.long
def test_workers_of_a_federation_that_never_runs_end_with_it(monkeypatch):
    """Also of one that can't be put together: they load while it is."""
    teams = []
    load = Team.load
    monkeypatch.setattr(Team, "load", lambda team: (teams.append(team), load(team)))
    made = build(read_recipe("quickstart-ferret", TINY), workers=2)
    assert made.team is teams[0] and all(seat.process.exitcode is None for seat in teams[0].seats)
    del made
    gc.collect()
    with pytest.raises(RecipeError, match=r"attack\.clients = 9"):
        build(read_recipe("quickstart-ferret", [*TINY, "attack.kind=sign", "attack.clients=9"]), workers=2)
    assert len(teams) == 2 and all(seat.process.exitcode is not None for team in teams for seat in team.seats)
