"""Who takes part: from the recipe, or by enrolment; and what can't be is said with its key."""

import pytest

from fedseed.errors import RecipeError
from fedseed.runs.network import coordinate
from fedseed.runs.parties import load_data, names_beforehand
from fedseed.runs.recipe import Recipe
from fedseed.tasks.data import ClientData
from support.instruction_files import write_lines


def recipe(task=(), **federation):
    found = {"rounds": 1, "task": {"name": "files", **dict(task)}, "method": {"name": "feedsign"}}
    return Recipe.model_validate({**found, "federation": federation})


@pytest.mark.parametrize("path", ["", "data", "here"])
def test_files_that_nobody_sees_all_of_need_a_list(path, tmp_path, monkeypatch):
    """The first client to come does not say who there is, nor does a folder with one file at the coordinator."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "north.jsonl").write_text("{}")
    checked = recipe({"path": path}, start_with=3)
    with pytest.raises(RecipeError, match=r"who takes part is not said"):
        names_beforehand(checked)
    with pytest.raises(RecipeError, match=r"who takes part is not said"):  # before anything is asked of a server
        coordinate(checked, "run", None, tmp_path / "run")


def test_where_the_list_comes_from(tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_text("{}")
    task = {"path": str(tmp_path)}
    assert names_beforehand(recipe(task, clients=["b", "a", "c"])) == ["b", "a", "c"]
    assert names_beforehand(recipe(task)) == ["a", "b"]  # as every site has this folder
    assert names_beforehand(recipe(task, enrolment="open", start_with=2)) is None
    assert names_beforehand(recipe({"path": str(tmp_path / "a.jsonl")})) is None
    assert names_beforehand(recipe({"name": "digits"})) is None
    with pytest.raises(RecipeError, match=r"federation.start_with = 3: there are 2 clients"):
        names_beforehand(recipe(task, start_with=3))


def test_in_one_process_the_folder_has_all_parties(tmp_path):
    for name in ("b", "a", "c"):
        rows = [{"prompt": f"{name}{i}", "completion": "1"} for i in range(4)]
        write_lines(tmp_path / f"{name}.jsonl", rows)
    task = {"path": str(tmp_path), "evaluation": 0.5}
    two, more = (load_data(recipe(task, clients=names)) for names in (["c", "a"], ["a", "b", "c"]))
    assert [client.name for client in two.clients] == ["c", "a"]
    # what a party holds out does not depend on who else there is
    assert isinstance(two.clients[0], ClientData) and two.clients[0] == more.clients[2]
    assert len(two.evaluation[""]) == 4
    enrolled = load_data(recipe(task, enrolment="open", start_with=2))
    assert [client.name for client in enrolled.clients] == ["a", "b", "c"]
    with pytest.raises(RecipeError, match=r"data of d: .*: the folder has no file or folder of this name"):
        load_data(recipe(task, clients=["a", "d"]))
    with pytest.raises(RecipeError, match=r"a: where is its data"):
        load_data(recipe(clients=["a"]))
