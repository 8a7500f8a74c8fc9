"""What all commands can do: versions, JSON, silence, logs, beginning anew.

And what is suggested.
"""

import json

import pytest

from support.command import refused, well
from support.instruction_files import rows, write_clients

RECIPE = """
title = "tiny"
rounds = 1
task = {name = "files", path = "data"}
method = {name = "ferret", directions = 20, training.steps = 1}
evaluation = {rouge = false}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a recipe, its data and a finished run; what the run said."""
    folder = tmp_path_factory.mktemp("place")
    write_clients(folder / "data", anna=rows("say", 4), bert=rows("say", 4))
    (folder / "my.toml").write_text(RECIPE)
    return folder, well("run", "my.toml", "--json", cwd=folder)


@pytest.fixture
def run(place):
    """The finished run's folder."""
    return place[0] / "runs" / "my"


@pytest.mark.long
def test_json_is_all_there_is_on_standard_output(place, run):
    done = place[1]
    said = json.loads(done.stdout)
    assert said == {**json.loads((run / "summary.json").read_text()), "folder": "runs/my"}
    assert "round 1" in done.stderr and "zero-shot" in done.stderr  # what people read


def test_results_as_json(place, run):
    def said(*words):
        return json.loads(well(*words, "--json", cwd=place[0]).stdout)

    held = said("partition", "my.toml")
    assert (
        held["clients"] == {"anna": {"": 3}, "bert": {"": 3}}
        and "2 clients hold 3 examples" in held["notes"]
    )
    info = said("orbit", "info", run / "model.orbit")
    summary = json.loads((run / "summary.json").read_text())
    assert info["final_digest"] == summary["weights_digest"] and info["method"]["directions"] == 20
    assert info["bytes"] == (run / "model.orbit").stat().st_size and info["complete"] is True
    checked = said("orbit", "verify", run / "model.orbit", "--replay")
    assert checked == {
        "steps": 1,
        "last": 1,
        "complete": True,
        "digests_compared": 1,
        "digest": info["final_digest"],
    }
    assert said("orbit", "diff", run / "model.orbit", run / "model.orbit") == {
        "same": True,
        "differences": [],
    }
    assert {"name": "hadamard"}.items() <= said("list", "bases")[3].items()
    assert {row["name"]: row["where"] for row in said("list", "models")}.items() >= {
        ("small", "comes with fedseed"),
        ("digits", "comes with fedseed"),
    }
    assert {row["origin"] for row in said("list", "methods")} >= {"built in"}
    found = said("explain", "method.directions")
    assert [(one["key"], one["default"], one["of"]) for one in found] == [
        ("method.directions", "200", ["ferret"])
    ]


def test_what_is_misspelt_ends_with_2_and_a_suggestion(place):
    for words, text in (
        (["run", "quickstart-feret"], "did you mean quickstart-ferret?"),
        (
            ["run", "my.toml", "--set", "model.base=smal"],
            'model.base = "smal": did you mean small?',
        ),
        (["run", "comparison"], "fedseed compare comparison --out FOLDER"),
        (["explain", "dirctions"], "did you mean method.directions?"),
    ):
        refused(2, text, *words, cwd=place[0])
