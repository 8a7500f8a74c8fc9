"""The command line, most of it in this process; what must be a process of its own is one."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

import fedseed as fedseed_package
from fedseed.models.loading import locate
from fedseed.recipe.reading import read_recipe
from fedseed.reports.progress import Shown
from support.command import fedseed, refused, well
from support.forked import fedseed_forked

TINY = [
    "rounds=2",
    "federation.per_round=2",
    "method.training.steps=1",
    "task.evaluation=1",
    "task.unseen=1",
    "task.examples=5",
    "evaluation.every=2",
    "evaluation.max_new_tokens=4",
]
SETS = [word for pair in TINY for word in ("--set", pair)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    done = well("run", "quickstart-ferret", *SETS, "--out", folder / "run")
    return folder / "run", done.stdout


def test_wrong_command_lines_end_with_2():
    for words in (
        ["fly"],
        ["run"],
        ["list", "birds"],
        ["run", "quickstart-ferret", "--sett", "x=1"],
    ):
        assert fedseed(*words).returncode == 2


def test_it_is_a_module_and_tells_its_names(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fedseed", "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == f"fedseed {fedseed_package.__version__}\n"
    assert {"Federation", "Orbit", "ParameterSpace", "Swapper", "ZOOptimizer"} <= set(
        dir(fedseed_package)
    )


def test_new_writes_a_budget_of_bytes_and_a_path_is_found_beside_the_recipe(tmp_path):
    well("new", "demo", "--bytes", "3kB", cwd=tmp_path)
    recipe = read_recipe(tmp_path / "demo" / "recipe.toml")
    assert (recipe.method.bytes, recipe.method.directions, recipe.method.scalars) == (
        3000,
        23872,
        "bit",
    )
    # not in the recipe's folder
    data = fedseed("partition", tmp_path / "demo" / "recipe.toml", "--json", cwd=tmp_path)
    assert set(json.loads(data.stdout)["clients"]) == {"north", "south", "west"}
    assert "write 28kB" in fedseed("new", "other", "--bytes", "much", cwd=tmp_path).stderr


def test_two_clients_with_one_file_are_noticed(tmp_path):
    fedseed("new", "demo", cwd=tmp_path)
    shutil.copy(tmp_path / "demo" / "data" / "north.jsonl", tmp_path / "demo" / "data" / "zz.jsonl")
    done = fedseed("partition", "recipe.toml", cwd=tmp_path / "demo")
    assert "north and zz have the same examples" in done.stdout and "south and" not in done.stdout


def test_published_recipes_are_listed_if_asked_for():
    few, every = (fedseed("list", "recipes", *more).stdout for more in ((), ("--all",)))
    assert (
        "quickstart-ferret" in few and "published-ferret" not in few and "published-ferret" in every
    )


NOWHERE = {
    "run quickstart-ferret --set model.base=./nix": 'model.base = "./nix": there is no such folder',
    **{
        f"{command} demo/recipe.toml --set "
        "task.path=nix": 'task.path = "nix": there is no such file or folder'
        for command in ("run", "tune-rate", "preview", "bench", "partition")
    },
    "join demo/recipe.toml --nats nats://x --client a --data nix --set "
    "task.path=": "nix: there is no such file",
    "verify demo --client north --data nix": "nix: there is no such file or folder",
    "verify demo/nix --client north": "demo/nix: there is no such file or folder",
    "generate demo --file nix": "--file nix: can't be read",
    "report demo/nix": "demo/nix: there is no run in this folder",
    "orbit info demo/nix": "demo/nix: can't be read",
    **{
        f"{command} demo/nix": "demo/nix: there is no such folder or file"
        for command in (
            "export --out new",
            "evaluate",
            "serve-model",
            "generate --file demo/recipe.toml",
        )
    },
}


def test_a_wrong_path_is_said_at_once(tmp_path):
    """Before torch is imported; where a model would be opened, before transformers is."""
    script = (
        "import sys\nfrom fedseed.cli.app import app\nfor words in sys.argv[1:]:\n    try:\n"
        "        app(words.split(), standalone_mode=False)\n    except Exception as error:\n"
        "        print(error, 'transformers' in sys.modules or 'torch' in sys.modules and ' "
        "demo/nix' not in words)"
    )
    assert fedseed("new", "demo", cwd=tmp_path).returncode == 0
    done = subprocess.run(
        [sys.executable, "-c", script, *NOWHERE], cwd=tmp_path, capture_output=True, text=True
    )
    for said, wanted in zip(done.stdout.splitlines(), NOWHERE.values(), strict=True):
        assert said.startswith(wanted) and said.endswith("False"), done.stderr


def test_help_has_commands_in_groups_the_first_ones_first():
    said = fedseed("--help").stdout
    groups = re.findall(r"─ (\w+) ─", said)
    assert groups == ["Options", "Begin", "Federate", "Plan", "Look", "Orbits", "Papers"]
    assert said.index("─ Papers ─") < said.index("audit") < said.index("reproduce")


def dying():
    """The first round kills the process that shows it."""
    Shown.round = lambda self, line: (
        os.kill(os.getpid(), signal.SIGKILL) if line.round == 1 else None
    )


@pytest.mark.long
def test_a_killed_run_is_resumed(finished, tmp_path):
    """Killed when the first round is on disk, taken up in another process: the same files as if it
    had not been.
    """
    folder = tmp_path / "run"
    words = ["run", "quickstart-ferret", *SETS, "--out", folder]
    assert fedseed_forked(*words, before=dying).returncode == -signal.SIGKILL
    assert (folder / "metrics.jsonl").read_text().count("\n") == 2
    again = fedseed(*words)
    assert again.returncode == 1 and "unfinished" in again.stderr and "--resume" in again.stderr
    refused(
        2,
        "rounds is 2 there, 3 here (--resume --rounds 3 changes",
        *words,
        "--set",
        "rounds=3",
        "--resume",
    )
    assert "resumed after round 1 of 2" in well(*words, "--resume").stdout
    assert (folder / "model.orbit").read_bytes() == (finished[0] / "model.orbit").read_bytes()
    lines = [
        [json.loads(t) for t in (f / "metrics.jsonl").read_text().splitlines()]
        for f in (folder, finished[0])
    ]
    for line in (*lines[0], *lines[1]):
        del line["seconds"]
    assert lines[0] == lines[1]
    assert "is finished already: nothing to do" in well(*words, "--resume").stdout


@pytest.mark.long
def test_orbit_commands(finished, tmp_path):
    orbit = finished[0] / "model.orbit"
    done = well("orbit", "verify", orbit, "--replay")
    assert "2 steps up to 2: checksums, chain and contents are right" in done.stdout
    assert "complete" in done.stdout and "2 recorded digests are right" in done.stdout
    assert (
        ": 1 step, "
        in well("orbit", "rollback", orbit, "--to", 1, "--out", tmp_path / "one.orbit").stdout
    )
    assert "not complete" in fedseed("orbit", "info", tmp_path / "one.orbit").stdout
    assert "the same up to step 1" in fedseed("orbit", "diff", orbit, tmp_path / "one.orbit").stdout
    assert "the same base, settings and 2 steps" in fedseed("orbit", "diff", orbit, orbit).stdout
    refused(
        1,
        "ferret needs all its steps",
        "orbit",
        "compact",
        orbit,
        "--out",
        tmp_path / "small.orbit",
    )
    well("orbit", "keygen", tmp_path / "key")
    well("orbit", "sign", tmp_path / "one.orbit", "--key", tmp_path / "key")
    signed = ["orbit", "verify", tmp_path / "one.orbit", "--key", tmp_path / "key.pub"]
    assert "the signature is that of key.pub" in fedseed(*signed).stdout
    signed[2:3] = [orbit, "--signature", tmp_path / "one.orbit.sig"]
    refused(1, "not a signature of this file by this key", *signed)


@pytest.mark.long
def test_replay_to_a_step_on_a_base_elsewhere_says_what_the_model_is(finished, tmp_path):
    orbit = finished[0] / "model.orbit"
    shutil.copytree(locate("small"), tmp_path / "base")
    done = well(
        "orbit",
        "replay",
        orbit,
        "--upto",
        1,
        "--base",
        tmp_path / "base",
        "--out",
        tmp_path / "model",
    )
    lines = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    card = (tmp_path / "model" / "README.md").read_text()
    assert lines[1]["weights_digest"] in done.stdout and lines[1]["weights_digest"] in card
    for text in ("1 of 2", "ferret", "directions", "--upto 1", "`small`"):
        assert text in card
    assert str(tmp_path) not in card
    words = ["orbit", "replay", orbit, "--out", tmp_path / "other"]
    refused(2, "no model can be loaded from the folder", *words, "--base", tmp_path)
    refused(1, "the orbit has steps 0 to 2", *words, "--upto", 3)


@pytest.mark.long
def test_partition_needs_no_torch_and_draws_a_picture(instruction_data, tmp_path):
    path, picture = instruction_data["dolly-15k"](each=40), tmp_path / "new" / "who.png"
    words = ["partition", "published-ferret-dolly-alpha05", "--out", str(picture)]
    for pair in (f"task.path={path}", "task.clients=30", "task.partition.minimum=2"):
        words += ["--set", pair]
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; from "
        "fedseed.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (
        "30 clients, 280 examples of 7 labels" in done.stdout
        and "no client holds category summ" in done.stdout
    )
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80  # the last line names the picture
    assert picture.read_bytes().startswith(b"\x89PNG")
    refused(2, "280 examples are not enough", *words, "--set", "task.clients=300")
    refused(2, ".png file", *words, "--out", "x.txt")
