"""What the README says works."""

import json
import re
from pathlib import Path

import pytest

from fedseed.runs.recipe import read_recipe
from support import command
from support.tiers import mark

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
FORMS = {
    "prompt": lambda i: {"prompt": f"say {i}:", "completion": f" {i}"},
    "instruction": lambda i: {"instruction": f"Say {i}.", "output": f"{i}"},
    "messages": lambda i: {
        "messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i}"}]
    },
    "text": lambda i: {"text": f"number {i}", "label": ("odd", "even")[i % 2]},
}


@pytest.fixture
def recipe(tmp_path):
    """The recipe of the section about one's own data, beside the folder that it names."""
    text = re.search(r"## Your own data\n.*?```toml\n(.*?)```", README, re.DOTALL).group(1)
    assert len(text.splitlines()) <= 10
    (tmp_path / "my.toml").write_text(text)
    return tmp_path / "my.toml"


def fedseed(recipe, *words):
    return command.fedseed(words[0], recipe.name, *words[1:], cwd=recipe.parent)


@pytest.mark.parametrize("form", mark(FORMS, lambda form: form != "text", "long"))
def test_the_recipe_for_ones_own_data_runs(recipe, own_folder, form):
    own_folder(**{name: [FORMS[form](i + 10 * n) for i in range(6)] for n, name in enumerate(("anna", "bert", "cem"))})
    (recipe.parent / "own").rename(recipe.parent / "my-data")
    quick = ["--set", "rounds=1", "--set", "method.training.steps=2", "--set", "evaluation.max_new_tokens=4"]
    if form not in ("prompt", "text"):
        quick += ["--set", "evaluation.rouge=false"]
    done = fedseed(recipe, "run", *quick)
    assert done.returncode == 0, done.stderr
    assert "15 training, 0 validation and 3 held-out examples" in done.stdout
    assert {"text": "accuracy", "prompt": "Rouge-L"}.get(form, "held-out") in done.stdout
    assert (recipe.parent / "runs" / "my" / "summary.json").is_file()


def test_its_picture_and_its_errors(recipe, own_folder):
    folder = own_folder(anna=[FORMS["prompt"](i) for i in range(6)], bert=[FORMS["prompt"](7)] * 3)
    folder = folder.rename(recipe.parent / "my-data")
    done = fedseed(recipe, "partition", "--out", "who.png")
    assert done.returncode == 0 and (recipe.parent / "who.png").is_file()
    assert "2 clients, 7 examples" in done.stdout
    (folder / "cem.jsonl").write_text('{"prompt": "x"}')
    done = fedseed(recipe, "run")
    assert done.returncode == 2 and done.stderr == 'fedseed: my-data/cem.jsonl line 1: no "completion"\n'
    assert read_recipe(recipe).task.path == "my-data"


@pytest.mark.long
def test_what_new_writes_runs_as_it_is(tmp_path):
    """`fedseed new`, then what it says."""
    done = command.fedseed("new", "demo", cwd=tmp_path)
    assert done.returncode == 0 and "Next: cd demo && fedseed run recipe.toml" in done.stdout
    again = command.fedseed("new", "demo", cwd=tmp_path)
    assert again.returncode == 1 and "there already; choose another folder" in again.stderr
    quick = ["--set", "rounds=1", "--set", "evaluation.rouge=false"]
    done = command.fedseed("run", "recipe.toml", "--json", *quick, cwd=tmp_path / "demo")
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    summary = json.loads(done.stdout)
    assert summary["clients"] == 3 and summary["final"]["loss"] < 0.7 * summary["baseline"]["loss"]
    words = read_recipe(tmp_path / "demo" / "recipe.toml")
    assert words.rounds == 10 and "task.validation" not in words.to_toml()


def test_files_that_the_documents_name_are_there():
    root = Path(__file__).parents[1]
    folders = "src|tests|docs|examples|scripts|benchmarks"
    rooms = "|".join(path.name for path in (root / "src" / "fedseed").iterdir() if path.is_dir())
    pattern = re.compile(rf"`((?:{folders}|{rooms})/[\w./-]+\.(?:py|md|toml|sh))`")
    for document in (root / "README.md", *(root / "docs").glob("*.md")):
        for name in pattern.findall(document.read_text(encoding="utf-8")):
            assert (root / name).exists() or (root / "src" / "fedseed" / name).exists(), f"{document.name}: {name}"


def test_architecture_lists_each_room_once_and_says_once_what_the_main_loop_is():
    text = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(re.findall(r"`runs/loop\.py` is the main loop", text)) == 1
    rooms = re.search(r"## Rooms\n.*?```text\n(.*?)```", text, re.DOTALL).group(1)
    listed = re.findall(r"(\w+)/ ", rooms)
    assert len(listed) > 10 and len(set(listed)) == len(listed)
