"""What a site has of its own: a local file, its data in each form, what it holds out."""

import re
from pathlib import Path
from unicodedata import normalize

import pytest

from fedseed.cli import network
from fedseed.errors import RecipeError
from fedseed.recipe.settings import Recipe
from fedseed.runs import joining
from fedseed.runs.joining import Loading
from fedseed.runs.network import coordinate
from fedseed.runs.parties import load_data, load_present, names_beforehand
from fedseed.tasks.data import Chat, Choice, ClientData, Example, OwnData
from fedseed.transport.base import Access
from support.command import fedseed
from support.instruction_files import rows, write_clients, write_lines

FORMS = {
    "prompt, completion": [{"prompt": f"{i} is", "completion": f" {i}"} for i in range(4)],
    "prompt, response": [{"prompt": f"{i} is", "response": f" {i}"} for i in range(4)],
    "instruction": [{"instruction": f"Say {i}.", "output": f"{i}"} for i in range(4)],
    "messages": [
        {
            "messages": [
                {"role": "user", "content": f"{i}"},
                {"role": "assistant", "content": f"{i}"},
            ]
        }
        for i in range(4)
    ],
    "text, label": [{"text": f"{i}", "label": "yes" if i % 2 else "no"} for i in range(4)],
    "options": [{"prompt": f"{i}:", "options": [" a", " b"], "gold": i % 2} for i in range(4)],
}


def recipe(**task):
    return Recipe.model_validate(
        {
            "rounds": 1,
            "task": {"name": "files", "evaluation": 0.25, **task},
            "method": {"name": "feedsign"},
            "federation": {"clients": ["north", "south"]},
        }
    )


@pytest.mark.parametrize("form", FORMS)
def test_own_data_has_every_form_that_files_have(form, tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", FORMS[form])
    checked = recipe(labels=["no", "yes"])
    load = Loading(checked, ["north"], own_data=OwnData(path))
    part = load.data
    kind = {"text, label": Choice, "options": Choice, "messages": Chat}.get(form, Example)
    assert (
        [client.name for client in part.clients] == ["north"]
        and load.party
        and load.names == ["north", "south"]
    )
    assert len(part.clients[0].examples) == 3 and len(part.evaluation[""]) == 1
    assert {type(example) for example in (*part.clients[0].examples, *part.evaluation[""])} == {
        kind
    }
    # the same file in a folder that one process has is the same client
    write_lines(tmp_path / "all" / "north.jsonl", FORMS[form])
    assert (
        checked.task.load_own("north", OwnData(tmp_path / "all"), alone=False).clients
        == part.clients
    )


def test_a_folder_a_table_and_a_file_to_evaluate_on(tmp_path):
    write_lines(tmp_path / "south" / "a.jsonl", FORMS["prompt, completion"][:2])
    write_lines(tmp_path / "south" / "b.jsonl", FORMS["prompt, completion"][2:])
    asked = write_lines(tmp_path / "south" / "asked.jsonl", FORMS["prompt, response"])
    whole = Loading(recipe(), ["south"], own_data=OwnData(tmp_path / "south", asked)).data
    assert len(whole.clients[0].examples) == 4 and len(whole.evaluation[""]) == 4
    (tmp_path / "mine.csv").write_text("prompt,response\nx, 1\ny, 2\n")
    assert (
        len(
            Loading(recipe(), ["south"], own_data=OwnData(tmp_path / "mine.csv"))
            .data.clients[0]
            .examples
        )
        == 1
    )
    more = OwnData(tmp_path / "south" / "a.jsonl", evaluation=0.0)
    assert Loading(recipe(), ["south"], own_data=more).data.evaluation == {"": []}
    # of several clients in a process each has its file
    folder = write_clients(
        tmp_path / "both", north=FORMS["prompt, completion"], south=FORMS["instruction"][:2]
    )
    both = Loading(recipe(), ["*"], own_data=OwnData(folder)).data
    assert [(client.name, len(client.examples)) for client in both.clients] == [
        ("north", 3),
        ("south", 1),
    ]


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        (
            "north",
            ["nroth", "south"],
            "but it has nroth: is this the right one? The folder has nroth, south",
        ),
        ("north", ["North", "south"], "but it has North: is this the right one?"),
        ("north", ["south"], "it has south"),  # the only file is somebody else's, too
        ("Zürich", [normalize("NFD", "Zürich"), "Bern"], r"(NFD there, NFC here): rename it"),
        (normalize("NFD", "Zürich"), ["Zürich"], r"(NFC there, NFD here): rename it"),
        ("north", ["south/a", "east/a"], "it has east, south"),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_a_folder_without_a_file_of_the_clients_name_is_refused(name, files, said, alone, tmp_path):
    for file in files:
        write_lines(tmp_path / "sites" / f"{file}.jsonl", FORMS["prompt, completion"])
    settings = Recipe.model_validate(
        {
            "rounds": 1,
            "task": {"name": "files"},
            "method": {"name": "feedsign"},
            "federation": {"clients": [name, "other"]},
        }
    )
    with pytest.raises(RecipeError) as error:
        if alone:
            Loading(settings, [name], own_data=OwnData(tmp_path / "sites"))
        else:
            settings.task.load_own(name, OwnData(tmp_path / "sites"), alone=False)
    assert said in str(error.value) and "fedseed does not use another client's file" in str(
        error.value
    )
    write_lines(tmp_path / "sites" / f"{name}.jsonl", FORMS["instruction"])
    if "/" not in files[0]:
        mine = Loading(settings, [name], own_data=OwnData(tmp_path / "sites")).data
        assert {example.response for example in mine.clients[0].examples} < set("0123")


@pytest.mark.parametrize(
    ("clients", "own", "text"),
    [
        (["north"], None, "north: the path of its data is missing"),
        (["north"], OwnData(Path("no.jsonl")), '"no.jsonl"'),
        (
            ["west"],
            OwnData(Path("x.jsonl")),
            "--client west: the recipe's clients are north, south",
        ),
        (["north", "south"], OwnData(Path("x.jsonl")), "a folder with a file for each client"),
        (
            ["north", "south"],
            OwnData(Path(), Path("x.jsonl")),
            "--evaluation-file: can only be used with one --client",
        ),
    ],
)
def test_data_that_is_not_there_is_said(clients, own, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "x.jsonl", FORMS["prompt, completion"])
    with pytest.raises(RecipeError, match=re.escape(text)):
        Loading(recipe(), clients, own_data=own)


def test_a_local_file_stands_for_options(tmp_path, monkeypatch):
    file = tmp_path / "north" / "site.toml"
    file.parent.mkdir()
    (file.parent / "north.jsonl").touch()
    file.write_text(
        'client = "north"\nout = "model"\ndevice = "cpu"\ndata = "north.jsonl"\nevaluation = 0.5\n'
        'nats = "tls://host:1"\nrun = "ours"\nkey = "/keys/north.nk"\nca = "ca.pem"\n'
    )
    given = {}

    def loading(recipe, clients, progress, own, identity, *more, **options):
        given.update(device=recipe.model.device, clients=clients, own=own)
        raise RecipeError("as far as this goes")

    def transport(access, run):
        given.update(access=access, run=run)

    monkeypatch.setattr(network, "transport", transport)
    monkeypatch.setattr(joining, "Loading", loading)
    (tmp_path / "r.toml").write_text(
        'rounds = 1\n[task]\nname = "files"\n[method]\nname = "feedsign"\n'
    )
    done = fedseed("join", tmp_path / "r.toml", "--local", file, "--run", "mine")
    assert (done.returncode, done.stderr) == (2, "fedseed: as far as this goes\n")
    assert given == {
        "device": "cpu",
        "clients": ["north"],
        "own": OwnData(file.parent / "north.jsonl", None, 0.5),
        "run": "mine",
        "access": Access("tls://host:1", Path("/keys/north.nk"), file.parent / "ca.pem"),
    }
    assert (file.parent / "model").is_dir()
    for text, found in (
        ("rounds = 3", "rounds = 3: unknown key"),
        ("a", "not valid TOML"),
        ("evaluation = 2.0", "--evaluation"),
        ("[data]\npath = 'x'", "a path"),
    ):
        file.write_text(text)
        done = fedseed("join", tmp_path / "r.toml", "--local", file)
        assert done.returncode == 2 and found in done.stderr, done.stderr
    done = fedseed("join", tmp_path / "r.toml", "--local", tmp_path / "none.toml")
    assert done.returncode == 2 and "--local" in done.stderr and "can't be read" in done.stderr


# -- who takes part
# ------------------------------------------------------------------------------------------------


def parties(task=(), **federation):
    found = {"rounds": 1, "task": {"name": "files", **dict(task)}, "method": {"name": "feedsign"}}
    return Recipe.model_validate({**found, "federation": federation})


@pytest.mark.parametrize("path", ["", "data", "here"])
def test_files_that_nobody_sees_all_of_need_a_list(path, tmp_path, monkeypatch):
    """The first client to come does not say who there is, nor does a folder with one file at the
    coordinator.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "north.jsonl").write_text("{}")
    checked = parties({"path": path}, start_with=3)
    with pytest.raises(RecipeError, match=r"does not say which clients take part"):
        names_beforehand(checked)
    # before anything is asked of a server
    with pytest.raises(RecipeError, match=r"does not say which clients take part"):
        coordinate(checked, "run", None, tmp_path / "run")


def test_where_the_list_comes_from(tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_text("{}")
    task = {"path": str(tmp_path)}
    assert names_beforehand(parties(task, clients=["b", "a", "c"])) == ["b", "a", "c"]
    assert names_beforehand(parties(task)) == ["a", "b"]  # as every site has this folder
    assert names_beforehand(parties(task, enrolment="open", start_with=2)) is None
    assert names_beforehand(parties({"path": str(tmp_path / "a.jsonl")})) is None
    assert names_beforehand(parties({"name": "digits"})) is None
    with pytest.raises(RecipeError, match=r"federation.start_with = 3: there are 2 clients"):
        names_beforehand(parties(task, start_with=3))


def test_what_is_measured_and_shown_is_what_each_party_holds_out_in_the_run(tmp_path):
    """`evaluate` and `preview` drew other examples, of which most were trained on in the run."""
    names = ["a", "b", "c"]
    write_clients(tmp_path / "all", **{name: rows(name, 20) for name in names})
    write_clients(tmp_path / "one", c=rows("c", 20))
    task = {"evaluation": 0.25}
    run = load_data(parties({**task, "path": str(tmp_path / "all")}, clients=names))
    held_out = run.evaluation[""]
    present = load_present(parties({**task, "path": str(tmp_path / "all")}, clients=names))
    assert present.clients == run.clients and present.evaluation == run.evaluation
    # at a site, by its folder or its file
    for place in ("one", "one/c.jsonl"):
        one = load_present(parties({**task, "path": str(tmp_path / place)}, clients=names))
        assert one.clients == run.clients[2:] and one.evaluation[""] == held_out[-5:]
        told = 'the data of a, b is not in "' in one.notes[-1] and one.notes[-1].endswith(
            "only c counts"
        )
        assert told == (place == "one")
    with pytest.raises(RecipeError, match=r"data of d: .*: the folder has no file or folder of"):
        load_present(parties({**task, "path": str(tmp_path / "one")}, clients=["d", "e"]))
    # another file is dealt, as in a recipe without parties
    write_clients(tmp_path, other=rows("other", 20))
    dealt = load_present(parties({**task, "path": str(tmp_path / "other.jsonl")}, clients=names))
    assert len(dealt.clients) == 5


def test_in_one_process_the_folder_has_all_parties(tmp_path):
    write_clients(tmp_path, **{name: rows(name, 4) for name in "bac"})
    task = {"path": str(tmp_path), "evaluation": 0.5}
    two, more = (load_data(parties(task, clients=names)) for names in (["c", "a"], ["a", "b", "c"]))
    assert [client.name for client in two.clients] == ["c", "a"]
    # what a party holds out does not depend on who else there is
    assert isinstance(two.clients[0], ClientData) and two.clients[0] == more.clients[2]
    assert len(two.evaluation[""]) == 4
    enrolled = load_data(parties(task, enrolment="open", start_with=2))
    assert [client.name for client in enrolled.clients] == ["a", "b", "c"]
    with pytest.raises(
        RecipeError, match=r"data of d: .*: the folder has no file or folder of this name"
    ):
        load_data(parties(task, clients=["a", "d"]))
    with pytest.raises(RecipeError, match=r"a: the path of its data is missing"):
        load_data(parties(clients=["a"]))
