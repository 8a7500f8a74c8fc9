import json
import subprocess
import sys

import pytest

TINY = ["rounds=2", "federation.per_round=2", "method.training.steps=1", "task.evaluation=1", "task.unseen=1",
        "task.examples=5", "evaluation.every=2", "evaluation.max_new_tokens=4"]  # fmt: skip
SETS = [word for pair in TINY for word in ("--set", pair)]


def fedseed(*words, cwd=None):
    code = "from fedseed.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, cwd=cwd)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    done = fedseed("run", "quickstart-ferret", *SETS, "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stdout


def test_run_ends_in_a_table_and_leaves_its_files(finished):
    folder, output = finished
    assert "zero-shot" in output and "ferret" in output and "Rouge-L" in output
    table = output[output.index("parameters,") :]
    assert max(map(len, table.splitlines()[:-1])) <= 80  # the last line is the folder's name
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 2 and summary["clients"] == 20
    assert {"loss", "rouge_l", "unseen_loss", "unseen_rouge_l"} <= set(summary["final"])
    recipe = (folder / "recipe.toml").read_text()
    assert "momentum" in recipe and "rounds = 2" in recipe  # complete, defaults included, as run


def test_replay_writes_a_folder_that_transformers_loads(finished, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from fedseed import ParameterSpace

    folder, _ = finished
    done = fedseed("orbit", "replay", folder / "model.orbit", "--out", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    digest = json.loads((folder / "summary.json").read_text())["weights_digest"]
    assert digest in done.stdout
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert ParameterSpace(model).digest() == digest
    assert AutoTokenizer.from_pretrained(tmp_path / "model").eos_token_id is not None
    again = fedseed("orbit", "replay", folder / "model.orbit", "--out", tmp_path / "model")
    assert again.returncode == 1 and "holds a model already" in again.stderr


def test_orbit_info(finished):
    done = fedseed("orbit", "info", finished[0] / "model.orbit")
    assert done.returncode == 0
    for text in ("ferret", "small (float32)", "hadamard", "final digest"):
        assert text in done.stdout


def test_a_second_run_does_not_touch_the_first(finished):
    before = (finished[0] / "summary.json").read_text()
    done = fedseed("run", "quickstart-ferret", *SETS, "--out", finished[0])
    assert done.returncode == 1 and "holds a run already" in done.stderr
    assert (finished[0] / "summary.json").read_text() == before


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "nowhere.toml"], "nowhere.toml: no such recipe"),
        (["run", "quickstart-ferret", "--set", "method.directions=0"], "method.directions = 0"),
        (["run", "quickstart-ferret", "--set", "method.direction=5"], "unknown key"),
        (["run", "quickstart-ferret", "--set", "model.base=./no/such"], "no such folder"),
        (["run", "quickstart-ferret", "--set", "federation.per_round=21"], "federation.per_round = 21"),
        (["run", "quickstart-ferret", "--set", "task.clients=99"], "task.clients = 99"),
    ],
)
def test_a_wrong_recipe_ends_with_2_and_one_line(words, text, tmp_path):
    done = fedseed(*words, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert text in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_wrong_command_lines_end_with_2():
    for words in (["fly"], ["run"], ["list", "birds"], ["run", "quickstart-ferret", "--sett", "x=1"]):
        assert fedseed(*words).returncode == 2


def test_other_failures_end_with_1_and_one_line(tmp_path):
    (tmp_path / "x.orbit").write_bytes(b"garbage")
    done = fedseed("orbit", "info", tmp_path / "x.orbit")
    assert done.returncode == 1
    assert done.stderr.strip() == f"fedseed: {tmp_path / 'x.orbit'}: not an orbit file"


@pytest.mark.parametrize(("what", "text"), [("methods", "ferret"), ("bases", "hadamard"), ("tasks", "instructions"),
                                            ("tasks", "natural-instructions"), ("tasks", "sst2"),
                                            ("recipes", "quickstart-fedavg")])  # fmt: skip
def test_list(what, text):
    done = fedseed("list", what)
    assert done.returncode == 0 and text in done.stdout
