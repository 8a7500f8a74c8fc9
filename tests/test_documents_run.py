"""README.md and the pages of docs/, done word by word: commands and Python blocks in their order,
in one folder.

What would take long is made small by further --set words, or by the recipe that the page starts
from (BEFORE). Blocks that are not run say why in a comment before them."""

import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from unittest import mock

import pytest

from support import command, text_bases
from support.documents import ROOT, blocks, documents, fedseed_words, parts
from support.forked import fedseed_forked
from support.instruction_files import write_lines

MINE = """rounds = 2
[task]
name = "files"
path = "my-data"
[method]
name = "ferret"
directions = 100
[method.training]
learning_rate = 0.1
batch = 2
steps = 2
[evaluation]
every = 1
max_new_tokens = 4
"""
SHORT = ["rounds=1", "method.training.steps=2", "evaluation.rouge=false"]
SMALL = [
    "rounds=6",
    "evaluation.every=6",
    "evaluation.rouge=false",
    "task.clients=2",
    "task.evaluation=2",
    "task.unseen=1",
    "federation.per_round=2",
    "method.training.steps=1",
    "method.directions=50",
    # with so few directions the recipe's own rate diverges, and the command ends with 3
    "method.training.learning_rate=0.01",
]


def own(folder, recipe=MINE):
    (folder / "my.toml").write_text(recipe)
    for n, name in enumerate(("anna", "bert", "cem")):
        rows = [
            {"prompt": f"What is {i} plus {'abc'[n]}?", "completion": f" {i}{'abc'[n]}"}
            for i in range(6)
        ]
        write_lines(folder / "my-data" / f"{name}.jsonl", rows)
    return folder


def done(folder, *words):
    finished = command.fedseed(*words, cwd=folder)
    assert finished.returncode == 0, finished.stderr
    return finished


def commands(folder):
    own(folder)
    for name in ("a.toml", "b.toml"):
        (folder / name).write_text(MINE)
    return folder


def new(folder):
    done(folder, "new", "demo")
    return folder / "demo"


def results(folder):
    own(folder)
    lora = MINE.replace('"ferret"\ndirections = 100', '"fedit"').replace("0.1\n", "0.01\n")
    (folder / "lora.toml").write_text(lora)
    done(folder, "run", "lora.toml", "--set", "rounds=1")
    write_lines(
        folder / "prompts.jsonl", [{"prompt": "What is 3 plus a?"}, {"prompt": "What is 4 plus b?"}]
    )
    return folder


def tracking(folder):
    done(own(folder), "run", "my.toml", "--set", "rounds=1", "--out", "runs/mine")
    for name in ("a", "b", "both/a", "both/b"):
        shutil.copytree(folder / "runs" / "mine", folder / "runs" / name)
    return folder


def data(folder):
    said = ["What is the capital of Italy?", "Rome.", "And of Spain?", "It is Madrid."]
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    first = {"messages": [{"role": "system", "content": "Be short."}, *turns]}
    for name in ("north", "south", "east"):
        rows = [first] + [
            {"messages": [{**turns[0], "content": f"{i}?"}, turns[1]]} for i in range(19)
        ]
        write_lines(folder / "chats" / f"{name}.jsonl", rows)
    page = blocks(ROOT / "docs" / "data.md")
    (folder / "chats.toml").write_text(
        next(b.text for b in page if b.text.startswith("# chats.toml"))
    )
    (folder / "simple.jinja").write_text(next(b.text for b in page if b.language == "jinja"))
    good = json.dumps({"prompt": "2 + 2 =", "completion": " 4"})
    bad = [
        json.dumps({"prompt": "x", "completion": None}),
        "prompt, completion",
        json.dumps({"prompt": "x"}),
    ]
    (folder / "sums.jsonl").write_text("\n".join([good, *bad]) + "\n")
    (folder / "mine.csv").write_text(
        "prompt,completion\n" + "".join(f"{i} + 1 =, {i + 1}\n" for i in range(10))
    )
    return folder


def extending(folder):
    recipe = own(folder).joinpath("my.toml").read_text() + '[aggregation]\nname = "clipped-mean"\n'
    recipe = recipe.replace("directions = 100", 'directions = 100\nseeds = "shared"').replace(
        "rounds = 2", "rounds = 1"
    )
    (folder / "recipe.toml").write_text(recipe)
    (folder / "theirs.toml").write_text('plugins = ["my_rule.py"]\n' + recipe)
    shutil.copy(ROOT / "examples" / "plugin_clipped_mean.py", folder / "my_rule.py")
    return folder


def federation(folder):
    page = blocks(ROOT / "docs" / "federation.md")
    (folder / "recipe.toml").write_text(next(b.text for b in page if b.language == "toml"))
    for name in ("north", "south", "east"):
        rows = [{"instruction": f"Say {i}.", "output": f"{name} {i}"} for i in range(6)]
        write_lines(folder / "data" / f"{name}.jsonl", rows)
    small = [f"--set={pair}" for pair in ("task.path=data", "rounds=1", "method.training.steps=1")]
    done(folder, "run", "recipe.toml", *small)
    done(folder, "export", "runs/recipe", "--out", "model")  # what `join` leaves
    shutil.copy(folder / "runs" / "recipe" / "model.orbit", folder / "model")
    return folder


def decentralised(folder):
    page = blocks(ROOT / "docs" / "decentralised.md")
    (folder / "mesh.toml").write_text(next(b.text for b in page if b.language == "toml"))
    return folder


def models(folder):
    text_bases.write(folder / "my-llama", "llama")
    rows = [
        {"text": text, "label": ("positive", "negative")[i % 2]}
        for i, text in enumerate(text_bases.TEXTS)
    ]
    write_lines(folder / "mine.jsonl", rows)
    recipe = MINE.replace("my-data", "mine.jsonl").replace("[method]", "clients = 2\n[method]", 1)
    (folder / "recipe.toml").write_text(recipe.replace("max_new_tokens = 4\n", ""))
    return folder


def rewards(folder):
    own(folder)
    page = blocks(ROOT / "docs" / "evolution.md")
    for name, language in (("my.toml", "toml"), ("rewards.py", "python")):
        (folder / name).write_text(next(b.text for b in page if b.language == language))
    return folder


# what puts into a folder what the page takes for granted, and returns where the reader is
BEFORE = {
    "choosing.md": new,
    "commands.md": commands,
    "data.md": data,
    "decentralised.md": decentralised,
    "evolution.md": rewards,
    "extending.md": extending,
    "federation.md": federation,
    "machines.md": own,
    "models.md": models,
    "results.md": results,
    "tracking.md": tracking,
}
# what is set, by page and recipe
SETS = {
    "README.md": {"recipe.toml": SHORT},
    "choosing.md": {
        "recipe.toml": ["rounds=1", *SHORT[1:]],
        "small-mezo": ["rounds=2", "evaluation.every=2", SHORT[2]],
    },
    "commands.md": {"quickstart-ferret": SMALL},
    "data.md": {"chats.toml": ["method.training.steps=1"]},
    "evolution.md": {
        "my.toml": ["rounds=2", "reward.max_new_tokens=4", "evaluation.max_new_tokens=4"],
        "small-randopt": ["method.candidates=6", "method.batch=4", "evaluation.rouge=false"],
    },
    "start.md": {"recipe.toml": SHORT},
    "vision.md": {"digits-feedsign": ["rounds=2", "evaluation.every=2"]},
    "zeroth-order.md": {
        "words-feedsign": ["rounds=2", "evaluation.every=2"],
        "words-fedmezo": ["rounds=1", "method.steps=2"],
        "words-qzo": ["rounds=2", "evaluation.every=2"],
    },
}
TO_DO = {
    path: run
    for path in documents()
    if (
        run := [
            b
            for b in blocks(path)
            if b.reason is None and b.language in ("sh", "console", "python")
        ]
    )
}


def test_pages_that_are_made_ready_are_done():
    assert BEFORE.keys() | SETS.keys() <= {path.name for path in TO_DO} and len(TO_DO) > 15


@pytest.mark.slow
@pytest.mark.parametrize("path", TO_DO, ids=lambda path: path.name)
def test_the_page_word_by_word(path, tmp_path, monkeypatch, without_pictures):
    before, sets = BEFORE.get(path.name), SETS.get(path.name, {})
    # plug-ins stay where they are loaded
    run = fedseed_forked if path.name == "extending.md" else command.fedseed
    monkeypatch.chdir(before(tmp_path) if before else tmp_path)
    for block in TO_DO[path]:
        if block.language == "python":
            exec(compile(block.text, str(block), "exec"), {"__name__": "block"})
        for line in block.commands if block.language != "python" else []:
            do(line, block, run, sets)


def do(line, block, run, sets):
    said = ""
    for words, piped in parts(line):
        rest = fedseed_words(words)
        if words[0] == "cd":
            os.chdir(words[1])
        elif words[0] == "ls":
            assert Path(words[-1]).exists(), block
        elif words[0] == "echo":
            said = words[1] + "\n"
        else:
            assert rest is not None, f"{block}: {words}"
            if rest[0] in ("run", "compare", "bench", "preview"):
                pairs = next((sets[word] for word in rest if word in sets), [])
                rest = [*rest, *(f"--set={pair}" for pair in pairs)]
            with mock.patch.object(sys, "stdin", io.StringIO(said) if piped else sys.stdin):
                finished = run(*rest, cwd=Path.cwd())
            printed = block.text.partition("\n")[2] if block.language == "console" else ""
            if printed.startswith("fedseed: "):
                assert finished.returncode and finished.stderr.split() == printed.split(), block
            else:
                assert finished.returncode == 0, f"{block}: {words}\n{finished.stderr}"
                for part in printed.split("...\n"):
                    assert closer(part) in closer(finished.stdout), f"{block}\n{finished.stdout}"


def closer(text):
    """Without empty lines."""
    return re.sub(r"\n\s*\n", "\n", text).strip()


@pytest.mark.long
def test_the_readmes_recipe_for_ones_own_data_runs(tmp_path):
    text = next(
        block.text for block in blocks(ROOT / "README.md") if 'path = "my-data"' in block.text
    )
    (tmp_path / "my.toml").write_text(text)
    for n, name in enumerate(("anna", "bert", "cem")):
        write_lines(
            tmp_path / "my-data" / f"{name}.jsonl",
            [{"text": f"{i} {n}", "label": ("odd", "even")[i % 2]} for i in range(6)],
        )
    quick = ["rounds=1", "method.training.steps=2", "evaluation.max_new_tokens=4"]
    finished = done(tmp_path, "run", "my.toml", *(f"--set={pair}" for pair in quick))
    assert "15 training, 0 validation and 3 held-out examples" in finished.stdout
    assert "accuracy" in finished.stdout


@pytest.mark.long
def test_the_first_page_prints_what_its_commands_print(tmp_path, without_pictures):
    """As far as all machines agree: what is learnt differs in its last digits."""
    page = [b.text for b in blocks(ROOT / "docs" / "start.md") if b.language == "text"]
    shown, trained = page
    demo = new(tmp_path)
    preview = done(demo, "preview", "recipe.toml", "--examples", 1, "--client", "south").stdout
    assert closer(shown) in closer(preview)
    quick = ["rounds=1", "method.training.steps=1"]
    run = done(demo, "run", "recipe.toml", *(f"--set={pair}" for pair in quick)).stdout
    expected = trained.replace("10 rounds", "1 round").replace("round  0", "round 0")
    assert closer(expected.partition("  round  1")[0]) in closer(run)
    assert "28,000 B up a client" in trained and "28,000 B up a client" in run
