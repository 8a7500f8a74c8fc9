"""The example package and the example plug-in, as somebody else would use them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedseed

EXAMPLES = Path(__file__).parents[2] / "examples"
CLI = "from fedseed.cli import main; main()"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package in a folder of its own; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("installed")
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", folder]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, words), str(EXAMPLES / "extension")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def run(*words, path=(), cwd=None):
    source = Path(fedseed.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, source])), "COLUMNS": "200"}
    command = [sys.executable, "-c", CLI, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd)


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "name"),
    [("methods", "mean-sign"), ("tasks", "sums"), ("metrics", "first_word"), ("aggregation", "trimmed-mean"),
     ("trackers", "json-lines")],
)  # fmt: skip
def test_what_the_package_adds_is_listed_with_its_origin(what, name, installed):
    lines = run("list", what, path=[installed]).stdout.splitlines()
    assert any(line.startswith(name) and "fedseed-extension 0.1.0" in line for line in lines)
    assert any("built in" in line for line in lines)
    assert name not in run("list", what).stdout


@pytest.mark.long
def test_a_run_with_everything_from_the_package(installed, tmp_path):
    out = tmp_path / "run"
    sets = [
        "--set",
        "rounds=4",
        "--set",
        "evaluation.every=2",
        "--set",
        "task.examples=8",
        "--set",
        "task.evaluation=2",
    ]
    words = ["run", EXAMPLES / "extension" / "recipe.toml", *sets, "--out", out]
    done = run(*words, path=[installed])
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["method"], summary["rounds"], summary["clients"]) == ("mean-sign", 4, 4)
    assert summary["aggregation"] == {"name": "trimmed-mean", "trim": 0.25}
    assert summary["payload_bytes_up"] == 4 and summary["skipped"] == 0
    assert {"loss", "exact_match", "first_word"} <= set(summary["final"])
    assert summary["final"]["loss"] != summary["baseline"]["loss"]  # it did something
    tracked = [json.loads(line) for line in (out / "tracked.jsonl").read_text().splitlines()]
    assert [line["event"] for line in tracked] == ["start", "metrics", "metrics", "metrics", "finish"]

    again = run("orbit", "verify", out / "model.orbit", "--replay", path=[installed])
    assert again.returncode == 0 and summary["weights_digest"] in again.stdout, again.stderr
    without = run("orbit", "info", out / "model.orbit")
    assert without.returncode == 1 and "method 'mean-sign' is unknown here" in without.stderr
    assert "--plugin, or install its package" in without.stderr
    refused = run(*words)
    assert refused.returncode == 2 and "task.name = 'sums': choose one of" in refused.stderr


@pytest.mark.long
def test_a_plugin_in_one_file(tmp_path):
    plugin = EXAMPLES / "plugin_clipped_mean.py"
    assert any(
        line.startswith("clipped-mean") and line.rstrip().endswith("plugin_clipped_mean.py")
        for line in run("list", "aggregation", "--plugin", plugin).stdout.splitlines()
    )
    settings = ["rounds=1", "method.seeds=shared", "aggregation.name=clipped-mean", "method.training.steps=1",
                "method.directions=20", "task.clients=2",
                "federation.per_round=2", "task.examples=8", "evaluation.rouge=false"]  # fmt: skip
    words = ["run", "small-ferret", *(word for text in settings for word in ("--set", text)), "--out", tmp_path / "run"]
    assert run(*words).returncode == 2
    done = run(*words, "--plugin", plugin)
    assert done.returncode == 0, done.stderr
    recipe = (tmp_path / "run" / "recipe.toml").read_text()
    assert str(plugin) in recipe and 'name = "clipped-mean"' in recipe
    # what the run has written names a plug-in, and so asks for consent as any recipe does
    words = ["run", tmp_path / "run" / "recipe.toml", "--resume", "--out", tmp_path / "run"]
    assert "--trust-plugins" in run(*words).stderr
    assert "finished" in run(*words, "--trust-plugins").stdout
    assert "finished" in run(*words, "--plugin", plugin).stdout
