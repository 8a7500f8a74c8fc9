"""`fedseed preview`: what a person sees of the data."""

import pytest

from support.chat_bases import chat_base
from support.command import refused, well
from support.instruction_files import write_lines


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
        done.stdout.count("bert, example ") == 5 and "256 tokens, 2 of them count, " in done.stdout
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
        2, "its examples are pictures, but a preview shows tokens", "preview", "digits-zo-fedsgd"
    )
