"""An orbit that is not what its run ended with is no tuned model, wherever it is asked for."""

import json
import shutil

import pytest

import fedseed
from fedseed import Orbit, Swapper
from fedseed.errors import OrbitError
from fedseed.orbit.edit import rollback
from fedseed.orbit.file import write_orbit
from fedseed.orbit.record import ending as end_records
from fedseed.runs.tuned import find_source, open_tuned
from support.command import refused, well
from support.instruction_files import write_lines

pytestmark = pytest.mark.long  # a real run, and commands

RECIPE = """
rounds = 4
seed = {seed}
model.base = "small"
task = {{name = "files", path = "../data"}}
evaluation = {{every = 1, max_new_tokens = 2}}
[method]
name = "{method}"
{settings}
"""
SETTINGS = {
    "ferret": "directions = 16\ntraining = {learning_rate = 0.002, batch = 4, steps = 1}",
    "fedavg": "training = {learning_rate = 1e-3, batch = 4, steps = 1}",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run of each method, and another one of the first."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("north", "south"):
        rows = [{"prompt": f"Say {name} {i}.", "completion": f"{name}{i}"} for i in range(10)]
        write_lines(folder / "data" / f"{name}.jsonl", rows)
    for name, method, seed in (("a", "ferret", 5), ("b", "ferret", 6), ("whole", "fedavg", 5)):
        text = RECIPE.format(method=method, settings=SETTINGS[method], seed=seed)
        (folder / "recipes").mkdir(exist_ok=True)
        recipe = folder / "recipes" / f"{name}.toml"
        recipe.write_text(text)
        well("run", recipe, "--out", folder / name, "--threads", 1, cwd=folder)
    return folder


@pytest.fixture
def cut(runs, tmp_path):
    """A copy of a run whose orbit was cut between its last two records."""
    shutil.copytree(runs / "a", tmp_path / "a")
    cut_orbit(tmp_path / "a")
    return tmp_path / "a"


def cut_orbit(folder, over=False):
    orbit = Orbit.open(folder / "model.orbit")
    parts = orbit.parts[:-1]
    write_orbit(folder / "model.orbit", orbit.start, end_records(parts) if over else parts)


def test_a_cut_orbit_is_refused_wherever_a_model_is_made_of_it(cut, tmp_path):
    assert Orbit.open(cut / "model.orbit").last == 3
    said = r"model.orbit: its last round is 3, and .*summary.json says that the run ended after "
    said += r"round 4: steps are missing.*--resume.*--upto 3"
    for path in (cut, cut / "model.orbit"):
        with pytest.raises(OrbitError, match=said):
            fedseed.from_orbit(path)
        with pytest.raises(OrbitError, match=said):
            open_tuned(find_source(str(path)))
    with pytest.raises(OrbitError, match=said):
        Swapper("small", {"a": cut / "model.orbit"})
    for words in (
        ("export", cut, "--out", tmp_path / "made"),
        ("evaluate", cut),
        ("generate", cut, "Say north 1."),
        ("serve-model", cut, "--port", 0),
    ):
        said_by = f"and {cut / 'summary.json'} says that the run ended after round 4"
        refused(1, f"its last round is 3, {said_by}", *words, cwd=tmp_path)
    assert not (tmp_path / "made").exists()


def test_a_round_that_is_asked_for_is_had_and_a_run_resumed_is_whole(runs, cut, tmp_path):
    whole = json.loads((runs / "a" / "summary.json").read_text())
    third = Orbit.open(cut / "model.orbit").last_digest
    assert open_tuned(find_source(str(cut)), upto=3).facts.digest == third
    rollback(cut / "model.orbit", 3, tmp_path / "three.orbit")
    swapper = Swapper("small", {"three": tmp_path / "three.orbit"})
    assert swapper.to("three") is swapper.model
    said = well("export", tmp_path / "three.orbit", "--out", tmp_path / "three", cwd=tmp_path)
    assert "the orbit has no end of the run" in said.stderr
    said = well(
        "run",
        runs / "recipes" / "a.toml",
        "--out",
        cut,
        "--resume",
        "--threads",
        1,
        cwd=tmp_path,
    )
    assert "making the missing steps again" in said.stdout
    assert Orbit.open(cut / "model.orbit").complete
    assert open_tuned(find_source(str(cut))).facts.digest == whole["weights_digest"]
    assert (cut / "model.orbit").read_bytes() == (runs / "a" / "model.orbit").read_bytes()


def test_a_cut_orbit_that_says_it_is_over_is_refused_and_made_whole(runs, cut, tmp_path):
    shutil.copy(runs / "a" / "model.orbit", cut / "model.orbit")
    cut_orbit(cut, over=True)
    assert Orbit.open(cut / "model.orbit").complete
    with pytest.raises(OrbitError, match="its last round is 3"):
        fedseed.from_orbit(cut)
    well(
        "run",
        runs / "recipes" / "a.toml",
        "--out",
        cut,
        "--resume",
        "--threads",
        1,
        cwd=tmp_path,
    )
    assert (cut / "model.orbit").read_bytes() == (runs / "a" / "model.orbit").read_bytes()


def test_a_run_that_has_not_ended_is_compared_with_its_metrics(cut):
    (cut / "summary.json").unlink()
    said = "metrics.jsonl says that the run has reached round 4: steps are missing"
    with pytest.raises(OrbitError, match=said):
        fedseed.from_orbit(cut)


def test_another_runs_file_is_refused_by_its_digest(runs, tmp_path):
    shutil.copytree(runs / "a", tmp_path / "a")
    shutil.copy(runs / "b" / "model.orbit", tmp_path / "a" / "model.orbit")
    with pytest.raises(OrbitError, match=r"have the digest .*: another run's file"):
        fedseed.from_orbit(tmp_path / "a")
    with pytest.raises(OrbitError, match=r"have the digest .*: another run's file"):
        Swapper("small", {"a": tmp_path / "a" / "model.orbit"})
    assert fedseed.from_orbit(tmp_path / "a", upto=4) is not None


def test_weights_of_another_round_are_refused(runs, tmp_path):
    shutil.copytree(runs / "whole", tmp_path / "whole")
    file = tmp_path / "whole" / "summary.json"
    summary = json.loads(file.read_text())
    file.write_text(json.dumps({**summary, "rounds": 5}))
    with pytest.raises(OrbitError, match=r"model.safetensors: its last round is 4, and .* round 5"):
        fedseed.from_orbit(tmp_path / "whole")
    file.write_text(json.dumps({**summary, "weights_digest": "0" * 32}))
    with pytest.raises(OrbitError, match="another run's file"):
        fedseed.from_orbit(tmp_path / "whole")
    file.write_text("{}")
    with pytest.raises(fedseed.errors.FedseedError, match=r"summary.json: not a run's summary"):
        fedseed.from_orbit(tmp_path / "whole")
