import fcntl
import json
import subprocess
import sys
import threading

import pytest

from fedseed.errors import RecipeError
from fedseed.experiments import sweeps
from fedseed.experiments.sweeps import How, Sweep, Sweeping, WorkerPool, read_sweep
from fedseed.recipe.packaged import packaged_sweeps
from fedseed.recipe.reading import read_recipe
from support.network import until

TINY = [
    "rounds=2",
    "federation.per_round=2",
    "method.training.steps=1",
    "task.clients=2",
    "task.examples=5",
    "task.evaluation=1",
    "task.unseen=0",
    "task.validation=1",
    "evaluation.rouge=false",
]


FEDAVG = {"label": "FedAvg", "recipe": "quickstart-fedavg"}
RATE = "method.training.learning_rate"
GRID = {**FEDAVG, "grid": {RATE: [1e-3, 3e-3]}}


def sweep(**settings):
    run = {**FEDAVG, "grid": {RATE: [1e-3, 3e-3, 1e-2]}}
    return Sweep.model_validate({"run": [run], "set": TINY, **settings})


def rate(recipe):
    return recipe.method.training.learning_rate


class Played:
    """In place of processes: summaries by what a function of the settings says."""

    def __init__(self, monkeypatch, loss, beside=None):
        self.jobs = []
        self.loss = loss
        self.beside = beside
        monkeypatch.setattr(WorkerPool, "run", lambda pool, job: self.run(job))

    def run(self, job):
        recipe = read_recipe(job.recipe, job.settings)
        if (job.folder / "summary.json").exists():
            return None
        self.jobs.append((job, recipe))
        loss = self.loss(recipe)
        if loss is None:
            return "it broke"
        job.folder.mkdir(parents=True, exist_ok=True)
        summary = {
            "clients": 2,
            "clients_per_round": 2,
            "parameters": 10,
            "final": {"loss": loss, "rouge_l": 10 * loss},
            "baseline": {"loss": 5.0, "rouge_l": 1.0},
            "rounds": 2,
            "payload_bytes_up": 10,
            "payload_bytes_down": 20,
            "forward_passes": 4,
            "backward_passes": 4,
            "peak_memory_bytes": 10**8,
            "seconds": {"total": 2.0, "local": 1.0},
        }
        if self.beside is not None:
            summary["final"]["validation_loss"] = self.beside(recipe)
        (job.folder / "recipe.toml").write_text(recipe.to_toml())
        (job.folder / "summary.json").write_text(json.dumps(summary))
        lines = [
            {"round": 0, "loss": 5.0},
            {"round": 2, "loss": loss, "bytes_up": 10, "forward_passes": 4},
        ]
        (job.folder / "metrics.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines)
        )
        return None


@pytest.mark.long
def test_the_best_point_is_chosen_on_validation_examples_and_run_on_the_test_ones(
    monkeypatch, tmp_path
):
    # the test examples would have another point win
    def loss(recipe):
        validation = recipe.task.evaluate_on == "validation"
        return (
            abs(rate(recipe) - 3e-3) * 100
            if validation
            else 1 - 50 * rate(recipe) + recipe.seed / 100
        )

    played = Played(monkeypatch, loss)
    said = []
    chosen = sweep(
        seeds=[1, 2, 3],
        scenario=[{"name": "IID", "set": ['task.partition.kind="iid"']}, {"name": "own"}],
        choose_set=["evaluation.every=2"],
    )
    sweeping = Sweeping(chosen, tmp_path, said.append)
    lines = sweeping.run()
    assert sweeping.total == len(played.jobs) == len(said) == 2 * (3 + 3)
    for _, recipe in played.jobs:
        assert (recipe.evaluation.every == 2) == (recipe.task.evaluate_on == "validation")
    tests = [recipe for _, recipe in played.jobs if recipe.task.evaluate_on == "test"]
    assert [rate(r) for r in tests] == [3e-3] * 6 and [r.seed for r in tests] == [1, 2, 3] * 2
    assert [r.task.partition is not None for r in tests] == [True] * 3 + [False] * 3
    assert all(line.point == (f"{RATE}=0.003",) and line.edge is None for line in lines)
    assert (
        tmp_path
        / "IID"
        / "FedAvg"
        / "method.training.learning_rate=0.003"
        / "seed-2"
        / "summary.json"
    ).exists()
    sweeps.write_results(chosen, lines, tmp_path)
    sheets = sweeps.sheets(chosen, lines)
    assert sheets[0].title == "IID" and "0.870 ± 0.010" in sheets[0].rows[1]
    for name in ("compare.txt", "compare.md", "compare.json", "compare.html", "compare.png"):
        assert (tmp_path / name).stat().st_size > 100
    assert "rate=0.003 (chosen)" in (tmp_path / "compare.md").read_text()
    # all is there: nothing is run again
    Sweeping(chosen, tmp_path, said.append).run()
    assert len(played.jobs) == 12 and said[-1].endswith("(there already)")


def test_recipes_are_compared_as_a_sweep(monkeypatch, tmp_path):
    played = Played(monkeypatch, lambda recipe: 1.0 if recipe.method.name == "fedavg" else 2.0)
    made = sweeps.make_sweep(None, ["quickstart-fedavg", "quickstart-ferret"], TINY)
    lines = Sweeping(made, tmp_path, str).run()
    assert [job.folder.relative_to(tmp_path).parts for job, _ in played.jobs] == [
        ("quickstart-fedavg", "seed-1"),
        ("quickstart-ferret", "seed-1"),
    ]
    said = sweeps.write_results(made, lines, tmp_path)
    assert said == [
        "quickstart-ferret keeps 75% of quickstart-fedavg's loss improvement with about as many "
        "bytes."
    ]
    assert said[0] in (tmp_path / "compare.md").read_text()
    assert "quickstart-ferret keeps 75% of" in (tmp_path / "compare.html").read_text()
    with pytest.raises(RecipeError, match=r"compare: .*two runs have the same name"):
        sweeps.make_sweep(None, ["a/one.toml", "b/one.toml"])
    with pytest.raises(RecipeError, match="--seeds 1,2,3"):
        sweeps.make_sweep(None, ["quickstart-fedavg"], ["seed = 3"])


def test_a_point_without_a_finite_loss_is_not_chosen_and_failures_are_told(monkeypatch, tmp_path):
    def loss(recipe):
        if rate(recipe) == 1e-3:
            return float("nan")
        return None if rate(recipe) == 3e-3 or recipe.seed == 2 else 1.0

    Played(monkeypatch, loss)
    said = []
    lines = Sweeping(sweep(seeds=[1, 2]), tmp_path, said.append).run()
    assert lines[0].point == (f"{RATE}=0.01",) and lines[0].edge == RATE
    assert lines[0].failed == {2: "it broke"} and any("failed: it broke" in text for text in said)
    made = sweeps.sheets(sweep(seeds=[1, 2]), lines)
    assert "(1 failed)" in made[0].rows[1][0] and "Chosen at a grid's end" in made[-1].note


def test_what_is_wrong_is_said_before_anything_runs(monkeypatch, tmp_path):
    played = Played(monkeypatch, lambda recipe: 1.0)
    grid, run = {"grid": {"method.training.rat": [1, 2]}}, {**FEDAVG, "label": "a"}
    ni = {
        "label": "a",
        "recipe": "published-fedkseed",
        "grid": {"method.learning_rate": [1e-7, 3e-7]},
    }
    for settings, text in (
        ({"run": [run, {**run, "label": "b", **grid}]}, r"method\.training\.rat = 1: unknown key"),
        (
            {"run": [ni], "set": []},
            "task.validation = 0 keeps none: set it, such as --set task.validation=0.1",
        ),
        ({"run": [{**run, "grid": {"method.name": ["fedavg", "fed avg"]}}]}, "choose one of"),
    ):
        with pytest.raises(RecipeError, match=text):
            Sweeping(sweep(**settings), tmp_path, str)
    assert not played.jobs
    path = tmp_path / "s.toml"
    a = "[[run]]\nlabel='a'\nrecipe='b'\n"
    for text, wrong in (
        ("run = 3", "run"),
        ("[[run]", "not valid TOML"),
        ("[[run]]\nlabel = 'a'", r"run\.0\.recipe: missing"),
        (
            f"{a}gird={{}}",
            r"gird = \{\}: unknown key .did you mean grid..; allowed here: label, recipe, set, "
            r"grid",
        ),
        (f"seed=1\n{a}", "allowed here: title, seeds"),
        (a + a, "two runs have the same name"),
        *(
            (f"{a}{key}={{x=[]}}", rf"run\.0\.{key}\.x = \[\]: .*at least 1 item")
            for key in ("grid", "each")
        ),
        (f"{a}[[scenario]]\nname='s'\nalso={{c=[]}}", r"for \['c'\]: there is no such run"),
    ):
        path.write_text(text)
        with pytest.raises(RecipeError, match=wrong):
            read_sweep(path)


@pytest.mark.parametrize("name", packaged_sweeps())
def test_packaged_sweeps_are_right(name, tmp_path):
    made = read_sweep(packaged_sweeps()[name])
    assert made.title and Sweeping(made, tmp_path, str).total >= len(made.runs)


def start(out, stderr=None):
    words = [
        sys.executable,
        "-m",
        "fedseed",
        "compare",
        "quickstart-fedavg",
        "--out",
        out,
        "--seeds",
        "1,2",
    ]
    words += [word for pair in TINY for word in ("--set", pair)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr, text=True)


def free(run):
    """Whether no process works in a run's folder."""
    with open(run / "progress.jsonl", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.slow
def test_a_killed_sweep_goes_on_without_doing_finished_runs_again(tmp_path):
    out = tmp_path / "out"
    killed = start(out, stderr=subprocess.PIPE)
    first, second = (
        out / "quickstart-fedavg" / "seed-1" / "summary.json",
        out / "quickstart-fedavg" / "seed-2",
    )
    for file in (first, second / "progress.jsonl"):
        until(
            lambda file=file: file.exists() or killed.poll() is not None, 600, f"there is no {file}"
        )
    killed.kill()
    killed.wait()
    # until its processes have ended, too: they do so without a word
    assert "BrokenPipe" not in killed.stderr.read()
    written = first.stat().st_mtime_ns
    # its run is a process that ends with the sweep
    until(lambda: free(second), 600, "its run goes on")
    again = start(out)
    said, _ = again.communicate()
    assert again.returncode == 0, said
    assert first.stat().st_mtime_ns == written and "seed 1" in said and "there already" in said
    assert (second / "summary.json").exists() and (out / "compare.md").exists()
    # what was run apart is what runs otherwise, and its peak memory is its own
    summaries = [json.loads((f / "summary.json").read_text()) for f in (first.parent, second)]
    assert summaries[0]["weights_digest"] != summaries[1]["weights_digest"]
    assert (out / "compare.md").read_text().count("quickstart-fedavg") >= 2


def test_jobs_run_side_by_side_and_the_lines_keep_their_order(monkeypatch, tmp_path):
    both = threading.Barrier(2, timeout=600)
    played = Played(monkeypatch, lambda recipe: recipe.seed)
    alone = played.run

    def run(pool, job):
        if not (job.folder / "summary.json").exists():
            both.wait()  # breaks if nobody else runs
        return alone(job)

    monkeypatch.setattr(WorkerPool, "run", run)
    made = sweep(seeds=[1, 2], run=[{**FEDAVG, "label": label} for label in ("b", "a")])
    how = How(jobs=2, workers=3, threads=1)
    assert [line.label for line in Sweeping(made, tmp_path, str, how).run()] == ["b", "a"]
    assert {(job.how.workers, job.how.threads) for job, _ in played.jobs} == {(3, 1)}


def test_runs_that_measure_the_validation_loss_beside_are_chosen_from_and_not_run_again(
    monkeypatch, tmp_path
):
    # what is best on the test examples is not what is chosen
    played = Played(monkeypatch, lambda recipe: 1 / rate(recipe), beside=rate)
    made = sweep(seeds=[1, 2], metric="validation_loss", set=["stopping.patience=2"], run=[GRID])
    (line,) = Sweeping(made, tmp_path, str).run()
    assert [(job.folder.name, rate(recipe)) for job, recipe in played.jobs] == [
        ("seed-1", 1e-3),
        ("seed-1", 3e-3),
        ("seed-2", 1e-3),
    ]
    assert all(recipe.task.evaluate_on == "test" for _, recipe in played.jobs)
    assert line.tried == dict(zip(made.runs[0].points(), [1e-3, 3e-3], strict=True))
    assert line.folders[1] == played.jobs[0][0].folder
    Sweeping(made, tmp_path, str).run()
    assert len(played.jobs) == 3  # they are there already
