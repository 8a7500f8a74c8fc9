"""What a newcomer stumbles over: each says what to do, or does what is expected."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from pydantic import ValidationError

from fedseed import FedAvg, Ferret
from fedseed.cli.common import complete_keys, complete_recipes, complete_settings
from fedseed.metrics import metric_title
from fedseed.recipe.reading import read_recipe
from fedseed.reports.results import RoundLine
from fedseed.runs import costs
from fedseed.training.settings import LocalTraining
from support.command import refused, well
from support.heard import Heard
from support.problem import Problem


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The folder that `fedseed new` makes."""
    folder = tmp_path_factory.mktemp("begun")
    well("new", "demo", cwd=folder)
    return folder / "demo"


def test_a_key_of_another_method_is_told_as_one_and_can_be_unset(begun):
    change = ["--set", "method.name=fedavg"]
    refused(
        2,
        "method.bytes = '28kB': unknown key of fedavg: it is a key of ferret, subspace; leave it "
        "out (--unset method.bytes)",
        "preview",
        "recipe.toml",
        *change,
        cwd=begun,
    )
    well("preview", "recipe.toml", *change, "--unset", "method.bytes", cwd=begun)
    recipe = begun / "recipe.toml"
    assert read_recipe(recipe, ["~method.bytes", "method.name=fedavg"]).method == FedAvg(
        training=LocalTraining(learning_rate=0.1, steps=10, batch=4, accumulation=1)
    )
    assert read_recipe(recipe, ["~model"]).model.base == "small"
    for key in ("method.byte", "method.bytes.more", "nothing"):
        refused(
            2,
            f"--unset {key}: the recipe does not set this key",
            "preview",
            "recipe.toml",
            "--unset",
            key,
            cwd=begun,
        )


def test_keys_of_trackers_and_partitions_are_told_likewise(tmp_path):
    for text, said in (
        (
            "[[tracking]]\nname = 'csv'\nproject = 'x'",
            "tracking.0.project = 'x': unknown key of csv",
        ),
        (
            "[task]\nname='files'\npath='x'\npartition = {kind = 'iid', alpha = 1.0}",
            "task.partition.alpha = 1.0: unknown key of iid: it is a key of dirichlet",
        ),
    ):
        recipe = tmp_path / "recipe.toml"
        recipe.write_text(f"rounds = 1\n[method]\nname = 'fedavg'\n{text}\n")
        if "csv" in text and "csv" not in well("list", "trackers").stdout:
            continue
        refused(2, said, "run", recipe)


def test_explaining_a_table_explains_what_chooses_it_and_names_its_other_keys():
    said = well("explain", "task.partition").stdout
    assert said.startswith("task.partition.kind\n") and said.count("\n  ") == 3
    assert "task.partition.alpha" in said.splitlines()[-1]
    assert well("explain", "federation").stdout.startswith("\nIts keys")
    # a key is explained wherever it stands
    assert well("explain", "learning_rate").stdout.count("learning_rate\n") > 1


def test_lists_are_whole_in_a_file():
    said = well("list", "keys").stdout
    assert "…" not in said
    lines = said.splitlines()
    assert any(line.startswith("method.training.accumulation ") for line in lines)
    assert all(" of " not in line[:5] for line in lines)
    assert "federation.weights_digest" in said


def test_a_base_that_is_not_here_is_said_at_once_and_the_hub_is_not_waited_for(tmp_path):
    """The hub is a server here that takes connections and never answers."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('rounds = 1\n[model]\nbase = "nobody/nothing"\n[method]\nname = "fedavg"\n')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code = (
            "import fedseed.models.checkpoint as checkpoint; checkpoint.PATIENCE_SECONDS = 1.0;"
            "from fedseed.cli import main; main()"
        )
        port = silent.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-c", code, "run", str(recipe), "--out", str(tmp_path / "out")],
            env={**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{port}"},
            capture_output=True,
            text=True,
        )
    first, last = done.stderr.splitlines()
    assert first.startswith(
        "fedseed: nobody/nothing is not a local folder: looking for it on the hub"
    )
    assert "the hub can't be reached" in last and done.returncode == 2


def test_a_call_that_does_not_come_back_is_left_alone():
    from fedseed.models.checkpoint import _call_within

    come_back, began = threading.Event(), time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 seconds"):
        _call_within(0.1, come_back.wait)
    assert time.monotonic() - began < 30
    come_back.set()
    with pytest.raises(KeyError):
        _call_within(10, lambda: {}["nothing"])


def test_a_preview_says_how_many_examples_a_step_has(begun, tmp_path):
    said = well("preview", "recipe.toml", cwd=begun).stdout
    assert (
        "each local step uses 4 examples: method.training.batch = 4 times "
        "method.training.accumulation = 1" in said
    )
    usual = well("preview", "recipe.toml", "--unset", "method.training.accumulation", cwd=begun)
    assert "each local step uses 16 examples" in usual.stdout


def test_more_bytes_than_the_weights_have_are_told():
    problem, heard = Problem(), Heard()
    problem.federation(Ferret(bytes="1MB"), rounds=1, progress=heard).run()
    whole = sum(p.numel() for p in problem.model().parameters()) * 4
    assert (
        f"method.bytes = 1,000,000: this is more than all trainable weights ({whole:,} bytes)"
        in heard.said[0]
    )
    heard = Heard()
    problem.federation(Ferret(bytes=500), rounds=1, progress=heard).run()
    assert not any("all trainable weights" in text for text in heard.said)


def test_constructors_say_what_was_meant():
    with pytest.raises(ValidationError, match=r"did you mean global_rate\?"):
        FedAvg(globl_rate=1.0)
    with pytest.raises(ValidationError, match=r"did you mean accumulation\?"):
        LocalTraining(acumulation=1)
    with pytest.raises(ValidationError, match=r"unknown argument; Ferret has name, blocks"):
        Ferret(xyz=1)
    # what is no misspelling stays as it is
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Ferret(directions=0)


def test_a_site_that_never_measured_the_tuned_model_shows_no_progress_that_was_none():
    from fedseed.cli.network import by_client

    lines = [
        RoundLine(number, by_client={name: {"held_out": 3, "loss": 4.0} for name in names})
        for number, names in ((0, "ab"), (2, "a"))
    ]
    assert by_client(costs.by_client(lines))[1] == (
        "  b: held-out loss 4.000 before training (3 examples); it was absent whenever the tuned "
        "model was measured"
    )


def test_titles_of_counts_of_held_out_examples_say_it_once():
    assert metric_title("held_out") == "held out"
    assert metric_title("loss") == "held-out loss" and metric_title("unseen_loss") == "unseen loss"


def test_completion_knows_recipes_files_and_keys(begun, monkeypatch):
    assert "quickstart-ferret" in complete_recipes("quick")
    monkeypatch.chdir(begun)
    assert complete_recipes("rec") == ["recipe.toml"]
    assert complete_recipes("../demo/rec") == ["../demo/recipe.toml"]
    assert "method.training.learning_rate" in complete_keys("method.training.")
    assert "method.bytes=" in complete_settings("method.b")


def test_the_shell_asks_for_completions_of_a_recipe():
    environment = {
        **os.environ,
        "_FEDSEED_COMPLETE": "complete_bash",
        "COMP_WORDS": "fedseed run quickstart-f",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-m", "fedseed"], env=environment, capture_output=True, text=True
    )
    assert {"quickstart-fedavg", "quickstart-ferret"} <= set(done.stdout.split())


@pytest.mark.long
def test_a_run_says_what_comes_next(begun):
    said = well("run", "recipe.toml", "--set", "rounds=1", "--out", "a run", cwd=begun).stdout
    (line,) = (line for line in said.splitlines() if line.startswith("Next: "))
    words = line.removeprefix("Next: ").partition("    ")[0]
    assert words == "fedseed export 'a run' --out tuned"
    well("export", "a run", "--out", "tuned", cwd=begun)


HIDE = """
import sys
for name in ("fcntl", "resource"):
    sys.modules[name] = None
"""


def test_without_fcntl_and_resource_the_modules_of_runs_are_imported_and_work(tmp_path):
    """Windows has neither; a stand-in for msvcrt locks as it does."""
    code = f"""{HIDE}
import errno, types
from pathlib import Path
import fedseed.runs.simulation, fedseed.experiments.sweeps, fedseed.cli.network
from fedseed.durable import Appender, lock_file, write_whole
from fedseed.reports.machine import resident_memory
taken = set()
def locking(handle, mode, count):
    if mode == 2 and "it" in taken:
        raise OSError(errno.EACCES, "locked")
    taken.add("it")
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_LOCK=1, LK_NBLCK=2)
folder = Path({str(tmp_path)!r})
write_whole(folder / "file", b"whole")
assert (folder / "file").read_bytes() == b"whole"
file = Appender(folder / "lines")
file.append(b"line")
try:
    lock_file(file.handle)
except BlockingIOError:
    print("locked once")
assert resident_memory() == resident_memory(peak=True) == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "locked once"), done.stderr
