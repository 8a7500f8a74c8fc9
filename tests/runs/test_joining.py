"""Over a network no client opens another's data, and only those that evaluate open evaluation
data.
"""

import sys
import threading
from functools import cache
from pathlib import Path

import pytest

from fedseed.federation.client.network import NetworkClient
from fedseed.privacy import mechanism_of
from fedseed.recipe.reading import read_recipe
from fedseed.recipe.settings import Recipe
from fedseed.runs.assembly import build
from fedseed.runs.joining import Loading, make_client
from fedseed.transport.memory import Hub
from support.instruction_files import rows, write_lines
from support.left import before
from support.together import Together

NAMES = ("east", "north", "south")
OPENED = []  # files that were opened while `WATCHING` is set
WATCHING = threading.Event()


def note(event, arguments):
    if event == "open" and WATCHING.is_set():
        OPENED.append(Path(str(arguments[0])).name)


@cache
def install():
    sys.addaudithook(note)  # for ever: there is no way to remove it


@pytest.fixture
def opened():
    """The names of the files that are opened during the test."""
    install()
    OPENED.clear()
    WATCHING.set()
    yield OPENED
    WATCHING.clear()


@pytest.fixture
def folders(tmp_path):
    """A folder as each client sees it, by its name ("all": everything): the others' files are
    garbage there.
    """
    found = {}
    for owner in (*NAMES, "all"):
        folder = found[owner] = tmp_path / owner
        for name in NAMES:
            write_lines(folder / f"{name}.jsonl", rows(name, 8))
            if owner not in (name, "all"):
                (folder / f"{name}.jsonl").write_bytes(b"\xff\xfe secret")
        write_lines(folder / "test" / "questions.jsonl", rows("test", 4))
    return found


def recipe(folder, shared=True, **more):
    task = {"name": "files", "path": str(folder), **more}
    if shared:
        task["evaluation_file"] = str(folder / "test" / "questions.jsonl")
    return Recipe.model_validate(
        {
            "rounds": 4,
            "task": task,
            "federation": {"joint": False},
            "evaluation": {"every": 2, "rouge": False},
            "method": {"name": "feedsign", "batch": 2},
        }
    )


@pytest.mark.long
def test_a_client_opens_its_own_file_only(folders, opened, tmp_path):
    expected = build(recipe(folders["all"])).run().summary
    opened.clear()
    loads = {name: Loading(recipe(folders[name]), [name]) for name in NAMES}
    assert {name for name in opened if name.endswith(".jsonl")} == {
        f"{name}.jsonl" for name in NAMES
    }
    assert all(
        load.names == list(NAMES) and [c.name for c in load.data.clients] == [n]
        for n, load in loads.items()
    )
    opened.clear()
    hub, said = Hub(), []
    checked = recipe(folders["all"])
    together = Together(checked, lambda: hub.transport("run"))
    for name, load in loads.items():
        client = NetworkClient(together.way(), "run", load, 4)
        before(client.hosted, "evaluate", lambda model, name=name: said.append(name))
        together.begin(name, client.run)
    result = together.coordinate(tmp_path / "run").summary
    assert together.wait() == {expected["weights_digest"]} == {result["weights_digest"]}
    assert result["final"] == expected["final"]
    # one of them was asked to evaluate, and opened the file for that, once; nothing else was opened
    # any more
    assert set(said) == {"east"}
    assert [
        name
        for name in opened
        if name.endswith(".jsonl") and name != "metrics.jsonl" and name != "progress.jsonl"
    ] == ["questions.jsonl"]


def test_a_client_shows_as_many_rounds_as_the_budget_allows():
    settings = [
        "rounds=300",
        "task.clients=3",
        "task.examples=24",
        "federation.per_round=2",
        "method.seeds=shared",
    ]
    private = [
        "privacy.level=client",
        "privacy.clip=1.0",
        "privacy.noise=20.0",
        "privacy.budget=2.0",
    ]
    found = [
        make_client(
            Loading(read_recipe("digits-zo-fedsgd", settings + more), ["*"]),
            "run",
            Hub().transport("run"),
        )
        for more in ([], private, [*private, "federation.per_round=3"])
    ]
    turns = mechanism_of(found[1].hosted.worker.method).affordable
    assert 10 < turns < 200
    assert found[0].rounds == 300  # no budget
    assert turns < found[1].rounds < 2 * turns  # two of three take part in each
    assert found[2].rounds == turns
