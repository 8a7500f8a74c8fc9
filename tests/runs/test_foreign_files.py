"""Recipes, run folders and adapters of somebody else's: refused in one line, whatever they hold."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedseed import FeedSign
from fedseed.errors import FedseedError, OrbitError, RecipeError
from fedseed.models.adapters import LoRA, PromptTuning
from fedseed.orbit import Header
from fedseed.orbit.header import AdapterStart
from fedseed.orbit.replay import equip
from fedseed.reports.log import Logged
from fedseed.reports.progress import Silent
from fedseed.runs.parties import read_names, write_names
from fedseed.runs.store import OrbitStore, read_weights
from fedseed.weights.digest import base_digest
from fedseed.weights.layout import Layout, TensorEntry
from support.command import fedseed

pytestmark = pytest.mark.usefixtures("without_pictures")

RECIPES = {
    "nested": "rounds = " + "[" * 20_000,
    "digits": "rounds = " + "9" * 5000,
    "long": "# " + "x" * (1 << 20),
    "bytes": b"rounds = \xff",
    "escapes": 'rounds = "\\u001b[2J\\u202e"',
    "markup": '"[red]x[/red]" = 1',
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *((kind, ("run",)) for kind in RECIPES),
        ("escapes", ("join", "--local", "a.toml")),
        ("digits", ("compare", "--out", "new")),
    ],
)
def test_a_recipe_that_is_none_is_one_line(kind, words, tmp_path):
    text = RECIPES[kind]
    path = tmp_path / "a.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    given = ["quickstart-ferret"] if words[0] == "join" else [path]
    said = fedseed(words[0], *given, *words[1:], cwd=tmp_path)
    assert said.returncode == 2 and said.stderr.startswith("fedseed: ") and said.stderr.count("\n") == 1, said.stderr
    assert "a.toml" in said.stderr and len(said.stderr) < 20_000 and not set(said.stderr) & {"\x1b", "\u202e"}
    assert [file.name for file in tmp_path.iterdir()] == ["a.toml"]


@pytest.mark.parametrize("text", ["[" * 100_000, '"' + "9" * 10, "{}", "[1]", "[]", "9" * 5000])
def test_a_list_of_names_that_is_none(text, tmp_path):
    (tmp_path / "clients.json").write_text(text)
    with pytest.raises(RecipeError, match=r"clients\.json: "):
        read_names(tmp_path / "clients.json")


def test_nothing_of_a_run_is_written_through_a_link(tmp_path):
    victim, run = tmp_path / "victim", tmp_path / "run"
    run.mkdir()
    victim.write_text("mine")
    for name in ("log.txt", "clients.json"):
        (run / name).symlink_to(victim)
    log = Logged(Silent())
    log.open(run)
    log.write("note", "somebody else's")
    log.close()
    write_names(run / "clients.json", ["a"])
    assert victim.read_text() == "mine" and (run / "clients.json").read_text() != "mine"


@pytest.mark.parametrize(
    "about", ["[" * 100_000, "[]", "{}", '{"header": 3}', '{"header": "AAAA", "round": "x"}', None]
)
def test_weights_that_are_not_a_runs(about, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(2)}, path, None if about is None else {"fedseed": about})
    with pytest.raises(OrbitError, match=r"model\.safetensors: "):
        read_weights(path)
    path.write_bytes((1 << 40).to_bytes(8, "little") + b"{" * 100)
    with pytest.raises(OrbitError, match="not the weights of a run"):
        read_weights(path)


@pytest.mark.parametrize("write", [
    lambda path: np.savez_compressed(path, a=np.zeros(10_000_000, dtype=np.int8)),
    lambda path: path.write_bytes(b"PK\3\4 nothing"),
    lambda path: np.savez(path, a=np.array([os.getcwd], dtype=object)),  # a pickle
])  # fmt: skip
def test_what_a_coordinator_has_kept_is_plain_arrays(write, tmp_path):
    write(tmp_path / "kept-3.npz")

    class Loads:
        def load_state_dict(self, arrays):
            raise AssertionError("taken up")

    with pytest.raises(FedseedError, match=r"kept-3\.npz: what the coordinator has kept of round 3 can't be read"):
        OrbitStore(tmp_path, None, Loads())._take_kept(3)


@pytest.mark.parametrize("settings", [LoRA(rank=10**8), PromptTuning(virtual_tokens=10**9)])
def test_an_adapter_that_is_larger_than_it_says(settings):
    """Refused before anything of it is made."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4))
    layout = Layout((TensorEntry("w", (4,), "float32"),), (0, 4))
    start = AdapterStart(settings, "0" * 32)
    header = Header("small", base_digest(net), "float32", layout, FeedSign(), 1, adapter=start)
    number = next(n for n in settings.model_dump().values() if type(n) is int and n > 10**6)
    big = Layout((TensorEntry("w", (number, 4), "float32"),), (0, 4 * number))
    for one in (header, replace(header, layout=big)):
        with pytest.raises(OrbitError, match=f"the orbit's adapter.* = {number:,}"):
            equip(one, net)
