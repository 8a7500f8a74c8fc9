"""`fedseed reproduce`: the list, an item's files and page, and what is wrong on the command
line.
"""

import csv
import json
import re

import pytest

from fedseed_papers.catalogue import catalogue
from support.command import fedseed, refused, well
from support.page import Page


def test_the_list_has_all_items_with_their_states():
    shown = fedseed("reproduce", "list", "--json")
    rows = json.loads(shown.stdout)
    assert [row["name"] for row in rows] == [item.name for item in catalogue()]
    assert {row["name"]: row["state"] for row in rows}["ferret/table-9"] == "published only"
    text = fedseed("reproduce", "list").stdout
    assert "feedsign/proposition-d5" in text and "nothing to measure" in text
    exact = json.loads(fedseed("reproduce", "list", "--scale", "exact", "--json").stdout)
    assert {row["state"] for row in exact} == {"exact"}


@pytest.mark.long
def test_an_item_leaves_data_picture_table_and_a_page_that_asks_for_nothing(tmp_path):
    shown = well("reproduce", "ferret/figure-6", "--out", tmp_path)
    assert "holds" in shown.stdout and "Here: Slope" in shown.stdout
    folder = tmp_path / "ferret" / "figure-6" / "exact"
    page = (folder / "page.html").read_text()
    assert all(place.startswith("data:") for place in Page(page).refers)
    assert "<script" not in page and "http" not in re.sub(r"xmlns=\S+", "", page)
    for text in (
        "Ferret, Figure 6",
        "What the paper reports",
        "nothing is random",
        "cores",
        "1 / rho by d",
    ):
        assert text in page
    with open(folder / "data.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 22 and float(rows[10]["y"]) / float(rows[10]["x"]) - 3 < 1e-6
    assert (folder / "picture.png").read_bytes()[:4] == b"\x89PNG" and (
        folder / "picture.png"
    ).stat().st_size < 200_000
    assert (folder / "table-1.csv").read_text().startswith("d,1 / rho,")
    result = json.loads((folder / "result.json").read_text())
    assert result["verdict"] == "holds" and len(result["claims"]) == 2
    index = (tmp_path / "index.html").read_text()
    assert 'href="ferret/figure-6/exact/page.html"' in index
    # again: it is there; as JSON
    again = fedseed("reproduce", "ferret/figure-6", "--out", tmp_path, "--json")
    assert "(there already)" in again.stderr and json.loads(again.stdout) == result


def test_what_is_wrong_is_said_in_one_line(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for words, said in (
        (["ferret/figure-10"], "there is no such item; there are ferret/figure-1"),
        (["nobody/figure-1"], "there are ferret, fedkseed, feedsign, fedmezo"),
        (["ferret/figure-6", "--scale", "small"], "ferret/figure-6 can be made at scale exact"),
        (["feedsign/table-6"], "nothing to measure"),
        (["ferret/figure-6", "--seeds", "x"], "--seeds x: write whole numbers"),
        (["ferret/figure-6", "--out", file], "this is a file; name a folder"),
        (["ferret/table-3", "--out", tmp_path, "--scale", "published"], "task.path"),
    ):
        refused(2, said, "reproduce", *words)
