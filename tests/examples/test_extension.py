"""The example package and the example plug-in, as somebody else would use them."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import fedseed
from fedseed.federation.network_client import NetworkClient
from fedseed.runs.joining import part_of
from fedseed.runs.network import coordinate
from fedseed.runs.recipe import Recipe
from fedseed.transport.base import Access
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


def environment(path):
    source = Path(fedseed.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, source])), "COLUMNS": "200"}


ADDED = {"methods": "mean-sign", "tasks": "sums", "metrics": "first_word", "aggregation": "central-mean",
         "trackers": "json-lines", "transports": "folder"}  # fmt: skip


@pytest.mark.long
def test_what_the_package_adds_is_listed_with_its_origin(installed):
    for what, name in ADDED.items():
        lines = run("list", what, path=[installed]).stdout.splitlines()
        assert any(line.startswith(name) and "fedseed-extension 0.1.0" in line for line in lines)
        assert any("built in" in line for line in lines)
    assert "mean-sign" not in run("list", "methods").stdout


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


@pytest.mark.long
def test_the_packages_transport_keeps_the_contract(installed, tmp_path):
    """The suite of the transports that fedseed has itself, at an address of this one."""
    suite = Path(__file__).parents[1] / "transport" / "test_contract.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "--tb=short", str(suite)],
        capture_output=True, text=True, env={**environment([installed]), "FEDSEED_CONTRACT": f"folder://{tmp_path}"},
        cwd=suite.parents[2],
    )  # fmt: skip
    assert done.returncode == 0 and " passed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("nothing here knows how to interrupt this transport") == 1  # one line for both


@pytest.mark.long
def test_a_run_over_the_packages_transport_is_that_of_one_process(
    installed, tmp_path, problem, in_process, monkeypatch
):
    monkeypatch.syspath_prepend(str(installed))
    from fedseed_extension.transport import FolderTransport

    method = {"name": "feedsign", "learning_rate": 1e-2, "batch": 8}
    tables = {"evaluation": {"every": 2}, "method": method, "federation": {"joint": False}}
    recipe = Recipe.model_validate({"seed": 3, "rounds": 4, **tables})
    expected = in_process(problem, recipe.model_dump(exclude_none=True))
    access, digests = Access(f"folder://{tmp_path / 'shared'}"), []

    def load():
        settings = {"rounds": 4, "seed": 3, "joint": False, "per_round": recipe.federation.count(5)}
        return part_of(problem.federation(recipe.method, **settings), ("client-*",))

    def live():
        torch.set_num_threads(1)
        digests.append(NetworkClient(FolderTransport(access, "run"), "run", load, 4, None).run())

    clients = threading.Thread(target=live, daemon=True)
    clients.start()
    result = coordinate(recipe, "run", FolderTransport(access, "run"), tmp_path / "run")
    clients.join(120)
    assert digests == [expected.summary["weights_digest"]] == [result.summary["weights_digest"]]
    assert list((tmp_path / "shared" / "run" / "inboxes").iterdir()) == []  # everybody has tidied up


@pytest.mark.slow
def test_a_plugin_in_one_file(tmp_path):
    plugin = EXAMPLES / "plugin_clipped_mean.py"
    assert any(
        line.startswith("clipped-mean") and line.rstrip().endswith("plugin_clipped_mean.py")
        for line in run("list", "aggregation", "--plugin", plugin).stdout.splitlines()
    )
    settings = ["rounds=1", "method.seeds=shared", "aggregation.name=clipped-mean", "method.training.steps=1",
                "method.training.batch=2", "method.training.accumulation=1", "method.directions=20", "task.clients=2",
                "federation.per_round=2", "task.examples=4", "task.evaluation=1", "task.unseen=0",
                "evaluation.rouge=false"]  # fmt: skip
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
