"""Taking up runs: what must be the same, what is refused, disks that are full.

And what clients download.
"""

import json
import resource
import shutil
import subprocess
from collections import Counter
from unittest import mock

import pytest
import torch

from fedseed import FedAvg, FedKSeed, FedSGD, FeedSign, Orbit, TopK, ZOFedSGD
from fedseed.errors import FedseedError, OrbitError, RecipeError, StorageError
from fedseed.methods.payload import Content
from fedseed.orbit import edit
from fedseed.reports.results import read_summary
from fedseed.runs.costs import Downloads
from support.heard import Heard
from support.left import StoppedError, before, left_by, stop_after, without_seconds
from support.problem import TRAINING, Problem
from support.tiers import mark
from support.worker_runs import FAST, RUNS, federation

pytestmark = pytest.mark.usefixtures("quickly")


ELEVEN = {"rounds": 11, "evaluate_every": 4}
MASTER = TRAINING.model_copy(update={"small_steps": "master"})
METHODS = {
    "adam": (FeedSign(**FAST, optimizer="adam", votes_per_round=3), ELEVEN),
    **{name: RUNS[name] for name in ("fedavg-adam", "fedmezo", "fedmezo-tensors")},
    "ferret": (Problem().ferret(allocation="previous", blocks=2, training=MASTER), {}),
    "fedkseed": (FedKSeed(**FAST, candidates=64, steps=5), {}),
    "stochastic": (ZOFedSGD(**FAST, small_steps="stochastic"), ELEVEN),
    "fedsgd-momentum": (FedSGD(learning_rate=0.1, server="momentum"), {}),
    "topk": (TopK(share=0.1, feedback=0.9, training=TRAINING), {}),
}


@pytest.mark.parametrize("name", mark(METHODS, lambda name: name != "adam", "long"))
def test_stopped_after_any_round_a_run_ends_the_same(make_problem, tmp_path, name):
    problem = make_problem(torch.bfloat16)
    method, settings = METHODS[name]
    whole = problem.federation(method, out=tmp_path / "whole", **settings).run()
    rounds = whole.summary["rounds"]
    for stop in (0, rounds // 2, rounds - 1):
        out = tmp_path / str(stop)
        stop_after(problem.federation(method, out=out, **settings), stop)
        moved = tmp_path / f"{stop}-elsewhere"  # as on another machine
        shutil.copytree(out, moved)
        result = problem.federation(method, out=moved, **settings).run(resume=True)
        assert without_seconds(result.metrics) == without_seconds(whole.metrics)
        assert left_by(moved) == left_by(whole.folder)


def test_killed_in_the_middle_of_a_round_clients_send_what_they_would_have(problem, tmp_path):
    """They have kept what that round left out already.

    The round that is computed again begins with what was before.
    """
    method = TopK(share=0.05, training=problem.training)
    whole = problem.federation(method, out=tmp_path / "whole").run()
    killed = problem.federation(method, out=tmp_path / "run")

    def closing():
        if killed.coordinator.steps == 3:
            raise StoppedError

    before(killed.coordinator, "close", closing)
    with pytest.raises(StoppedError):
        killed.run()
    assert any(path.name.endswith(".4.f4") for path in (tmp_path / "run" / "memory").iterdir())
    result = problem.federation(method, out=tmp_path / "run").run(resume=True)
    assert result.summary["weights_digest"] == whole.summary["weights_digest"]
    files = {path.name: path.read_bytes() for path in (tmp_path / "run" / "memory").iterdir()}
    assert files == {
        path.name: path.read_bytes() for path in (tmp_path / "whole" / "memory").iterdir()
    }
    assert max(Counter(name.split(".")[0] for name in files).values()) == 3


def test_what_clients_remember_must_be_there(problem, tmp_path):
    method = TopK(share=0.05, training=problem.training)
    stop_after(problem.federation(method, out=tmp_path / "run"), 3)
    memory = tmp_path / "run" / "memory"
    damaged = max(memory.iterdir(), key=lambda path: int(path.name.split(".")[1]))
    damaged.write_bytes(damaged.read_bytes()[:-4])
    with pytest.raises(FedseedError, match="damaged: what the client had yet to send is lost"):
        problem.federation(method, out=tmp_path / "run", per_round=5).run(resume=True)
    shutil.rmtree(memory)
    with pytest.raises(
        FedseedError, match="memory is missing: it has what clients keep from round to round"
    ):
        problem.federation(method, out=tmp_path / "run").run(resume=True)


def test_private_steps_stay_though_they_can_not_be_drawn_again(problem, tmp_path):
    method = FeedSign(learning_rate=1e-2, batch=8, epsilon=1.0)
    stop_after(problem.federation(method, out=tmp_path / "run", rounds=40), 30)
    before = [r.payload for r in Orbit.open(tmp_path / "run" / "model.orbit").records]
    result = problem.federation(method, out=tmp_path / "run", rounds=40).run(resume=True)
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert [r.payload for r in orbit.records[:30]] == before and len(orbit) == 40
    assert orbit.replay(problem.model()) == result.summary["weights_digest"]


def test_torn_files_are_cut_back_and_said(problem, tmp_path):
    heard, out = Heard(), tmp_path / "run"
    whole = problem.federation(problem.ferret(), out=tmp_path / "whole").run()
    stop_after(problem.federation(problem.ferret(), out=out), 3)
    orbit = (out / "model.orbit").read_bytes()
    (out / "model.orbit").write_bytes(orbit[:-5])  # round 3 was never written to its end
    with open(out / "metrics.jsonl", "a") as file:
        file.write('{"round": 4, "clien')
    (out / "progress.jsonl").write_text('{"round": 4}\n{"rou')
    result = problem.federation(problem.ferret(), out=out, progress=heard).run(resume=True)
    assert "step 3 is cut short" in heard.warnings[0] and "cut back to step 2" in heard.warnings[0]
    assert without_seconds(result.metrics) == without_seconds(whole.metrics)
    assert (out / "model.orbit").read_bytes() == (tmp_path / "whole" / "model.orbit").read_bytes()


def test_another_number_of_threads_is_named(problem, tmp_path):
    heard, out = Heard(), tmp_path / "run"
    threads = torch.get_num_threads()
    stop_after(problem.federation(problem.ferret(), out=out, threads=threads + 1), 3)
    problem.federation(problem.ferret(), out=out, threads=threads, progress=heard).run(resume=True)
    (warning,) = [line for line in heard.warnings if "thread" in line]
    assert f"began with {threads + 1} thread" in warning and f"now has {threads}" in warning
    assert f"--threads {threads + 1} to keep" in warning


def test_the_same_number_of_threads_is_not_named(problem, tmp_path):
    heard, out = Heard(), tmp_path / "run"
    stop_after(problem.federation(problem.ferret(), out=out), 3)
    problem.federation(problem.ferret(), out=out, progress=heard).run(resume=True)
    assert not [line for line in heard.warnings if "thread" in line]


def test_what_does_not_fit_is_refused_and_left_alone(problem, tmp_path):
    out = tmp_path / "run"
    recipe = 'rounds = 6\nseed = 3\n[method]\nname = "ferret"\nrate = 0.1\n'
    stop_after(problem.federation(problem.ferret(), out=out, recipe_text=recipe), 3)

    def attempt(match, error=FedseedError, resume=True, **changes):
        settings = {"method": problem.ferret(), "recipe_text": recipe, **changes}
        before = {p.name: p.read_bytes() for p in out.iterdir()}
        with pytest.raises(error, match=match):
            problem.federation(settings.pop("method"), out=out, **settings).run(resume=resume)
        assert {p.name: p.read_bytes() for p in out.iterdir()} == before

    attempt("unfinished run .*continue it with --resume", resume=False)
    attempt(
        r"another recipe: method\.rate is 0\.1 there, 0\.2 here",
        RecipeError,
        recipe_text=recipe.replace("0.1", "0.2"),
    )
    attempt(
        "seed is 3 there, not set here", RecipeError, recipe_text=recipe.replace("seed = 3\n", "")
    )
    attempt(
        r"another run: method\.global_rate: 1\.0, 0\.5 here",
        OrbitError,
        method=problem.ferret(global_rate=0.5),
    )
    attempt("another run: seed: 3, 4 here", OrbitError, seed=4)
    attempt("has 3 rounds already, but this run has only 2", RecipeError, rounds=2)
    other = problem.model()
    other[0].bias.data += 1
    with mock.patch.object(problem, "model", lambda: other):
        attempt("another run: base_digest", OrbitError)
    for name, text in (
        ("metrics.jsonl", "has no round 0"),
        ("model.orbit", "model.orbit is missing"),
    ):
        kept = (out / name).read_bytes()
        (out / name).unlink()
        with pytest.raises(FedseedError, match=text):
            problem.federation(problem.ferret(), out=out, recipe_text=recipe).run(resume=True)
        (out / name).write_bytes(kept)


def test_an_orbit_ahead_of_the_cost_of_its_rounds_is_refused(problem, tmp_path):
    method = FeedSign(learning_rate=1e-2, batch=8)
    out = tmp_path / "run"
    stop_after(problem.federation(method, out=out, rounds=9, evaluate_every=5), 8)
    (out / "progress.jsonl").unlink()
    with pytest.raises(FedseedError, match=r"costs of rounds 6 to 8: .* rollback --to 5"):
        problem.federation(method, out=out, rounds=9, evaluate_every=5).run(resume=True)


def test_a_federation_runs_once_and_one_process_runs_in_a_folder(problem, tmp_path):
    federation = problem.federation(problem.ferret(), out=tmp_path / "run", rounds=2)
    second = problem.federation(problem.ferret(), out=tmp_path / "run", rounds=2)

    def meanwhile(model):
        with pytest.raises(FedseedError, match="another process is running"):
            second.run(resume=True)

    before(federation.hosted, "evaluate", meanwhile)
    federation.run()
    with pytest.raises(FedseedError, match="make a new Federation"):
        federation.run(resume=True)
    with pytest.raises(RecipeError, match="needs a folder"):
        problem.federation(problem.ferret()).run(resume=True)


# -- disks
# ------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 kB, or where mounting is not allowed a limit on the size of files that bites
    alike.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True
    )
    if mounted.returncode == 0:
        yield folder, lambda: subprocess.run(["mount", "-o", "remount,size=8m", folder], check=True)
        subprocess.run(["umount", folder], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, before[1]))
    yield folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.long
@pytest.mark.parametrize("name", mark(["ferret", "fedavg"], lambda name: name != "ferret"))
def test_a_full_disk_is_said_and_leaves_nothing_half_written(
    make_problem, tmp_path, small_disk, name
):
    disk, enlarge = small_disk
    problem = make_problem()
    method, settings = {
        "ferret": (problem.ferret(directions=900), {"rounds": 40}),
        "fedavg": (FedAvg(training=problem.training), {"rounds": 160, "evaluate_every": 80}),
    }[name]
    filled = disk / "run"
    with pytest.raises(
        StorageError, match=r"can't be written: .*(No space left on device|File too large)"
    ):
        problem.federation(method, out=filled, **settings).run()
    assert not [p for p in filled.iterdir() if ".part" in p.name]
    for name_ in ("metrics.jsonl", "progress.jsonl"):
        assert all(json.loads(line) for line in (filled / name_).read_text().splitlines())
    done = 0
    if not method.catch_up.replaces:
        done = Orbit.open(filled / "model.orbit").last  # whole, and the run got somewhere
        assert done > 1
    enlarge()
    result = problem.federation(method, out=filled, **settings).run(resume=True)
    whole = problem.federation(method, out=tmp_path / "whole", **settings).run()
    assert without_seconds(result.metrics) == without_seconds(whole.metrics)
    assert result.summary["weights_digest"] == whole.summary["weights_digest"]


# -- counting downloads
# ------------------------------------------------------------------------------------------------


def test_downloads(problem):
    sparse, dense, carried = problem.ferret(), FedAvg(training=problem.training), FedKSeed()
    picked = [[0], [0, 1], [1], [0, 2]]
    steps = [
        Content(size, scalars=3 * size, integers=size // 5, bits=size % 2) for size in (10, 0, 5, 7)
    ]
    expected = {
        sparse: [[0], [10, 10], [5 - 5], [5, 15]],
        dense: [[0], [10, 10], [0], [5, 5]],
        carried: [[0], [0, 0], [0], [0, 0]],
    }
    for method, counts in expected.items():
        downloads = Downloads(method, 3)
        for clients, step, wanted in zip(picked, steps, counts, strict=True):
            fetched = [downloads.count_missed(c) for c in clients]
            assert [content.bytes for content in fetched] == wanted
            assert [content.scalars for content in fetched] == [3 * size for size in wanted]
            downloads.add(step)
        again = Downloads(method, 3)
        again.take_up(steps, picked)
        assert [again.count_missed(c) for c in range(3)] == [
            downloads.count_missed(c) for c in range(3)
        ]


# -- for more rounds
# ------------------------------------------------------------------------------------------------


SETTINGS = {"ferret": {"digest_every": 4}, "feedsign": {}, "fedavg-adam": {}}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_bits_as_with_all_rounds_from_the_start(tmp_path, name, first=3):
    """The shorter run's last round is one of no evaluation."""
    settings = SETTINGS[name]
    whole = federation(name, out=tmp_path / "whole", **settings, rounds=7).run()
    shorter = federation(name, out=tmp_path / "run", **settings, rounds=first).run()
    assert shorter.summary["rounds"] == first
    result = federation(name, out=tmp_path / "run", **settings, rounds=7).run(
        resume=True, extend=True
    )
    # whose lines stand for several rounds: one for the shorter run's last ones stays
    steps = name == "feedsign"
    lines = without_seconds(result.metrics)
    if steps:
        extra = next(line for line in lines if line["round"] == 3)
        assert "loss" not in extra and extra["rounds"] == 3
        assert lines[0] == without_seconds(whole.metrics)[0]
        assert lines[-1]["loss"] == whole.metrics[-1]["loss"]
    else:
        assert lines == without_seconds(whole.metrics)
    ours, theirs = left_by(result.folder), left_by(whole.folder)
    for name in ("model", "files") if steps else theirs:
        assert ours[name] == theirs[name]


def test_what_can_not_go_on_says_so_and_is_left_alone(problem, tmp_path):
    recipe = 'rounds = 3\nseed = 3\n[method]\nname = "ferret"\n'
    out = tmp_path / "run"
    problem.federation(problem.ferret(), out=out, rounds=3, recipe_text=recipe).run()

    def files(folder):
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def attempt(match, error=RecipeError, method=None, out=out, **settings):
        before, federation = (
            files(out),
            problem.federation(method or problem.ferret(), out=out, **settings),
        )
        with pytest.raises(error, match=match):
            federation.run(resume=True, extend=True)
        assert files(out) == before

    attempt("--rounds 2: the run in .* already has 3", rounds=2)
    other = recipe.replace("seed = 3", "seed = 4").replace("rounds = 3", "rounds = 5")
    attempt("another recipe: seed is 3 there, 4 here", rounds=5, recipe_text=other)
    with pytest.raises(RecipeError, match="extend needs resume"):
        problem.federation(problem.ferret(), out=out, rounds=5).run(extend=True)
    before = files(out)
    again = problem.federation(problem.ferret(), out=out, rounds=3).run(resume=True, extend=True)
    assert again.summary == read_summary(out) and files(out) == before

    fast = FedKSeed(basis="rademacher", batch=8, candidates=64, steps=2, learning_rate=1e-2)
    problem.federation(fast, out=tmp_path / "pro", rounds=2).run()
    edit.compact(tmp_path / "pro" / "model.orbit", tmp_path / "compact.orbit")
    shutil.move(tmp_path / "compact.orbit", tmp_path / "pro" / "model.orbit")
    attempt(
        "is compacted: a run can't continue from it",
        OrbitError,
        fast,
        out=tmp_path / "pro",
        rounds=4,
    )


def test_a_run_that_was_interrupted_and_one_that_is_not_there_get_their_rounds(problem, tmp_path):
    recipe = 'rounds = 3\n[method]\nname = "ferret"\n'
    out = tmp_path / "run"
    problem.federation(problem.ferret(), out=out, rounds=3, recipe_text=recipe).run()
    (out / "summary.json").unlink()  # stopped before its very end
    longer = problem.federation(
        problem.ferret(), out=out, rounds=4, recipe_text=recipe.replace("3", "4")
    )
    assert longer.run(resume=True, extend=True).summary["rounds"] == 4
    assert "rounds = 4" in (out / "recipe.toml").read_text()
    new = problem.federation(problem.ferret(), out=tmp_path / "new", rounds=2).run(
        resume=True, extend=True
    )
    assert (
        new.summary["rounds"] == 2
        and json.loads((tmp_path / "new" / "summary.json").read_text())["rounds"] == 2
    )
