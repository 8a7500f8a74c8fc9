"""Local worker processes: the results are one process'."""

import gc
import os
import signal
from pathlib import Path

import pytest
import torch

from fedseed.errors import FedseedError, RecipeError
from fedseed.recipe.reading import read_recipe
from fedseed.runs.assembly import build
from fedseed.runs.workers import Workers
from support.command import well
from support.documents import ROOT
from support.heard import Heard
from support.left import before, left_by, stop_after
from support.network import until
from support.tiers import mark
from support.worker_runs import RUNS, die, endless, federation, workers

pytestmark = pytest.mark.usefixtures("quickly")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "count"),
    [(name, 4 if name in ("ferret", "feedsign", "fedavg") else 2) for name in RUNS],
)
def test_digest_metrics_and_orbit_are_those_of_one_process(tmp_path, name, count):
    settings = {"per_round": 5} if count > 3 else {}
    alone = left_by(federation(name, out=tmp_path / "alone", **settings).run().folder)
    run = federation(name, out=tmp_path / "shared", workers=workers(name, count), **settings)
    result = run.run()
    assert left_by(result.folder) == alone
    assert result.summary["workers"] == len(run.team.seats) == count
    assert result.summary["worker_peak_memory_bytes"] > 0
    assert all(seat.process.exitcode is not None for seat in run.team.seats)


TINY = [
    "rounds=2",
    "federation.per_round=4",
    "task.clients=4",
    "task.examples=5",
    "task.evaluation=1",
    "task.unseen=0",
    "task.validation=1",
    "evaluation.rouge=false",
]
FEDIT = ["small-fedit", "--set", "method.training.steps=2", "--set", "method.training.batch=2"]


PLUGIN = [
    "quickstart-ferret",
    "--set",
    "method.training.steps=2",
    "--set",
    "aggregation.name=clipped-mean",
    "--plugin",
    ROOT / "examples" / "plugin_clipped_mean.py",
]


@pytest.mark.long
@pytest.mark.parametrize("words", mark([FEDIT, PLUGIN], lambda words: words is PLUGIN))
def test_the_command_with_workers_ends_with_the_same_files(tmp_path, words):
    """The workers load the recipe themselves, plug-ins too."""
    overrides = [word for pair in TINY for word in ("--set", pair)]
    files = []
    for name, options in (("alone", []), ("shared", ["--workers", 2])):
        done = well("run", *words, *overrides, "--out", tmp_path / name, "--threads", 1, *options)
        assert ("2 worker processes, 1 thread each" in done.stdout) == (name == "shared")
        files.append(left_by(tmp_path / name)["model"])
    assert files[0] == files[1]


# -- workers that die
# ------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", ["ferret", "fedavg"])
def test_a_worker_that_is_killed_is_replaced_and_the_run_has_the_same_bits(tmp_path, name):
    whole = left_by(federation(name, out=tmp_path / "whole").run().folder)
    heard = Heard()
    run = federation(name, out=tmp_path / "run", workers=workers(name, 2), progress=heard)
    killed = []

    def kill_once(number, *_):
        if number == 4 and not killed:
            killed.append(run.team.seats[0].process)
            killed[0].kill()

    before(run.coordinator, "open", kill_once)
    assert left_by(run.run().folder) == whole
    said = [text for text in heard.warnings if "another worker takes over" in text]
    assert len(said) == 1 and said[0].startswith("worker 1 died (killed by SIGKILL")
    assert all(seat.process.exitcode is not None for seat in run.team.seats)


@pytest.mark.long
def test_a_worker_that_dies_before_it_has_loaded_ends_the_run():
    run = federation("ferret", workers=Workers(die, 1))
    with pytest.raises(FedseedError, match=r"worker 1 died \(exit code 7\)"):
        run.run()


@pytest.mark.long
@pytest.mark.parametrize(
    ("act", "kind", "text"),
    [
        ("refuse", RecipeError, "this client's examples are no good"),
        ("odd", RuntimeError, "OddError: this and that"),
        ("full", OSError, "[Errno 28] No space left on device"),  # the worker has not died of it
    ],
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
    with pytest.raises(RecipeError, match="workers = 0: must be at least 1"):
        workers("ferret", 0)
    with pytest.raises(RecipeError, match="threads = 0: must be at least 1"):
        federation("ferret", threads=0)


# -- taking up, and ends
# -----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", ["ferret", "feedsign", "fedavg-adam"])
def test_a_run_goes_on_with_another_number_of_workers(tmp_path, name):
    whole = left_by(federation(name, out=tmp_path / "whole").run().folder)
    for count, rounds in ((2, 2), (None, 3), (3, 5)):
        team = None if count is None else workers(name, count)
        stop_after(federation(name, out=tmp_path / "run", workers=team), rounds, resume=True)
    result = federation(name, out=tmp_path / "run", workers=workers(name, 2)).run(resume=True)
    assert left_by(result.folder) == whole


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
    until(
        lambda: (out.exists() and out.read_text().endswith("\n")) or process.exitcode is not None,
        300,
        "no worker",
    )
    pids = [int(word) for word in out.read_text().split()]
    assert len(pids) == 2 and not any(map(gone, pids)), errors.read_text()
    os.kill(process.pid, how)
    process.join()
    assert process.exitcode != 0
    until(lambda: all(map(gone, pids)), 60, "a worker is still there")
    said = errors.read_text()
    # the workers say nothing
    assert said.count("KeyboardInterrupt") == (how == signal.SIGINT), said


@pytest.mark.long
def test_workers_of_a_federation_that_never_runs_end_with_it(monkeypatch):
    """Also of one that can't be put together: they load while it is."""
    teams = []
    load = Workers.load
    monkeypatch.setattr(Workers, "load", lambda team: (teams.append(team), load(team)))
    made = build(read_recipe("quickstart-ferret", TINY), workers=2)
    assert made.team is teams[0]
    until(lambda: all(seat.process is not None for seat in teams[0].seats), 300, "no worker starts")
    assert all(seat.process.exitcode is None for seat in teams[0].seats)
    del made
    gc.collect()
    with pytest.raises(RecipeError, match=r"attack\.clients = 9"):
        build(
            read_recipe("quickstart-ferret", [*TINY, "attack.kind=sign", "attack.clients=9"]),
            workers=2,
        )
    processes = [seat.process for team in teams for seat in team.seats if seat.process is not None]
    assert (
        len(teams) == 2
        and len(processes) >= 2
        and all(process.exitcode is not None for process in processes)
    )
