"""A metric is declared once, and is then in tables, pictures, pages, progress, the status and Prometheus."""

import pytest

from fedseed import metrics
from fedseed.metrics import Metric, declare
from fedseed.reports.charts import curves
from fedseed.reports.comparison import Compared, results_sheet
from fedseed.reports.pages import run_page
from fedseed.reports.plots import figure_of
from fedseed.reports.progress import describe
from fedseed.reports.prometheus import Exporter
from fedseed.reports.results import RoundLine, best_rounds
from fedseed.reports.view import RunView
from support.page import Page
from support.reports import STATUS, read_figures, summary_of

LINES = [RoundLine(n, metrics={"loss": 4.0 - n, "wobble": 50.0 - 12.345 * n}) for n in range(3)]


@pytest.fixture
def wobble(monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))
    declare(Metric("wobble", "wobbliness", unit="%", better="down", digits=2))


def test_a_metric_that_is_declared_is_everywhere(wobble):
    summary = {**summary_of(LINES[0].metrics), "final": LINES[-1].metrics}
    sheet = results_sheet("Results", [Compared("ferret", [summary])], brief=True)
    assert "held-out wobbliness" in sheet.head and "50.00" in sheet.rows[0] and "25.31" in sheet.rows[1]
    labels = {axes.get_ylabel() for axes in figure_of(curves({"ferret": [LINES]})).axes}
    assert labels - {""} == {"held-out loss", "held-out wobbliness, %"}
    page = Page(run_page(RunView("run", LINES, rounds=2))).text
    assert "held-out wobbliness 25.31 50.00 before tuning" in page
    assert describe(LINES[1]) == "held-out loss 3.000, held-out wobbliness 37.66"
    assert best_rounds(LINES)["wobble"]["round"] == 2  # lower is better
    exporter = Exporter(0)
    exporter.attach(lambda: {**STATUS, "last": {"round": 2, "wobble": 25.3}})
    assert read_figures(exporter)["fedseed_wobble",] == 25.3
    exporter.close()


def test_a_line_is_read_as_it_was_written():
    base = RoundLine(0, seconds={"evaluation": 1.0}, weights_digest="ab", metrics={"loss": 4.0})
    assert base.to_json() == {"round": 0, "seconds": {"evaluation": 1.0}, "weights_digest": "ab", "loss": 4.0}
    line = RoundLine(3, 2, ["a"], 2, not_taken=[{"round": 3, "reason": "no"}], bytes_up=9.5, metrics={"epsilon": 1.5})
    table = line.to_json()
    assert {"round", "rounds", "clients", "skipped", "train_loss", "bytes_up", "not_taken", "epsilon"} <= table.keys()
    assert "by_client" not in table and "processes" not in table and table["train_loss"] is None
    for one in (base, line):
        assert RoundLine.from_json(one.to_json()) == one
    assert line.get("bytes_up") == 9.5 and base.get("bytes_up") is None and base.get("loss") == 4.0
    for bad in ([], {}, {"round": "3"}, "x"):
        with pytest.raises(ValueError, match="it has no round"):
            RoundLine.from_json(bad)
