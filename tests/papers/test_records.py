"""What came of the papers' items: kept as lines of JSON, made into pages by a command."""

import csv
import json
import runpy
import sys
from pathlib import Path

import pytest

from fedseed.reports.charts import Axis, Panel, Series
from fedseed.reports.tables import Sheet
from fedseed_papers.catalogue import catalogue
from fedseed_papers.findings import (
    Claim,
    Finding,
    Subject,
    finding_json,
    finding_page,
    read_finding,
)
from fedseed_papers.records import (
    SEEDS,
    SUMMARY,
    collect,
    page_path,
    read_results,
    seeds_csv,
    summary,
    write_files,
    write_results,
)

REPRODUCED = Path(__file__).parents[2] / "docs" / "reproduced"
SCRIPT = Path(__file__).parents[2] / "scripts" / "reproduced.py"
RESULTS = read_results(REPRODUCED)
FINDING = Finding(
    [
        Claim("It falls.", "From 2 to 1.", "holds in kind", 5, (0.5, "inf"), 0.01),
        Claim("By half.", "By half.", "does not hold here"),
    ],
    "Five runs.",
    [
        Panel(
            "Loss",
            [Series("a", [(0.0, 2.0), (1.0, float("nan"))], [(0.0, 1.0, 3.0)], 2)],
            Axis("round", whole=True),
            Axis("seconds", log=True, unit="s"),
            start=2.0,
        )
    ],
    [
        Sheet(
            "Each seed",
            ("line", "seed", "loss"),
            [("a", "1", "0.5"), ("a", "2", "0.25")],
            "A note.",
        )
    ],
    (1, 2),
    ["Smaller."],
)
SUBJECT = Subject("ferret/figure-1", "Ferret, Figure 1", "Costs | rounds.", "small", {"load": "1"})


def result_of(finding=FINDING, subject=SUBJECT):
    return json.loads(json.dumps(finding_json(subject, finding, 1.5, "now"), allow_nan=False))


def test_a_result_has_all_that_its_page_shows():
    subject, finding, seconds = read_finding(result_of())
    assert (subject, seconds) == (SUBJECT, 1.5)
    [panel], [given] = finding.panels, FINDING.panels
    assert (panel.title, panel.x, panel.y, panel.start) == ("Loss", given.x, given.y, 2.0)
    assert repr(panel.series) == repr(list(given.series))  # nan is not equal to itself
    pages = [
        finding_page(SUBJECT, FINDING, 1.5).partition("<footer>")[0],
        finding_page(subject, finding, seconds).partition("<footer>")[0],
    ]
    assert pages[0] == pages[1] and "A note." in pages[0]


def test_the_repository_has_the_items_of_the_catalogue_and_what_is_made_of_them():
    scales = {(item.name, scale) for item in catalogue() for scale in item.scales}
    assert {(result["name"], result["scale"]) for result in RESULTS} <= scales
    assert (REPRODUCED / SUMMARY).read_text(encoding="utf-8") == summary(RESULTS)
    assert (REPRODUCED / SEEDS).read_text(encoding="utf-8") == seeds_csv(RESULTS)
    files = {
        "index.md",
        "seeds.csv",
        "ferret.jsonl",
        "fedkseed.jsonl",
        "feedsign.jsonl",
        "fedmezo.jsonl",
    }
    assert {path.name for path in REPRODUCED.iterdir()} == files


@pytest.mark.parametrize("name", ["ferret/figure-6", "fedmezo/lemma-2.2"])
def test_files_are_made_again_of_a_line(name, tmp_path):
    [result] = [result for result in RESULTS if result["name"] == name]
    write_files(tmp_path, *read_finding(result))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert result["title"] in page and all(sheet["title"] in page for sheet in result["sheets"])
    assert page.count('role="img"') == len(result["panels"])
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"
    with open(tmp_path / "data.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    points = []
    for panel in result["panels"]:
        for line in panel["series"]:
            points += line["points"]
    assert [[float(row["x"]), float(row["y"])] for row in rows] == points


def test_new_results_take_the_place_of_older_ones(tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    other = Subject("ferret/figure-2", "Ferret, Figure 2", "Rounds.", "small")
    write_results(kept, [result_of(), result_of(subject=other)])
    run = tmp_path / "runs" / "ferret" / "figure-1" / "small"
    run.mkdir(parents=True)
    newer = result_of(Finding(FINDING.claims[:1], "", sheets=FINDING.sheets, seeds=(1,)))
    newer["lines"] = {"a": {"chosen": [], "folders": ["runs/a"], "failed": {}}}
    (run / "result.json").write_text(json.dumps(newer))
    [taken] = collect(tmp_path / "runs")
    assert taken["lines"] == {"a": {"chosen": [], "failed": {}}}  # folders are of one machine
    main = runpy.run_path(str(SCRIPT))["main"]
    monkeypatch.setitem(main.__globals__, "REPRODUCED", kept)
    monkeypatch.setattr(sys, "argv", ["reproduced.py", "--add", str(tmp_path / "runs")])
    main()
    assert [result["verdict"] for result in read_results(kept)] == [
        "holds in kind",
        "does not hold here",
    ]
    text = (kept / SUMMARY).read_text()
    assert "| figure-1 | small | holds in kind | 1 of 1 hold | 1 | Costs \\| rounds. |" in text
    assert "| figure-2 | small | does not hold here | 1 of 2 hold | 2 | Rounds. |" in text
    assert (kept / SEEDS).read_text().splitlines()[1:] == [
        "ferret/figure-1,small,a,1,loss,0.5",
        "ferret/figure-1,small,a,2,loss,0.25",
        "ferret/figure-2,small,a,1,loss,0.5",
        "ferret/figure-2,small,a,2,loss,0.25",
    ]
    assert "](ferret/figure-1/small/page.html)" in summary([newer], link_pages=True)
    assert page_path(newer) == "ferret/figure-1/small/page.html"
