"""The examples of docs/own-code.md: at most thirty lines each, and they run as they stand.

And the example package, as somebody else would use it.
"""

import json
import subprocess
import sys

import pytest

from support.documents import ROOT
from support.forked import fedseed_forked as run
from support.tiers import mark

EXTENSION = ROOT / "examples" / "extension"
PRINTED = {
    "own_federation.py": "loss 11.792 -> ",
    "own_loop.py": "step 200: loss 5.",
    "many_models.py": "'Count: 3 times one",
}


@pytest.mark.long
@pytest.mark.parametrize("name", mark(PRINTED, lambda name: name != "own_loop.py"))
def test_an_example_runs_as_it_stands(name, tmp_path):
    path = ROOT / "examples" / name
    assert len(path.read_text().splitlines()) <= 40
    assert f"examples/{name}" in (ROOT / "docs" / "own-code.md").read_text()
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert PRINTED[name] in done.stdout


@pytest.mark.long
def test_three_trainers_end_with_the_same_weights(shared_server, tmp_path):
    path = ROOT / "examples" / "own_trainer.py"
    assert len(path.read_text().splitlines()) <= 40
    assert "examples/own_trainer.py" in (ROOT / "docs" / "own-code.md").read_text()
    command = [
        sys.executable,
        "-m",
        "fedseed",
        "serve",
        path.with_suffix(".toml"),
        "--nats",
        shared_server.url,
    ]
    works = [[sys.executable, path, name, shared_server.url] for name in ("bird", "star", "boat")]
    going = [
        subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for words in [*works, command]
    ]
    *said, coordinator = [process.communicate()[0] for process in going]
    assert [process.returncode for process in going] == [0] * 4
    digests = {text.splitlines()[-2] for text in said}
    assert len(digests) == 1 and digests.pop() in coordinator


# -- the package
# ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package in a folder of its own; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("installed")
    words = [
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--target",
        folder,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, EXTENSION], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
def test_a_run_with_everything_from_the_package(installed, tmp_path):
    out = tmp_path / "run"
    settings = ("rounds=4", "evaluation.every=2", "task.examples=8", "task.evaluation=2")
    sets = [word for text in settings for word in ("--set", text)]
    words = ["run", EXTENSION / "recipe.toml", *sets, "--out", out]
    done = run(*words, path=[installed])
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["method"], summary["rounds"], summary["clients"]) == ("mean-sign", 4, 4)
    assert summary["aggregation"] == {"name": "central-mean", "trim": 0.25}
    assert summary["payload_bytes_up"] == 4 and summary["skipped"] == 0
    assert {"loss", "exact_match", "first_word"} <= set(summary["final"])
    assert summary["final"]["loss"] != summary["baseline"]["loss"]  # it did something
    tracked = [json.loads(line) for line in (out / "tracked.jsonl").read_text().splitlines()]
    assert [line["event"] for line in tracked] == [
        "start",
        "metrics",
        "metrics",
        "metrics",
        "finish",
    ]

    again = run("orbit", "verify", out / "model.orbit", "--replay", path=[installed])
    assert again.returncode == 0 and summary["weights_digest"] in again.stdout, again.stderr
    without = run("orbit", "info", out / "model.orbit")
    assert without.returncode == 1 and "method 'mean-sign' is unknown here" in without.stderr
    assert "--plugin, or install its package" in without.stderr
    refused = run(*words)
    assert refused.returncode == 2 and "task.name = 'sums': choose one of" in refused.stderr
