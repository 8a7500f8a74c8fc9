from io import StringIO

from rich.console import Console

from fedseed.reports.progress import describe
from fedseed.reports.tables import comparison_table


def shown(metrics):
    summary = {
        "parameters": 10,
        "clients": 5,
        "clients_per_round": 5,
        "rounds": 3,
        "baseline": metrics,
        "final": metrics,
        "payload_bytes_up": 1.0,
        "payload_bytes_down": 1.0,
        "seconds": {"total": 2.0},
    }
    console = Console(width=100, file=StringIO(), record=True)
    console.print(comparison_table([("feedsign", summary)]))
    return console.export_text()


def test_a_table_shows_accuracy_where_it_was_measured():
    text = shown({"loss": 0.5, "accuracy": 84.72})
    assert "accuracy" in text and "84.7" in text and "Rouge-L" not in text
    text = shown({"loss": 0.5, "rouge_l": 22.3})
    assert "accuracy" not in text and "22.3" in text and "Rouge-L" in text


def test_a_round_in_a_few_words():
    assert describe({"loss": 0.5, "accuracy": 84.72}) == "held-out loss 0.500, accuracy 84.7"
