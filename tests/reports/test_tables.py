"""A metric is declared once, and is then in tables, pictures, pages, progress, the status and
Prometheus.
"""

from io import StringIO

import pytest
from rich.console import Console

from fedseed import metrics
from fedseed.metrics import Metric, declare
from fedseed.reports.charts import curves
from fedseed.reports.comparison import Compared, comparison_lines, results_sheet
from fedseed.reports.pages import run_page
from fedseed.reports.plots import figure_of
from fedseed.reports.progress import describe
from fedseed.reports.prometheus import Exporter
from fedseed.reports.results import RoundLine, best_rounds
from fedseed.reports.tables import Sheet, mean_and_deviation
from fedseed.reports.view import RunView
from support.page import Page
from support.reports import STATUS, printed, read_figures, summary_of

LINES = [RoundLine(n, metrics={"loss": 4.0 - n, "wobble": 50.0 - 12.345 * n}) for n in range(3)]


@pytest.fixture
def wobble(monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))
    declare(Metric("wobble", "wobbliness", unit="%", better="down", digits=2))


def test_a_metric_that_is_declared_is_everywhere(wobble):
    summary = {**summary_of(LINES[0].metrics), "final": LINES[-1].metrics}
    sheet = results_sheet("Results", [Compared("ferret", [summary])], brief=True)
    assert (
        "held-out wobbliness" in sheet.head
        and "50.00" in sheet.rows[0]
        and "25.31" in sheet.rows[1]
    )
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
    assert base.to_json() == {
        "round": 0,
        "seconds": {"evaluation": 1.0},
        "weights_digest": "ab",
        "loss": 4.0,
    }
    line = RoundLine(
        3,
        2,
        ["a"],
        2,
        not_taken=[{"round": 3, "reason": "no"}],
        bytes_up=9.5,
        metrics={"epsilon": 1.5},
    )
    table = line.to_json()
    assert {
        "round",
        "rounds",
        "clients",
        "skipped",
        "train_loss",
        "bytes_up",
        "not_taken",
        "epsilon",
    } <= table.keys()
    assert "by_client" not in table and "processes" not in table and table["train_loss"] is None
    for one in (base, line):
        assert RoundLine.from_json(one.to_json()) == one
    assert line.get("bytes_up") == 9.5 and base.get("bytes_up") is None and base.get("loss") == 4.0
    for bad in ([], {}, {"round": "3"}, "x"):
        with pytest.raises(ValueError, match="it has no round"):
            RoundLine.from_json(bad)


def shown(width=100, **runs):
    return printed(
        results_sheet(
            "", [Compared(name, [run]) for name, run in runs.items()], brief=True
        ).table(),
        width,
    )


def test_a_table_shows_what_a_task_measures_and_fits_a_terminal():
    measured = {
        "loss": 0.5,
        "perplexity": 7.77,
        "f1": 31.26,
        "validation_loss": 9.99,
        "own_score": 3.2,
    }
    text = shown(a=summary_of(measured))
    assert all(word in text for word in ("F1", "31.3", "own score", "3.2"))
    assert not any(word in text.lower() for word in ("7.7", "9.99", "rouge", "unseen"))
    text = shown(
        80,
        zo_fedsgd=summary_of(
            {"loss": 4.5, "rouge_l": 16.9, "unseen_loss": 3.7, "unseen_rouge_l": 18.6}
        ),
    )
    assert "Unseen: tasks" in text and max(map(len, text.splitlines())) <= 80
    assert any("18.6" in line and "2 s" in line for line in text.splitlines())  # nothing is cut
    narrow = Console(width=40, file=StringIO())
    results_sheet(
        "", [Compared("a name of many letters", [summary_of({"loss": 4.5})])], brief=True
    ).show(narrow)
    assert "a name of many letters" in narrow.file.getvalue() and "…" not in narrow.file.getvalue()


def test_no_one_times_fewer_and_no_zero_times():
    base = {**summary_of({"loss": 1.0}), "baseline": {"loss": 2.0}}
    sent = {
        "a": (100.0, 100.0),
        "like": (99.0, 100.0),
        "half": (66.0, 66.0),
        "more": (50.0, 450.0),
        "few": (1.0, 1.0),
    }
    runs = [Compared("failed", [])]
    for name, (up, down) in sent.items():
        runs.append(Compared(name, [{**base, "payload_bytes_up": up, "payload_bytes_down": down}]))
    said = [line.rpartition("improvement with ")[2] for line in comparison_lines(runs)]
    ends = "about as many", "1.5 times fewer", "2.5 times more", "100 times fewer"
    assert said == [f"{end} bytes." for end in ends]


def test_sheets_as_text_and_markdown():
    sheet = Sheet(
        "A & B", ("method", "loss_x"), [["FedAvg 5%", "1.0 ± 0.1"], ["a|b", "-"]], "Note."
    )
    assert r"| a\|b | - |" in sheet.markdown() and "| --- | ---: |" in sheet.markdown()
    assert "FedAvg 5%  1.0 ± 0.1" in sheet.text()
    assert (
        mean_and_deviation([1.0, 2.0, 3.0], 1) == "2.0 ± 1.0"
        and mean_and_deviation([2.5], 2) == "2.50"
    )
    assert mean_and_deviation([1.0, float("nan")], 1) == "1.0 (1 not finite)"
    assert mean_and_deviation([float("inf")], 1) == "-"
