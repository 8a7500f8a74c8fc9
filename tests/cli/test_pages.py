"""`fedseed report`, as a person types it."""

import json

import pytest

from support.command import fedseed
from support.page import Page
from support.problem import Problem


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, problem = tmp_path_factory.mktemp("pages"), Problem()
    for name, directions in (("first", 100), ("second", 300)):
        method = problem.ferret(directions=directions)
        recipe = f'rounds = 2\nseed = 3\n[method]\nname = "ferret"\ndirections = {directions}\n'
        federation = problem.federation(method, rounds=2, out=folder / "both" / name, recipe_text=recipe)
        federation.draw = lambda folder, metrics: None
        federation.run()
    return folder / "both"


def digest(run):
    return json.loads((run / "summary.json").read_text())["weights_digest"]


def test_a_page_of_one_run(runs, tmp_path):
    done = fedseed("report", runs / "first")
    assert done.returncode == 0 and "report.html" in done.stdout
    assert digest(runs / "first") in Page((runs / "first" / "report.html").read_text()).text
    done = fedseed("report", runs / "first", "--out", tmp_path / "new" / "mine.html")
    assert done.returncode == 0 and Page((tmp_path / "new" / "mine.html").read_text()).asks_for() == []


@pytest.mark.parametrize("given", [["."], ["first", "second"]])
def test_a_page_of_several(runs, given):
    (runs / "report.html").unlink(missing_ok=True)
    done = fedseed("report", *given, cwd=runs)
    assert done.returncode == 0, done.stderr
    page = Page((runs / "report.html").read_text())
    assert digest(runs / "first") in page.text and digest(runs / "second") in page.text
    assert "method.directions 100 300" in page.text


def test_what_is_wrong_is_said(runs, tmp_path):
    for words, code, text in (
        (["nowhere"], 1, "nowhere: no run is here, nor in the folders below"),
        ([runs / "first", "--out", "page.pdf"], 2, "--out page.pdf: the page is an .html file"),
    ):
        done = fedseed("report", *words, cwd=tmp_path)
        assert done.returncode == code and text in done.stderr and done.stderr.count("\n") == 1
