"""Data and tokens that change while a run goes on: named and refused, in a folder and at a site."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from fedseed import Federation, ZOFedSGD
from fedseed.errors import FedseedError, RecipeError
from fedseed.models.loading import load_model, locate
from fedseed.recipe.settings import Recipe
from fedseed.runs.assembly import build
from fedseed.runs.joining import Loading, make_client
from fedseed.tasks.data import OwnData
from fedseed.tasks.record import DataPart, describe_changes, digest_of
from fedseed.transport.memory import Hub
from fedseed.weights.devices import limited
from support.heard import Heard
from support.instruction_files import rows, write_clients, write_lines
from support.left import StoppedError
from support.network import until
from support.together import LOADING, Together

pytestmark = pytest.mark.usefixtures("without_pictures")


@pytest.fixture
def folder(tmp_path):
    return write_clients(tmp_path / "data", north=rows("north", 6), south=rows("south", 6))


def recipe(folder, rounds=1, base="small", **task):
    return Recipe.model_validate(
        {
            "rounds": rounds,
            "model": {"base": str(base)},
            "task": {"name": "files", "path": str(folder), "evaluation": 0.2, **task},
            "method": {"name": "zo-fedsgd", "batch": 2},
            "evaluation": {"every": 1, "rouge": False},
        }
    )


def run(settings, out, **how):
    with limited(1):
        return build(settings, folder=out, resume=how.get("resume", False)).run(**how)


CHANGES = {
    "client north (the same number of examples": lambda lines: [
        {**lines[0], "completion": " 9"},
        *lines[1:],
    ],
    "client north (4 examples then": lambda lines: lines[:-1],
    "client north (the same number": lambda lines: lines[::-1],
}


@pytest.mark.parametrize("said", CHANGES)
def test_a_run_goes_on_with_the_data_that_it_began_with(said, folder, tmp_path):
    out = tmp_path / "run"
    first = run(recipe(folder), out)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    lines = rows("north", 6)
    # all of north's lines change in turn, so that it is not only what is held out
    changed = [{**line, "completion": line["completion"] + "x"} for line in lines]
    write_lines(
        folder / "north.jsonl", CHANGES[said](changed if "many examples" in said else lines)
    )
    for extend in (False, True):
        with pytest.raises(RecipeError) as error:
            run(recipe(folder, rounds=1 + extend), out, resume=True, extend=extend)
        assert said.partition(" (")[0] in str(error.value)
        assert "was started with other data" in str(error.value)
        assert "begin another run with --out" in str(error.value)
    assert "client south" not in str(error.value)
    assert before == {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    write_lines(folder / "north.jsonl", lines)
    again = run(recipe(folder, rounds=2), out, resume=True, extend=True)
    whole = run(recipe(folder, rounds=2), tmp_path / "whole")
    assert again.summary["weights_digest"] == whole.summary["weights_digest"]
    assert again.metrics[0]["loss"] == first.metrics[0]["loss"]


def test_a_client_more_or_less_and_held_out_examples_are_named(folder, tmp_path):
    asked = write_lines(tmp_path / "asked.jsonl", rows("asked", 3))
    settings = recipe(folder, evaluation_file=str(asked))
    run(settings, tmp_path / "run")
    write_lines(asked, rows("other", 3))
    with pytest.raises(
        RecipeError, match=r"other data: the held-out examples \(the same number"
    ) as error:
        run(settings, tmp_path / "run", resume=True)
    assert "client" not in str(error.value).partition("data: ")[2].partition("): ")[0]
    write_lines(asked, rows("asked", 3))
    write_lines(folder / "west.jsonl", rows("west", 4))
    with pytest.raises(RecipeError, match=r"client west \(new\)"):
        run(settings, tmp_path / "run", resume=True)
    (folder / "west.jsonl").unlink()
    (folder / "south.jsonl").unlink()
    with pytest.raises(RecipeError, match=r"client south \(no longer there\)"):
        run(settings, tmp_path / "run", resume=True)
    (tmp_path / "run" / "data.json").write_text("{")
    with pytest.raises(FedseedError, match=r"data\.json: can't be read .*delete it"):
        run(settings, tmp_path / "run", resume=True)
    # as of an earlier fedseed: nobody knows, and nothing is in the way
    (tmp_path / "run" / "data.json").unlink()
    run(settings, tmp_path / "run", resume=True)


def test_other_tokens_of_the_same_weights_are_refused(folder, tmp_path):
    base = shutil.copytree(locate("small"), tmp_path / "base")
    run(recipe(folder, base=base), tmp_path / "run")
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None  # as another version reads the same class
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(
        RecipeError, match=(r"the same texts have different tokens: .*transformers \d")
    ):
        run(recipe(folder, rounds=2, base=base), tmp_path / "run", resume=True, extend=True)


def test_what_can_be_hashed():
    pairs = [(torch.ones(2), torch.zeros(1)), (torch.zeros(2), torch.zeros(1))]
    assert digest_of(pairs) == digest_of([(a.clone(), b.clone()) for a, b in pairs]) != ""
    assert digest_of(pairs) != digest_of([(a + 1, b) for a, b in pairs])
    assert digest_of([object()]) == ""
    before, now = {"client a": DataPart(1, "")}, {"client a": DataPart(1, "ab")}
    assert describe_changes(before, now) == []  # of what can't be hashed the number counts
    assert describe_changes(before, {"client a": DataPart(2, "")}) == [
        "client a (1 examples then, 2 now)"
    ]


def test_rows_in_memory_are_known_too(tmp_path):
    def federation(text, held="held"):
        model, tokenizer = load_model("small")
        return Federation(
            model,
            datasets=[rows(text, 3)],
            method=ZOFedSGD(batch=1),
            tokenizer=tokenizer,
            evaluation=rows(held, 2),
            out=tmp_path / "run",
        )

    federation("mine").run()
    federation("mine").run(resume=True)
    with pytest.raises(RecipeError, match=r"other data: client client-0 \(the same number"):
        federation("other").run(resume=True)
    with pytest.raises(RecipeError, match=r"other data: the held-out examples \(the same number"):
        federation("mine", "other").run(resume=True)


class Stopping(Heard):
    """Ends its process when a round is over."""

    def advance(self, number):
        if number >= 1:
            raise StoppedError


class Sites(Together):
    """Processes of both clients, in threads of this one, one after the other."""

    def site(self, name, folder, progress):
        def live():
            with LOADING:
                load = Loading(self.checked, ["*"], progress=progress, own_data=OwnData(folder))
                self.clients[name] = make_client(load, self.run, self.way())
            return self.clients[name].run()

        self.begin(name, live)


@pytest.mark.long
def test_a_site_that_comes_back_with_other_data_says_so(folder, tmp_path):
    settings = recipe("", rounds=3)
    federation = settings.federation.model_copy(update={"clients": ["north", "south"]})
    hub = Hub()
    sites = Sites(
        settings.model_copy(update={"federation": federation}),
        lambda: hub.transport("kept"),
        "kept",
    )
    with limited(1):
        sites.coordinator(tmp_path / "run")
        sites.site("first", folder, Stopping())
        until(lambda: "first" in sites.failures, 300.0, "the first process goes on")
        assert isinstance(sites.failures["first"], StoppedError)
        write_lines(folder / "north.jsonl", rows("other", 6))
        sites.site("changed", folder, Heard())
        until(lambda: "changed" in sites.failures, 300.0, "the changed process goes on")
        said = str(sites.failures["changed"])
        assert "the data changed during run kept: client north (the same number of examples" in said
        assert "client south" not in said
        note = said.partition("delete ")[2].partition(" to continue")[0]
        assert Path(note).is_file() and not (tmp_path / "run" / "data.json").exists()
        write_lines(folder / "north.jsonl", rows("north", 6))
        sites.site("again", folder, Heard())
        assert len(sites.wait(["first", "changed"])) == 1


@pytest.mark.long
def test_a_new_run_of_the_same_name_may_have_other_data(folder, tmp_path):
    settings = recipe("")
    federation = settings.federation.model_copy(update={"clients": ["north", "south"]})
    checked = settings.model_copy(update={"federation": federation})
    with limited(1):
        for number, text in enumerate(("one", "two")):
            write_lines(folder / "north.jsonl", rows(text, 6))
            hub = Hub()
            sites = Sites(checked, lambda hub=hub: hub.transport("anew"), "anew")
            sites.coordinator(tmp_path / f"run-{number}")
            sites.site("site", folder, Heard())
            assert len(sites.wait()) == 1
