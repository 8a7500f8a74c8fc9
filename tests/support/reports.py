"""What tests of tables and figures share."""

import urllib.request
from io import StringIO

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

STATUS = {
    "run": 'a "run"',
    "method": "ferret",
    "round": 3,
    "rounds": 10,
    "clients": 4,
    "alive": 3,
    "waiting_for": ["b"],
    "drifted": [],
    "began": 1.5,
    "memory_bytes": 60_000_000,
    "repeated_rounds": 1,
    "last": {"round": 2, "loss": 1.25, "train_loss": None},
    "refusals": {"evil\nname\\": {"late": 2, "twice": 1}},
}


def summary_of(metrics):
    return {
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


def printed(table, width=100):
    console = Console(width=width, file=StringIO(), record=True)
    console.print(table)
    return console.export_text()


def read_figures(exporter):
    """Each figure that Prometheus gets, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {(s.name, *s.labels.values()): s.value for s in samples}
