"""A finished run that goes on for more rounds ends as one that had them from the start: the same bits."""

import json
import shutil

import pytest

from fedseed import FedKSeed
from fedseed.errors import OrbitError, RecipeError
from fedseed.orbit import edit
from fedseed.reports.results import read_summary
from support.left import left_by, without_seconds
from support.worker_runs import federation

pytestmark = pytest.mark.usefixtures("quickly")
SETTINGS = {"ferret": {"digest_every": 4}, "feedsign": {}, "fedavg-adam": {}}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_bits_as_with_all_rounds_from_the_start(tmp_path, name, first=3):
    """The shorter run's last round is one of no evaluation."""
    settings = SETTINGS[name]
    whole = federation(name, out=tmp_path / "whole", **settings, rounds=7).run()
    shorter = federation(name, out=tmp_path / "run", **settings, rounds=first).run()
    assert shorter.summary["rounds"] == first
    result = federation(name, out=tmp_path / "run", **settings, rounds=7).run(resume=True, extend=True)
    steps = name == "feedsign"  # whose lines stand for several rounds: one for the shorter run's last ones stays
    lines = without_seconds(result.metrics)
    if steps:
        extra = next(line for line in lines if line["round"] == 3)
        assert "loss" not in extra and extra["rounds"] == 3
        assert lines[0] == without_seconds(whole.metrics)[0]
        assert lines[-1]["loss"] == whole.metrics[-1]["loss"]
    else:
        assert lines == without_seconds(whole.metrics)
    ours, theirs = left_by(result.folder), left_by(whole.folder)
    for name in ("model", "files") if steps else theirs:
        assert ours[name] == theirs[name]


def test_what_can_not_go_on_says_so_and_is_left_alone(problem, tmp_path):
    recipe = 'rounds = 3\nseed = 3\n[method]\nname = "ferret"\n'
    out = tmp_path / "run"
    problem.federation(problem.ferret(), out=out, rounds=3, recipe_text=recipe).run()

    def files(folder):
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def attempt(match, error=RecipeError, method=None, out=out, **settings):
        before, federation = files(out), problem.federation(method or problem.ferret(), out=out, **settings)
        with pytest.raises(error, match=match):
            federation.run(resume=True, extend=True)
        assert files(out) == before

    attempt("--rounds 2: the run in .* has had 3", rounds=2)
    other = recipe.replace("seed = 3", "seed = 4").replace("rounds = 3", "rounds = 5")
    attempt("another recipe: seed is 3 there, 4 here", rounds=5, recipe_text=other)
    with pytest.raises(RecipeError, match="extend goes with resume"):
        problem.federation(problem.ferret(), out=out, rounds=5).run(extend=True)
    before = files(out)
    again = problem.federation(problem.ferret(), out=out, rounds=3).run(resume=True, extend=True)
    assert again.summary == read_summary(out) and files(out) == before

    fast = FedKSeed(basis="rademacher", batch=8, candidates=64, steps=2, learning_rate=1e-2)
    problem.federation(fast, out=tmp_path / "pro", rounds=2).run()
    edit.compact(tmp_path / "pro" / "model.orbit", tmp_path / "compact.orbit")
    shutil.move(tmp_path / "compact.orbit", tmp_path / "pro" / "model.orbit")
    attempt("is compacted: a run can't go on from it", OrbitError, fast, out=tmp_path / "pro", rounds=4)


def test_a_run_that_was_interrupted_and_one_that_is_not_there_get_their_rounds(problem, tmp_path):
    recipe = 'rounds = 3\n[method]\nname = "ferret"\n'
    out = tmp_path / "run"
    problem.federation(problem.ferret(), out=out, rounds=3, recipe_text=recipe).run()
    (out / "summary.json").unlink()  # stopped before its very end
    longer = problem.federation(problem.ferret(), out=out, rounds=4, recipe_text=recipe.replace("3", "4"))
    assert longer.run(resume=True, extend=True).summary["rounds"] == 4
    assert "rounds = 4" in (out / "recipe.toml").read_text()
    new = problem.federation(problem.ferret(), out=tmp_path / "new", rounds=2).run(resume=True, extend=True)
    assert new.summary["rounds"] == 2 and json.loads((tmp_path / "new" / "summary.json").read_text())["rounds"] == 2
