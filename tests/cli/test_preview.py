"""`fedseed preview`: what a person sees of the data."""

import subprocess
import sys

import pytest

from fedseed.recipe.settings import Recipe
from fedseed.runs import preview
from support.chat_bases import chat_base
from support.command import refused, well
from support.instruction_files import write_lines
from support.published_bases import roberta


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preview")
    chat_base(folder / "base", "qwen2")
    for name in ("anna", "bert"):
        said = ["Hello", "I am well.", "And of Italy?", "It is Rome."]
        turns = [
            {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)
        ]
        rows = [{"messages": turns} for _ in range(5)]
        if name == "bert":
            rows.append(
                {
                    "messages": [
                        {"role": "user", "content": "x" * 400},
                        {"role": "assistant", "content": "y"},
                    ]
                }
            )
        write_lines(folder / "chats" / f"{name}.jsonl", rows)
    (folder / "my.toml").write_text(
        'rounds = 1\n[model]\nbase = "base"\n[task]\nname = "files"\npath = '
        '"chats"\n[method]\nname = "ferret"\n'
        "[method.training]\nlearning_rate = 0.1\n"
    )
    return folder


def test_it_shows_tokens_and_what_counts(folder):
    done = well("preview", "my.toml", "--examples", 1, cwd=folder)
    assert (
        "[[I| am| well|.|<|im_end|>]]⏎\n" in done.stdout
        and "[[I|t| is| Rome|.|<|im_end|>]]⏎\n" in done.stdout
    )
    assert "anna, example 1 of 4 (chats/anna.jsonl line " in done.stdout
    assert (
        "1 of the clients' examples left out (over the model's 256 positions); by client: bert 1"
        in done.stdout
    )
    assert "5 of 9 held-out" not in done.stdout and "are also in the training data" in done.stdout


def test_whose_how_many_and_how_they_are_cut_can_be_chosen(folder):
    words = [
        "preview",
        "my.toml",
        "--client",
        "bert",
        "--examples",
        9,
        "--set",
        "evaluation.truncate=left",
    ]
    done = well(*words, "--set", "task.loss_on=last", cwd=folder)
    assert (
        done.stdout.count("bert, example ") == 5
        and ("256 tokens, 2 of them count for the loss") in done.stdout
    )
    assert "more were cut" in done.stdout
    assert "[[I| am" not in done.stdout
    refused(
        2,
        "cem: no such client; the clients are anna, bert",
        "preview",
        "my.toml",
        "--client",
        "cem",
        cwd=folder,
    )


def test_other_kinds_of_examples(original):
    path = original("sst2")
    sets = [
        "--set",
        f"task={{name='sst2',path='{path}',examples=10,validation=2}}",
        "--examples",
        1,
    ]
    done = well("preview", "small-ferret", *sets)
    assert (
        "the loss is about which option follows" in done.stdout
        and "options: terrible / great" in done.stdout
    )
    refused(
        2, ("its examples are pictures, but a preview shows tokens"), "preview", "digits-zo-fedsgd"
    )


IMPORTED = """
import sys
from fedseed.cli import main
try:
    main()
finally:
    print("imported:", *(name for name in ("torch", "transformers.modeling_utils") if name in
          sys.modules), file=sys.stderr)
"""


def imports(*words, cwd):
    """Return the modules of interest that `fedseed` has imported, and what it wrote."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *map(str, words)], cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.rpartition("imported: ")[2].split(), done.stdout


def test_a_models_class_is_imported_only_where_it_decides(folder):
    rows = [{"prompt": "Hello", "completion": "I am well."} for _ in range(4)]
    write_lines(folder / "short" / "anna.jsonl", rows)
    words = ("preview", "my.toml", "--set", "task.path=short")
    modules, text = imports(*words, cwd=folder)
    assert modules == ["torch"]
    modules, same_text = imports(*words, "--set", "model.trust_remote_code=true", cwd=folder)
    assert modules == ["torch"] and same_text == text
    modules, text = imports("preview", "my.toml", cwd=folder)  # one is too long
    assert "transformers.modeling_utils" in modules and "over the model's 256 positions" in text


@pytest.mark.parametrize("base", ["small", "roberta"])
@pytest.mark.parametrize("longest", [20, 70])
def test_a_configuration_tells_what_the_model_would(base, longest, tmp_path, monkeypatch):
    positions = 66  # RoBERTa: the first two are never used
    if base == "roberta":
        base = str(tmp_path / "base")
        roberta(tmp_path / "base", max_position_embeddings=positions)
    rows = [
        {"text": "a " * length, "label": ("even", "odd")[length % 2]}
        for length in range(longest // 2, longest)
    ]
    write_lines(tmp_path / "rows" / "anna.jsonl", rows)
    recipe = Recipe.model_validate(
        {
            "rounds": 1,
            "model": {"base": base, "architecture": "classification"},
            "task": {"name": "files", "path": str(tmp_path / "rows")},
            "method": {"name": "feedsign"},
            "evaluation": {"max_length": 68},
        }
    )
    shown_by_config = preview.preview(recipe, examples=100)
    monkeypatch.setattr(preview, "_prepare_by_config", lambda *arguments: None)
    assert preview.preview(recipe, examples=100) == shown_by_config
    assert ("left out" in str(shown_by_config)) == (longest == 70)


def test_characters_of_several_tokens_are_shown_whole(tmp_path):
    """The small base has two tokens for an umlaut: each alone is no text."""
    rows = [{"prompt": "Wie schön?", "completion": f" süß „{i}“"} for i in range(3)]
    write_lines(tmp_path / "data" / "anna.jsonl", rows)
    (tmp_path / "my.toml").write_text(
        'rounds = 1\n[task]\nname = "files"\npath = "data"\n[method]\nname = "fedavg"\n'
    )
    done = well("preview", "my.toml", "--examples", 2, cwd=tmp_path)
    assert "\ufffd" not in done.stdout
    assert "sch|ö|·|n" in done.stdout and "|ü|·|ß|·| |„|·|·|" in done.stdout
    assert done.stdout.rstrip().endswith("; · is the rest of a character")
