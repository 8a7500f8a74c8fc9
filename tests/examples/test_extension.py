"""The example package and the example plug-in, as somebody else would use them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.forked import fedseed_forked as run

EXAMPLES = Path(__file__).parents[2] / "examples"


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


@pytest.mark.long
def test_a_run_with_everything_from_the_package(installed, tmp_path):
    out = tmp_path / "run"
    settings = ("rounds=4", "evaluation.every=2", "task.examples=8", "task.evaluation=2")
    sets = [word for text in settings for word in ("--set", text)]
    words = ["run", EXAMPLES / "extension" / "recipe.toml", *sets, "--out", out]
    done = run(*words, path=[installed])
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["method"], summary["rounds"], summary["clients"]) == ("mean-sign", 4, 4)
    assert summary["aggregation"] == {"name": "central-mean", "trim": 0.25}
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
