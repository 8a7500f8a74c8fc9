"""What would destroy a file, or give another result than was asked for, is refused."""

import json

import pytest
import torch

from fedseed import Federation, Ferret
from fedseed.errors import NonFiniteError, RecipeError, StorageError
from fedseed.experiments.sweeps import parse_seeds, read_sweep
from fedseed.models.loading import base_config, load_model
from fedseed.objectives.generation import Writer
from fedseed.orbit.sharing import folder_of
from fedseed.privacy.account import Limits
from fedseed.privacy.account_file import FileAccount
from fedseed.processes import COMMAND
from fedseed.reports.results import read_summary
from support.command import fedseed, refused, well

RECIPE = """
rounds = 1
[task]
name = "instructions"
clients = 2
examples = 4
evaluation = 1
unseen = 1
[evaluation]
rouge = false
"""
METHODS = {
    "ferret": '[method]\nname = "ferret"\nbytes = "1kB"\ntraining = {learning_rate = 0.01}\n',
    "fedavg": '[method]\nname = "fedavg"\ntraining = {learning_rate = 0.01}\n',
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Make the folder of a short run of each kind of method."""
    folder = tmp_path_factory.mktemp("runs")
    for name, method in METHODS.items():
        recipe = folder / f"{name}.toml"
        recipe.write_text(RECIPE + method)
        well("run", recipe, "--out", folder / name)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_an_export_leaves_a_runs_folder_as_it_is(runs, method):
    folder = runs / method
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    refused(1, "holds a run", "export", folder, "--out", folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    well("run", runs / f"{method}.toml", "--out", folder, "--resume", "--rounds", "2")
    assert read_summary(folder)["rounds"] == 2


def test_an_export_replaces_no_readme(runs, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("ours\n")
    refused(1, "holds a README.md", "export", runs / "ferret", "--out", tmp_path)
    assert readme.read_text() == "ours\n" and list(tmp_path.iterdir()) == [readme]


def test_a_damaged_summary_is_named_in_a_comparison(runs, tmp_path):
    for text in ("{}", "[]", '{"rounds": 1}', "{"):
        (tmp_path / "summary.json").write_text(text)
        (tmp_path / "metrics.jsonl").write_text("")
        page = tmp_path / "page.html"
        words = ("report", runs / "ferret", tmp_path, "--out", page)
        refused(1, f"{tmp_path / 'summary.json'}: not a run's summary", *words)
        assert not page.exists()


@pytest.mark.parametrize("text", ["1,1", "1,2,1", "3, 03"])
def test_a_seed_that_comes_twice(text):
    with pytest.raises(RecipeError, match="comes twice"):
        parse_seeds(text)


def test_a_sweeps_file_with_a_seed_twice(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text('seeds = [1, 1]\n[[run]]\nlabel = "a"\nrecipe = "quickstart-ferret"\n')
    with pytest.raises(RecipeError, match="1 comes twice"):
        read_sweep(file)


def test_different_seeds_are_taken():
    assert parse_seeds("3,1,2") == [3, 1, 2]


@pytest.mark.parametrize("count", [1, 16])
def test_fewer_bytes_than_an_update_has(count):
    with pytest.raises(ValueError, match=f"bytes = {count}: an update has 16 bytes besides"):
        Ferret(bytes=count)
    assert Ferret(bytes=17).directions == 8


@pytest.mark.parametrize(
    ("datasets", "text"),
    [
        ({"north": [], "south": []}, "datasets is a dict"),
        ("north", "datasets is a str"),
        ([[{"text": "a"}], {"text": "b"}], r"datasets\[1\] is a dict"),
        (["a text"], r"datasets\[0\] is a str"),
    ],
)
def test_data_that_would_be_taken_apart(datasets, text):
    model, tokenizer = load_model("small")
    with pytest.raises(RecipeError, match=text):
        Federation(model, datasets, Ferret(bytes=100), tokenizer=tokenizer)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_of_no_numbers_writes_nothing(temperature):
    model, tokenizer = load_model("small")
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    writer = Writer(model, tokenizer, max_tokens=3, temperature=temperature)
    with pytest.raises(NonFiniteError, match="logits are not numbers"):
        writer.continue_prompt("Count:")


def test_a_prompt_that_is_no_text(tmp_path):
    refused(2, "the prompt is not UTF-8 (at character 4)", "generate", "small", "hi \udcff")
    assert fedseed("generate", "small", "hé", "--max-tokens", "1").returncode == 0


def test_a_privacy_account_that_is_a_folder(tmp_path):
    with pytest.raises(StorageError, match="not a regular file; --account must name a file"):
        FileAccount(tmp_path, "north", Limits(rounds=3, budget=None, delta=1e-5))


def test_an_empty_place_for_an_orbit():
    with pytest.raises(RecipeError, match="it is empty"):
        folder_of("")


def test_targets_that_match_nothing_are_named(tmp_path):
    recipe = tmp_path / "subspace.toml"
    recipe.write_text(
        RECIPE + '[method]\nname = "subspace"\nrank = 1\ntargets = ["*nosuch*"]\n'
        "training = {learning_rate = 0.01}\n"
    )
    words = ("run", recipe, "--out", tmp_path / "run")
    refused(2, "method.targets = ['*nosuch*']: no parameter has such a name", *words)


def test_a_bases_name_is_shown_without_a_terminals_codes(capsys, monkeypatch):
    monkeypatch.setenv(COMMAND, "1")
    with pytest.raises(RecipeError):
        base_config("small\x1b[2J")
    assert "\x1b" not in capsys.readouterr().err


def test_a_run_does_not_go_into_the_folder_of_its_data(tmp_path):
    """Otherwise its metrics.jsonl is a client's file, and the run can't be resumed."""
    well("new", tmp_path)
    data = tmp_path / "data"
    before = sorted(path.name for path in data.iterdir())
    for out in (data, tmp_path / "data" / ".." / "data"):
        refused(2, "is the folder of the data", "run", tmp_path / "recipe.toml", "--out", out)
    assert sorted(path.name for path in data.iterdir()) == before
    well("run", tmp_path / "recipe.toml", "--set", "rounds=1", "--out", data / "run")


@pytest.mark.parametrize("size", ["0", "1B", "16", "28k", "1..2kB", "many", "-3kB", ""])
def test_a_new_recipe_has_bytes_that_a_run_takes(size, tmp_path):
    refused(2, f"--bytes {size}: write 28kB", "new", tmp_path / "demo", "--bytes", size)
    assert not (tmp_path / "demo").exists()


def test_a_run_in_which_nobody_sent_anything_says_so(tmp_path):
    """Have examples that are all too long, and short ones to evaluate on."""
    rows = [{"prompt": "Say it " * 60, "completion": " now"}] * 3
    (tmp_path / "north.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "asked.json").write_text('[{"prompt": "Say", "completion": " it"}]')
    recipe = tmp_path / "long.toml"
    recipe.write_text(
        'rounds = 2\n[task]\nname = "files"\npath = "north.jsonl"\nclients = 1\n'
        'evaluation_file = "asked.json"\n[evaluation]\nmax_length = 20\nrouge = false\n'
        + METHODS["ferret"]
    )
    well("run", recipe, "--out", tmp_path / "run")
    log = (tmp_path / "run/log.txt").read_text()
    assert "no client sent anything in any round" in log
    assert "learning_rate" not in log  # no rate would have moved the loss
