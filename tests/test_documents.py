"""Every code block of README.md and docs/: it is right as far as can be said without running it.

tests/test_documents_run.py runs them.
"""

import ast
import json
import re
import tomllib

import jinja2
import pytest
import tomli_w
import typer.main
import yaml

from fedseed.cli.app import app
from fedseed.cli.network import read_site
from fedseed.errors import RecipeError
from fedseed.experiments.sweeps import read_sweep
from fedseed.recipe.reading import read_recipe
from support.documents import (
    LANGUAGES,
    ROOT,
    all_blocks,
    documents,
    fedseed_words,
    parts,
    patched_files,
)

BLOCKS = all_blocks()
SHELL = [block for block in BLOCKS if block.language in ("sh", "console")]
KNOWN = {
    "cd",
    "ls",
    "echo",
    "pip",
    "python",
    "python3.11",
    "make",
    "apt-get",
    "nats-server",
    "curl",
    "tensorboard",
    ".",
    "flwr",
    "hf",
    "flower-superlink",
    "flower-supernode",
}
ROOMS = ("methods", "tasks", "metrics", "aggregation", "trackers")
GROUPS = {f"fedseed.{room}" for room in ROOMS}
ROOM_NAMES = {path.parent.name for path in (ROOT / "src" / "fedseed").glob("*/__init__.py")}
FILES = {"examples/three-hospitals/run.sh"}

# what the parts of recipes need to be whole; recipes, sweeps, sites' files and entry points are
# told by what they have
WHOLE = {"rounds": 20, "method": {"name": "ferret", "training": {"learning_rate": 0.1}}}
BESIDE = {  # page, what the part begins with
    ("models.md", '[model]\nbase = "my-llama"'): {"method": {"name": "fedit"}},
    ("models.md", "[method.training]"): {"method": {"name": "fedsgd"}},
    ("vision.md", "[model]"): {"task": {"name": "digits"}},
}


def blocks(language):
    # what needs a patch names things that only the patched package has
    chosen = [block for block in BLOCKS if block.language == language and not block.is_patched]
    return pytest.mark.parametrize("block", chosen, ids=str)


def test_each_block_says_what_it_is_and_none_is_only_indented():
    assert len(BLOCKS) > 70 and {block.language for block in BLOCKS} == LANGUAGES
    for path in documents():
        outside = re.sub(
            r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
        )
        if path.name != "api.md":  # which has options of mkdocstrings
            assert not re.search(r"\n\n    \S", outside), (
                f"{path.name}: an indented block is found by no test"
            )
        assert outside.count("<!-- not run:") == sum(
            b.page == path.name and b.reason is not None for b in BLOCKS
        )


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_command_lines_have_the_options_that_they_name(block, monkeypatch):
    """Also those that are not run."""
    monkeypatch.setattr("fedseed.cli.common.load_plugin", str)  # of others there is only the name
    for line in block.commands:
        for words, _ in parts(line):
            rest = fedseed_words(words)
            if rest is None:
                assert words[0] in KNOWN or (words[0] in FILES and (ROOT / words[0]).is_file()), (
                    words
                )
            else:
                parse(rest)


def parse(words):
    """What click does before it calls a command: a wrong option or a missing argument raises."""
    command, context = typer.main.get_command(app), None
    words = list(words)
    while True:
        context = command.make_context(command.name or "fedseed", words, parent=context)
        if not hasattr(command, "resolve_command"):
            return context.params
        _, command, words = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )


@blocks("toml")
def test_tables_are_recipes_or_parts_of_them(block, tmp_path):
    data = tomllib.loads(block.text)
    file = tmp_path / "block.toml"
    file.write_text(block.text)
    if "project" in data:
        assert set(data["project"]["entry-points"]) <= GROUPS
    elif "run" in data:
        assert read_sweep(file).runs
    elif "superlink" in data:  # a table of Flower's own configuration
        assert all("address" in link for link in data["superlink"].values())
    elif "client" in data:
        assert read_site(file)["data"]
    elif "function" in data.get("reward", {}):  # its file is not there, nor agreed to
        with pytest.raises(RecipeError, match="is code"):
            read_recipe(file)
    elif "rounds" in data:
        assert read_recipe(file).rounds == data["rounds"]
    else:
        found = (
            more
            for (page, start), more in BESIDE.items()
            if page == block.page and block.text.startswith(start)
        )
        more = next(found, {})
        read = (
            [data]
            if block.page != "models.md" or "training" not in data.get("method", {})
            else split(data)
        )
        for one in read:
            whole = merged(merged(WHOLE, more if one is read[-1] else {}), one)
            if whole["method"]["name"] != "ferret":
                whole["method"].pop("training", None)
            file.write_text(tomli_w.dumps(whole))
            if "plugins" in one:  # whose files are not there
                assert {"plugins"} == set(one)
            else:
                assert read_recipe(file).rounds == 20


def split(data):
    """Two recipes' parts in one block: first order's schedule, and the one of zeroth-order
    methods.
    """
    training = data["method"]["training"]
    rest = {key: value for key, value in data["method"].items() if key != "training"}
    return {"method": {"training": training}}, {"method": rest}


def merged(table, other):
    made = dict(table)
    for key, value in other.items():
        made[key] = merged(made.get(key, {}), value) if isinstance(value, dict) else value
    return made


def test_other_blocks_can_be_read():
    for block in BLOCKS:
        if block.language == "python":
            ast.parse(block.text)
        elif block.language == "json":
            assert json.loads(block.text)
        elif block.language == "yaml":
            assert yaml.safe_load(block.text)
        elif block.language == "jinja":
            assert jinja2.Environment().parse(block.text).body


def test_files_that_the_documents_name_are_there():
    """Also those that a block's reason names for not being run."""
    folders = "src|tests|docs|examples|scripts|benchmarks"
    pattern = re.compile(rf"`((?:{folders}|{'|'.join(ROOM_NAMES)})/[\w./-]+\.(?:py|md|toml|sh))`")
    named = [
        (path.name, name)
        for path in documents()
        for name in pattern.findall(path.read_text(encoding="utf-8"))
    ]
    for block in BLOCKS:
        named += [
            (block, name)
            for name in re.findall(r"\b(?:tests|docs|examples)/[\w/.-]+\w", block.reason or "")
        ]
    for where, name in named:
        there = (ROOT / name).exists() or (ROOT / "src" / "fedseed" / name).exists()
        assert there or name in patched_files(), f"{where}: {name}"


def test_tests_that_the_documents_name_are_there():
    tests = {
        path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    }
    patched = {name.rpartition("/")[2] for name in patched_files()}
    there = {name for text in tests.values() for name in re.findall(r"def (test_\w+)", text)}
    for path in documents():
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r"\btest_\w+\.py\b", text)) <= tests.keys() | patched, path.name
        # keys are shorter
        assert set(re.findall(r"`(test_[a-z]+_[a-z]+_\w+)`", text)) <= there, path.name


def test_architecture_lists_each_room_once():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = re.search(r"## Rooms\n.*?```text\n(.*?)```", text, re.DOTALL)[1]
    listed = re.findall(r"(?:^  |  )(\w+)/", rooms, re.MULTILINE)
    assert sorted(room for room in listed if room in ROOM_NAMES) == sorted(ROOM_NAMES)
