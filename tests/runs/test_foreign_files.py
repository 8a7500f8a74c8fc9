"""Recipes, run folders and adapters of somebody else's: refused in one line, whatever they hold."""

import json
import os
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedseed import FedAvg, FeedSign
from fedseed.errors import FedseedError, OrbitError, RecipeError
from fedseed.models.adapters import LoRA, PromptTuning
from fedseed.models.loading import load_model
from fedseed.objectives.losses import CausalLM
from fedseed.orbit import Header, Orbit
from fedseed.orbit.header import AdapterStart
from fedseed.orbit.replay import equip
from fedseed.recipe.reading import read_recipe
from fedseed.reports.log import LoggedProgress
from fedseed.reports.progress import Progress
from fedseed.reports.results import RoundLine, read_metrics
from fedseed.runs.answers import read_answers
from fedseed.runs.folder import RunFolder
from fedseed.runs.parties import read_names
from fedseed.runs.store import OrbitStore, read_weights
from fedseed.tasks.chats import chat_of
from fedseed.tasks.data import ChatStyle
from fedseed.tasks.files import read_text
from fedseed.tasks.own import FilesTask
from fedseed.weights.digest import base_digest
from fedseed.weights.layout import Layout, TensorEntry
from support.command import fedseed
from support.memory import at_most

pytestmark = pytest.mark.usefixtures("quickly")

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
    assert (
        said.returncode == 2
        and said.stderr.startswith("fedseed: ")
        and said.stderr.count("\n") == 1
    ), said.stderr
    assert (
        "a.toml" in said.stderr
        and len(said.stderr) < 20_000
        and not set(said.stderr) & {"\x1b", "\u202e"}
    )
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
    (run / "log.txt").symlink_to(victim)
    log = LoggedProgress(Progress())
    log.open(run)
    log.write("note", "somebody else's")
    log.close()
    assert victim.read_text() == "mine"


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


@pytest.mark.parametrize(
    "write",
    [
        lambda path: np.savez_compressed(path, a=np.zeros(10_000_000, dtype=np.int8)),
        lambda path: path.write_bytes(b"PK\3\4 nothing"),
        lambda path: np.savez(path, a=np.array([os.getcwd], dtype=object)),  # a pickle
    ],
)
def test_what_a_coordinator_has_kept_is_plain_arrays(write, tmp_path):
    write(tmp_path / "kept-3.npz")

    class Loads:
        def load_state_dict(self, arrays):
            raise AssertionError("taken up")

    with pytest.raises(
        FedseedError, match=r"kept-3\.npz: the coordinator's state of round 3 can't be read"
    ):
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


# -- that would hang or take all memory
# --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.txt", "progress.jsonl", "metrics.jsonl"])
def test_a_pipe_in_a_runs_folder_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(FedseedError, match=rf"{name}: not a regular file .*delete it"):
        RunFolder(tmp_path, resume=True)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full"])
def test_a_link_to_a_device_is_refused_wherever_a_file_is_read(tmp_path, device):
    """Reading it would never end."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").symlink_to(device)
    with pytest.raises(RecipeError, match=r"model.base = .*config.json is not a regular file"):
        load_model(str(base))
    (tmp_path / "tasks.txt").symlink_to(device)
    with pytest.raises(RecipeError, match=r"tasks.txt: not a regular file"):
        read_text(tmp_path / "tasks.txt")
    for name in ("recipe.toml", "model.orbit"):
        folder = tmp_path / f"run-{name}"
        folder.mkdir()
        (folder / name).symlink_to(device)
        with pytest.raises(FedseedError, match=rf"{name}: not a regular file"):
            RunFolder(folder, resume=True)
    (tmp_path / "answers.jsonl").symlink_to(device)
    with pytest.raises(FedseedError, match=r"answers.jsonl: not a regular file"):
        read_answers(tmp_path / "answers.jsonl")
    (tmp_path / "a.orbit").symlink_to(device)
    with pytest.raises(OrbitError, match=r"a.orbit: not a regular file"):
        Orbit.open(tmp_path / "a.orbit")


@pytest.mark.parametrize("text", ["%s = 1", "[%s]", "a = {%s = 1}", '"b".%s = 1'])
def test_a_key_of_many_parts_is_refused_before_it_is_parsed(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_text("rounds = 1\n" + text % ".".join("a" * 5000))
    with (
        at_most(8 << 20),
        pytest.raises(RecipeError, match=r"recipe.toml line 2: a key of more than 32 parts"),
    ):
        read_recipe(path)


def test_a_long_text_is_a_bad_line(tmp_path):
    rows = [json.dumps({"text": f"short {i}"}) for i in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows, json.dumps({"text": "x" * (5 << 20)})]))
    with pytest.raises(
        RecipeError, match=r"a.jsonl line 4: \"text\" has 5,242,880 characters, .*; split it"
    ):
        FilesTask(path=str(tmp_path)).load()
    data = FilesTask(path=str(tmp_path), on_bad_line="skip").load()
    assert len(data.clients[0].examples) + len(data.evaluation[""]) == 3


@pytest.mark.parametrize(
    "row",
    [
        '{"prompt": "a", "completion": "\\ud800"}',
        '{"messages": [{"role": "user", "content": "\\udfff"}, {"role": "assistant", "content": '
        '"b"}]}',
    ],
)
def test_half_a_character_is_a_bad_line(tmp_path, row):
    (tmp_path / "a.jsonl").write_text(row + "\n")
    with pytest.raises(
        RecipeError,
        match=r"a.jsonl line 1: not valid JSON: it has half of a surrogate pair \(\\ud[8f]",
    ):
        FilesTask(path=str(tmp_path)).load()
    # a whole one
    (tmp_path / "a.jsonl").write_text('{"prompt": "\\ud83d\\ude00", "completion": "b"}\n' * 2)
    assert FilesTask(path=str(tmp_path)).load().clients[0].examples[0].prompt == "\U0001f600"


@pytest.mark.parametrize("text", ["{{ 'a' * 4000000000 }}", "{{ messages[0].content * 10 ** 9 }}"])
def test_a_template_that_multiplies_without_end_is_refused(small, text):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    chat = chat_of(turns, [], ChatStyle("given", text), "a.jsonl line 1")
    with pytest.raises(
        RecipeError, match=r"the chat template multiplies by [\d,]+|raises to a power"
    ):
        CausalLM(small[1]).prepare([chat])


# -- that were altered
# ------------------------------------------------------------------------------------------------


def going(problem, out, rounds):
    """A run whose coordinator remembers Adam's moments."""
    method = FedAvg(training=problem.training, global_rate=0.05, server="adam")
    return problem.federation(method, rounds=rounds, out=out)


def test_a_flip_anywhere_in_a_checkpoint_is_found(problem, tmp_path):
    going(problem, tmp_path / "run", 2).run()
    path = tmp_path / "run" / "model.safetensors"
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for position in (*range(start, len(data), (len(data) - start) // 97), len(data) - 1):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(
            OrbitError, match=r"do not match the digest|has changed since it was written"
        ):
            read_weights(path)
    said = b'\\"round\\": 2'
    assert data.count(said) == 1
    for other in (data.replace(said, b'\\"round\\": 1'), data + b"x"):
        path.write_bytes(other)
        with pytest.raises(OrbitError):
            read_weights(path)


def test_altered_moments_are_refused(problem, tmp_path):
    """What the server's optimiser keeps, which no digest of weights covers."""
    going(problem, tmp_path / "run", 2).run()
    assert {path.name for path in (tmp_path / "run").glob("kept-*.npz")} == {
        "kept-1.npz",
        "kept-2.npz",
    }
    path = tmp_path / "run" / "kept-2.npz"
    data = path.read_bytes()
    path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    with pytest.raises(
        FedseedError, match=r"kept-2\.npz: the coordinator's state of round 2 can't be read"
    ):
        going(problem, tmp_path / "run", 3).run(resume=True, extend=True)


@pytest.mark.parametrize(
    ("line", "said", "other"),
    [(1, '"loss": ', '"loss": 1'), (2, '"bytes_up": ', '"bytes_up": 1'), (1, '"loss"', '"lost"')],
)
def test_altered_figures_are_refused(problem, tmp_path, line, said, other):
    run = tmp_path / "run"
    going(problem, run, 2).run()
    before = read_metrics(run)
    assert "sum" not in before[0]
    texts = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert said in texts[line - 1]
    texts[line - 1] = texts[line - 1].replace(said, other, 1)
    (run / "metrics.jsonl").write_text("".join(texts))
    for act in (
        lambda: read_metrics(run),
        lambda: going(problem, run, 3).run(resume=True, extend=True),
    ):
        with pytest.raises(FedseedError, match=f"line {line} is not valid: it was altered"):
            act()


def test_lines_that_stand_elsewhere_than_where_they_were_written_are_refused(problem, tmp_path):
    """Another file's lines, lines that were left out or swapped, and another run's."""
    run = tmp_path / "run"
    going(problem, run, 3).run()
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    progress = RunFolder(tmp_path / "other")
    for number in range(4):
        progress.add_progress(RoundLine(number, taking_part=3, metrics={"loss": 1.0}))
    progress.release()
    altered = {
        "line 1 of progress.jsonl": (tmp_path / "other" / "progress.jsonl").read_text(),
        "line 3 of metrics.jsonl": "".join([*lines[:1], *lines[2:]]),
        "line 2 of metrics.jsonl": "".join([lines[1], lines[0], *lines[2:]]),
    }
    for where, text in altered.items():
        path.write_text(text)
        for act in (
            lambda: read_metrics(run),
            lambda: going(problem, run, 4).run(resume=True, extend=True),
        ):
            with pytest.raises(FedseedError, match=f"written as {where}, but is in this place"):
                act()
    # lines of an earlier fedseed, whose sums say nothing of a place
    older = []
    for line in lines:
        table = {key: value for key, value in json.loads(line).items() if key != "sum"}
        summed = {key: value for key, value in table.items() if key != "seconds"}
        table["sum"] = f"{crc32(json.dumps(summed).encode()):08x}"
        older.append(json.dumps(table) + "\n")
    path.write_text("".join(older))
    assert len(read_metrics(run)) == 4
    going(problem, run, 4).run(resume=True, extend=True)
    assert len(read_metrics(run)) == 5


def test_altered_progress_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.add_metrics(RoundLine(0, metrics={"loss": 4.0}))
    for number in (1, 2):
        folder.add_progress(RoundLine(number, taking_part=3, bytes_up=8.0))
    folder.release()
    path = tmp_path / "progress.jsonl"
    path.write_text(path.read_text().replace('"bytes_up": 8.0', '"bytes_up": 9.0'))
    folder = RunFolder(tmp_path, resume=True)
    with pytest.raises(FedseedError, match=r"progress.jsonl: line 1 is not valid: it was altered"):
        folder.take_up(2)
    folder.release()
