"""Claims, verdicts and what is written of them."""

import csv
import io

from fedseed.reports.charts import Axis, Panel, Series
from fedseed.reports.tables import Sheet
from fedseed_papers import findings
from fedseed_papers.findings import UNKNOWN, VERDICTS, Claim, Finding, Subject, count_verdicts, finding_page, judged

SUBJECT = Subject("ferret/figure-1", "Ferret, Figure 1", "Loss < time & bytes.", "small", {"machine": "one <core>"})


def made(*verdicts, **content):
    claims = [Claim(f"says {i}", f"here {i}", verdict) for i, verdict in enumerate(verdicts)]
    return Finding(claims, "So it is.", **content)


def test_verdicts():
    """A finding's is its least favourable claim's."""
    for worst in range(4):
        assert made(*VERDICTS[: worst + 1]).verdict == VERDICTS[worst] == made(*reversed(VERDICTS[: worst + 1])).verdict
    assert made().verdict == UNKNOWN
    assert [judged(True), judged(True, kind=True), judged(False), judged(False, UNKNOWN, kind=True)] == [
        "holds", "holds in kind", "does not hold here", UNKNOWN
    ]  # fmt: skip
    found = made("holds", "does not hold here", "holds")
    assert count_verdicts(found.claims) == "2 of 3: holds, 1 of 3: does not hold here"


def test_data_and_pages_have_what_was_found():
    series = [Series("a, b", [(1, 2.5), (2, 3.0)], [(1, 2.0, 3.0)]), Series("c", [(1, 0.5)], number=1)]
    found = made("holds", panels=[Panel("loss", series, Axis("round"), Axis("loss"))], seeds=(1, 2),
                 sheets=[Sheet("All", ("k", "v"), [["x,y", "1"]])], deviations=["Fewer <things>."])  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(findings.data_csv(found.panels))))
    assert [(row["series"], row["x"], row["y"], row["low"]) for row in rows] == [
        ("a, b", "1", "2.5", "2.0"), ("a, b", "2", "3.0", ""), ("c", "1", "0.5", "")
    ]  # fmt: skip
    assert findings.table_csv(found.sheets[0]) == 'k,v\n"x,y",1\n'
    page = finding_page(SUBJECT, found, 0.5)
    for text in ("says 0", "here 0", "So it is.", "Fewer &lt;things&gt;.", "one &lt;core&gt;", "1, 2", "under a second",
                 "Loss &lt; time &amp; bytes.", "<svg"):  # fmt: skip
        assert text in page
    row = {**findings.finding_json(SUBJECT, found, 61.0, "today"), "page": "ferret/figure-1/small/page.html"}
    assert row["verdict"] == "holds" and row["seeds"] == [1, 2]
    index = findings.index_page("All", [row], [("ferret/figure-2", "no data")])
    for text in ('href="ferret/figure-1/small/page.html"', "holds: 1", "61 s", "ferret/figure-2", "no data"):
        assert text in index
