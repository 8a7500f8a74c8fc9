"""Recipes, folders, bases and data of somebody else that would hang or take all memory: refused in words."""

import json
import os
import shutil
from pathlib import Path

import pytest

import fedseed
from fedseed.errors import FedseedError, RecipeError
from fedseed.models.loading import load_model, outline
from fedseed.objectives.losses import CausalLM
from fedseed.runs.folder import RunFolder
from fedseed.runs.recipe import read_recipe
from fedseed.tasks.chats import chat_of
from fedseed.tasks.data import ChatStyle
from fedseed.tasks.own import FilesTask
from support.memory import at_most

SMALL = Path(fedseed.__file__).parent / "base" / "small"


@pytest.fixture
def base(tmp_path):
    return Path(shutil.copytree(SMALL, tmp_path / "base"))


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("name", ["log.txt", "progress.jsonl", "metrics.jsonl"])
def test_a_pipe_in_a_runs_folder_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(FedseedError, match=rf"{name}: no regular file .*delete it"):
        RunFolder(tmp_path, resume=True)


@pytest.mark.parametrize("text", ["%s = 1", "[%s]", "a = {%s = 1}", '"b".%s = 1'])
def test_a_key_of_many_parts_is_refused_before_it_is_parsed(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_text("rounds = 1\n" + text % ".".join("a" * 5000))
    with at_most(8 << 20), pytest.raises(RecipeError, match=r"recipe.toml line 2: a key of more than 32 parts"):
        read_recipe(path)


def test_a_long_text_is_a_bad_line(tmp_path):
    rows = [json.dumps({"text": f"short {i}"}) for i in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows, json.dumps({"text": "x" * (5 << 20)})]))
    with pytest.raises(RecipeError, match=r"a.jsonl line 4: \"text\" has 5,242,880 characters, .*; split it"):
        FilesTask(path=str(tmp_path)).load()
    data = FilesTask(path=str(tmp_path), on_bad_line="skip").load()
    assert len(data.clients[0].examples) + len(data.evaluation[""]) == 3


@pytest.mark.parametrize(
    "row",
    [
        '{"prompt": "a", "completion": "\\ud800"}',
        '{"messages": [{"role": "user", "content": "\\udfff"}, {"role": "assistant", "content": "b"}]}',
    ],
)
def test_half_a_character_is_a_bad_line(tmp_path, row):
    (tmp_path / "a.jsonl").write_text(row + "\n")
    with pytest.raises(RecipeError, match=r"a.jsonl line 1: not valid JSON: it has half of a character \(\\ud[8f]"):
        FilesTask(path=str(tmp_path)).load()
    (tmp_path / "a.jsonl").write_text('{"prompt": "\\ud83d\\ude00", "completion": "b"}\n' * 2)  # a whole one
    assert FilesTask(path=str(tmp_path)).load().clients[0].examples[0].prompt == "\U0001f600"


@pytest.mark.parametrize(
    "values",
    [
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": False}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    ],
)
def test_a_tokenizer_that_fails_is_refused(base, values):
    change(base / "tokenizer.json", **values)
    with pytest.raises(RecipeError, match=r"its tokenizer or image processor can't be loaded"):
        load_model(str(base))


@pytest.mark.parametrize("make", [load_model, outline])
def test_layers_without_end_are_refused(base, make):
    change(base / "config.json", num_hidden_layers=10**9)
    with pytest.raises(RecipeError, match=r"num_hidden_layers = 1,000,000,000 in config.json: at most 4,096"):
        make(str(base))


@pytest.mark.parametrize("text", ["{{ 'a' * 4000000000 }}", "{{ messages[0].content * 10 ** 9 }}"])
def test_a_template_that_multiplies_without_end_is_refused(small, text):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    chat = chat_of(turns, [], ChatStyle("given", text), "a.jsonl line 1")
    with pytest.raises(RecipeError, match=r"the chat template multiplies by [\d,]+|raises to a power"):
        CausalLM(small[1]).prepare([chat])
