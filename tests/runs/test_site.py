"""What a site has of its own: a local file, its data in each form, what it holds out."""

import re
from pathlib import Path

import pytest

from fedseed.cli import network
from fedseed.errors import RecipeError
from fedseed.runs import joining
from fedseed.runs.joining import Loading
from fedseed.runs.recipe import Recipe
from fedseed.tasks.data import Chat, Choice, Example, OwnData
from fedseed.transport.base import Access
from support.command import fedseed
from support.instruction_files import write_lines

FORMS = {
    "prompt, completion": [{"prompt": f"{i} is", "completion": f" {i}"} for i in range(4)],
    "prompt, response": [{"prompt": f"{i} is", "response": f" {i}"} for i in range(4)],
    "instruction": [{"instruction": f"Say {i}.", "output": f"{i}"} for i in range(4)],
    "messages": [
        {"messages": [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": f"{i}"}]} for i in range(4)
    ],
    "text, label": [{"text": f"{i}", "label": "yes" if i % 2 else "no"} for i in range(4)],
    "options": [{"prompt": f"{i}:", "options": [" a", " b"], "gold": i % 2} for i in range(4)],
}


def recipe(**task):
    return Recipe.model_validate({
        "rounds": 1, "task": {"name": "files", "evaluation": 0.25, **task}, "method": {"name": "feedsign"},
        "federation": {"clients": ["north", "south"]},
    })  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_own_data_has_every_form_that_files_have(form, tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", FORMS[form])
    checked = recipe(labels=["no", "yes"])
    load = Loading(checked, ["north"], own=OwnData(path))
    part = load.data
    kind = {"text, label": Choice, "options": Choice, "messages": Chat}.get(form, Example)
    assert [client.name for client in part.clients] == ["north"] and load.party and load.names == ["north", "south"]
    assert len(part.clients[0].examples) == 3 and len(part.evaluation[""]) == 1
    assert {type(example) for example in (*part.clients[0].examples, *part.evaluation[""])} == {kind}
    # the same file in a folder that one process has is the same client
    write_lines(tmp_path / "all" / "north.jsonl", FORMS[form])
    assert checked.task.load_own("north", OwnData(tmp_path / "all"), alone=False).clients == part.clients


def test_a_folder_a_table_and_a_file_to_evaluate_on(tmp_path):
    write_lines(tmp_path / "mine" / "a.jsonl", FORMS["prompt, completion"][:2])
    write_lines(tmp_path / "mine" / "b.jsonl", FORMS["prompt, completion"][2:])
    asked = write_lines(tmp_path / "mine" / "asked.jsonl", FORMS["prompt, response"])
    whole = Loading(recipe(), ["south"], own=OwnData(tmp_path / "mine", asked)).data
    assert len(whole.clients[0].examples) == 4 and len(whole.evaluation[""]) == 4
    (tmp_path / "mine.csv").write_text("prompt,response\nx, 1\ny, 2\n")
    assert len(Loading(recipe(), ["south"], own=OwnData(tmp_path / "mine.csv")).data.clients[0].examples) == 1
    more = OwnData(tmp_path / "mine" / "a.jsonl", evaluation=0.0)
    assert Loading(recipe(), ["south"], own=more).data.evaluation == {"": []}
    # of several clients in a process each has its file
    write_lines(tmp_path / "both" / "north.jsonl", FORMS["prompt, completion"])
    write_lines(tmp_path / "both" / "south.jsonl", FORMS["instruction"][:2])
    both = Loading(recipe(), ["*"], own=OwnData(tmp_path / "both")).data
    assert [(client.name, len(client.examples)) for client in both.clients] == [("north", 3), ("south", 1)]


@pytest.mark.parametrize(
    ("clients", "own", "text"),
    [
        (["north"], None, "north: where is its data"),
        (["north"], OwnData(Path("no.jsonl")), '"no.jsonl"'),
        (["west"], OwnData(Path("x.jsonl")), "--client west: the recipe's clients are north, south"),
        (["north", "south"], OwnData(Path("x.jsonl")), "a folder with a file for each client"),
        (["north", "south"], OwnData(Path(), Path("x.jsonl")), "--evaluation-file: for one --client"),
    ],
)
def test_data_that_is_not_there_is_said(clients, own, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "x.jsonl", FORMS["prompt, completion"])
    with pytest.raises(RecipeError, match=re.escape(text)):
        Loading(recipe(), clients, own=own)


def test_a_local_file_stands_for_options(tmp_path, monkeypatch):
    file = tmp_path / "north" / "site.toml"
    file.parent.mkdir()
    (file.parent / "north.jsonl").touch()
    file.write_text(
        'client = "north"\nout = "model"\ndevice = "cpu"\ndata = "north.jsonl"\nevaluation = 0.5\n'
        'nats = "tls://host:1"\nrun = "ours"\nkey = "/keys/north.nk"\nca = "ca.pem"\n'
    )
    given = {}

    def loading(recipe, clients, progress, own, identity):
        given.update(device=recipe.model.device, clients=clients, own=own)
        raise RecipeError("as far as this goes")

    def transport(access, run):
        given.update(access=access, run=run)

    monkeypatch.setattr(network, "transport", transport)
    monkeypatch.setattr(joining, "Loading", loading)
    (tmp_path / "r.toml").write_text('rounds = 1\n[task]\nname = "files"\n[method]\nname = "feedsign"\n')
    done = fedseed("join", tmp_path / "r.toml", "--local", file, "--run", "mine")
    assert (done.returncode, done.stderr) == (2, "fedseed: as far as this goes\n")
    assert given == {
        "device": "cpu", "clients": ["north"], "own": OwnData(file.parent / "north.jsonl", None, 0.5), "run": "mine",
        "access": Access("tls://host:1", Path("/keys/north.nk"), file.parent / "ca.pem"),
    }  # fmt: skip
    assert (file.parent / "model").is_dir()
    for text, found in (("rounds = 3", "rounds = 3: unknown key"), ("a", "not valid TOML"),
                        ("evaluation = 2.0", "--evaluation"), ("[data]\npath = 'x'", "a path")):  # fmt: skip
        file.write_text(text)
        done = fedseed("join", tmp_path / "r.toml", "--local", file)
        assert done.returncode == 2 and found in done.stderr, done.stderr
    done = fedseed("join", tmp_path / "r.toml", "--local", tmp_path / "none.toml")
    assert done.returncode == 2 and "--local" in done.stderr and "can't be read" in done.stderr
