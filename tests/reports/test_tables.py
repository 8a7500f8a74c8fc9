from io import StringIO

from rich.console import Console

from fedseed.reports.comparison import Compared, comparison_lines, results_sheet
from fedseed.reports.tables import Sheet, mean_and_deviation
from support.reports import printed, summary_of


def shown(width=100, **runs):
    return printed(results_sheet("", [Compared(name, [run]) for name, run in runs.items()], brief=True).table(), width)


def test_a_table_shows_what_a_task_measures_and_fits_a_terminal():
    text = shown(
        a=summary_of({"loss": 0.5, "perplexity": 7.77, "f1": 31.26, "validation_loss": 9.99, "own_score": 3.2})
    )
    assert all(word in text for word in ("F1", "31.3", "own score", "3.2"))
    assert not any(word in text.lower() for word in ("7.7", "9.99", "rouge", "unseen"))
    text = shown(80, zo_fedsgd=summary_of({"loss": 4.5, "rouge_l": 16.9, "unseen_loss": 3.7, "unseen_rouge_l": 18.6}))
    assert "Unseen: tasks" in text and max(map(len, text.splitlines())) <= 80
    assert any("18.6" in line and "2 s" in line for line in text.splitlines())  # nothing is cut
    narrow = Console(width=40, file=StringIO())
    results_sheet("", [Compared("a name of many letters", [summary_of({"loss": 4.5})])], brief=True).show(narrow)
    assert "a name of many letters" in narrow.file.getvalue() and "…" not in narrow.file.getvalue()


def test_no_one_times_fewer_and_no_zero_times():
    base = {**summary_of({"loss": 1.0}), "baseline": {"loss": 2.0}}
    sent = {"a": (100.0, 100.0), "like": (99.0, 100.0), "half": (66.0, 66.0), "more": (50.0, 450.0), "few": (1.0, 1.0)}
    runs = [
        Compared(name, [{**base, "payload_bytes_up": up, "payload_bytes_down": down}])
        for name, (up, down) in sent.items()
    ]
    ends = ["about as many bytes", "1.5 times fewer bytes", "2.5 times more bytes", "100 times fewer bytes"]
    assert [line.rpartition("improvement with ")[2] for line in comparison_lines([*runs, Compared("failed", [])])] == [
        f"{end}." for end in ends
    ]


def test_sheets_as_text_and_markdown():
    sheet = Sheet("A & B", ("method", "loss_x"), [["FedAvg 5%", "1.0 ± 0.1"], ["a|b", "-"]], "Note.")
    assert r"| a\|b | - |" in sheet.markdown() and "| --- | ---: |" in sheet.markdown()
    assert "FedAvg 5%  1.0 ± 0.1" in sheet.text()
    assert mean_and_deviation([1.0, 2.0, 3.0], 1) == "2.0 ± 1.0" and mean_and_deviation([2.5], 2) == "2.50"
    assert mean_and_deviation([1.0, float("nan")], 1) == "1.0 (1 not finite)"
    assert mean_and_deviation([float("inf")], 1) == "-"
