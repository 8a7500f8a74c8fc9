"""Pages about runs, read as a browser reads them."""

import json

import pytest

from fedseed.errors import FedseedError
from fedseed.reports.pages import comparison_page, run_page
from fedseed.reports.results import RoundLine
from fedseed.reports.tables import Sheet
from fedseed.reports.view import RunView, view_folder
from support.command import refused, well
from support.page import Page
from support.problem import Problem


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two real runs' folders."""
    folder, problem = tmp_path_factory.mktemp("runs"), Problem()
    for name, seed in (("one", 1), ("two", 2)):
        recipe = (
            f'title = "Run {name} <of two>"\nrounds = 6\nseed = {seed}\n[method]\nname = "ferret"\n'
        )
        problem.federation(problem.ferret(), seed=seed, out=folder / name, recipe_text=recipe).run()
    return folder


@pytest.mark.long
def test_a_run_leaves_a_page_that_holds_together_and_asks_for_nothing(runs):
    page = Page((runs / "one" / "report.html").read_text())
    summary = json.loads((runs / "one" / "summary.json").read_text())
    assert page.asks_for() == [] and "<script" not in page.source
    assert page.count("meta", name="viewport") == 1
    for text in (
        "Run one <of two>",
        "finished",
        summary["weights_digest"],
        summary["base_digest"],
        'name = "ferret"',
        f"{summary['final']['loss']:.3f}",
        f"{summary['baseline']['loss']:.3f} before tuning",
        "local training",
        "whole weights would take",
    ):
        assert text in page.text, text
    assert page.count("figure") == 3  # loss, bytes, seconds
    assert len(page.source) < 60_000


def test_what_others_wrote_is_text():
    bad = "</pre><script>alert(1)</script>"
    line = RoundLine(
        1, clients=[bad], skipped=[{"client": bad, "reason": bad}], bytes_up=1.0, bytes_down=1.0
    )
    view = RunView(
        bad, [RoundLine(0, metrics={"loss": 2.0}), line], None, f"title = '{bad}'\n", 1, 2
    )
    page = Page(run_page(view))
    assert page.count("script") == 0 and bad in page.text
    assert (
        Page(comparison_page(bad, {bad: {bad: [view]}}, [Sheet(bad, [bad], [[bad]])])).count(
            "script"
        )
        == 0
    )


def test_each_client_has_its_own_figures_and_one_that_was_away_says_of_when_they_are():
    lines = [
        RoundLine(
            number,
            clients=["a", "b"],
            by_client={name: {"loss": 4.0 / (number + 1)} for name in there},
        )
        for number, there in ((0, "ab"), (1, "ab"), (3, "a"))
    ]
    text = " ".join(Page(run_page(RunView("", lines, None, "", 3, 3))).text.split())
    assert "a 3 1.000" in text and "b (away later: figures after round 1) 3 2.000" in text


def test_a_damaged_or_growing_folder_is_shown_as_far_as_it_goes(runs, tmp_path):
    recipe, text = (
        (runs / "one" / "recipe.toml").read_text(),
        (runs / "one" / "metrics.jsonl").read_text(),
    )
    lines = text.splitlines(keepends=True)
    (tmp_path / "recipe.toml").write_text(recipe)
    assert view_folder(tmp_path).lines == [] and "Nothing has been measured yet" in run_page(
        view_folder(tmp_path)
    )
    # a line is being written
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:3]) + lines[3][:20])
    (tmp_path / "progress.jsonl").write_text('{"round": 3}\n{"round": 4}\n{"rou')
    view = view_folder(tmp_path)
    assert [line.round for line in view.lines] == [0, 1, 2] and (view.round, view.rounds) == (4, 6)
    assert view.before_and_after("loss") == (
        json.loads(lines[0])["loss"],
        json.loads(lines[2])["loss"],
    )
    Page(run_page(view))
    with pytest.raises(FedseedError, match="there is no run in it"):
        view_folder(tmp_path / "nowhere")


def test_the_bases_evaluation_is_no_round(runs, tmp_path):
    lines = (runs / "one" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "recipe.toml").write_text((runs / "one" / "recipe.toml").read_text())
    (tmp_path / "metrics.jsonl").write_text(lines[0])
    assert "so far" in run_page(view_folder(tmp_path))
    assert " a round</" not in run_page(view_folder(tmp_path))
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:2]))
    assert "so far" not in run_page(view_folder(tmp_path))


def test_a_page_that_fails_does_not_cost_the_run(monkeypatch, tmp_path):
    def fail(self, folder, summary):
        raise ValueError("no page\ntoday")

    said, problem = [], Problem()
    monkeypatch.setattr("fedseed.runs.loop.Run.draw", fail)
    federation = problem.federation(problem.ferret(), rounds=1, out=tmp_path / "run")
    monkeypatch.setattr(federation.progress, "warn", said.append)
    federation.run()
    assert (tmp_path / "run" / "summary.json").exists() and not (
        tmp_path / "run" / "report.html"
    ).exists()
    (about,) = [text for text in said if "report.html" in text]
    assert about.endswith("report.html: can't be made: ValueError: no page today")


# -- `fedseed report`
# ------------------------------------------------------------------------------------------------


def digest(run):
    return json.loads((run / "summary.json").read_text())["weights_digest"]


def test_a_page_of_one_run(runs, tmp_path):
    assert "report.html" in well("report", runs / "one").stdout
    assert digest(runs / "one") in Page((runs / "one" / "report.html").read_text()).text
    well("report", runs / "one", "--out", tmp_path / "new" / "mine.html")
    assert Page((tmp_path / "new" / "mine.html").read_text()).asks_for() == []


@pytest.mark.parametrize("given", [["."], ["one", "two"]])
def test_a_page_of_several(runs, given):
    (runs / "report.html").unlink(missing_ok=True)
    well("report", *given, cwd=runs)
    page = Page((runs / "report.html").read_text())
    assert (
        digest(runs / "one") in page.text
        and digest(runs / "two") in page.text
        and "seed 1 2" in page.text
    )


def test_what_can_not_be_reported_is_said(runs):
    refused(
        1,
        "nowhere: there is no run in this folder or those below it",
        "report",
        "nowhere",
        cwd=runs,
    )
    refused(
        2,
        "--out page.pdf: give an .html file",
        "report",
        "one",
        "--out",
        "page.pdf",
        cwd=runs,
    )
