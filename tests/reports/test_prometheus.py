"""Figures for Prometheus, read with its own parser."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedseed.errors import FedseedError, RecipeError
from fedseed.reports.prometheus import Exporter
from fedseed.reports.results import RoundLine

STATUS = {
    "run": 'a "run"', "method": "ferret", "round": 3, "rounds": 10, "clients": 4, "alive": 3, "waiting_for": ["b"],
    "drifted": [], "began": 1.5, "memory_bytes": 60_000_000, "repeated_rounds": 1,
    "last": {"round": 2, "loss": 1.25, "train_loss": None}, "refusals": {"evil\nname\\": {"late": 2, "twice": 1}},
}  # fmt: skip


@pytest.fixture
def exporter():
    made = Exporter(0)
    yield made
    made.close()


def read(exporter):
    """Each figure by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {(s.name, *s.labels.values()): s.value for s in samples}


def test_a_run_is_told_of_as_it_goes(exporter):
    assert read(exporter)["fedseed_rounds_done_total",] == 0  # nobody to ask yet
    exporter.attach(lambda: STATUS)
    for number in (1, 2):
        exporter.count(RoundLine(number, bytes_up=100.0, bytes_down=50.0, taking_part=3))
    found = read(exporter)
    assert found["fedseed_payload_bytes_total", "up"] == 600 and found["fedseed_payload_bytes_total", "down"] == 300
    assert found["fedseed_rounds_done_total",] == 2 and found["fedseed_round",] == 3
    assert found["fedseed_clients",] == 4 and found["fedseed_clients_alive",] == 3 and found["fedseed_loss",] == 1.25
    assert found["fedseed_refused_messages_total", "evil\nname\\"] == 3 and ("fedseed_train_loss",) not in found
    assert next(set(key) for key in found if key[0] == "fedseed_run_info") == {"fedseed_run_info", "ferret", 'a "run"'}
    exporter.attach(lambda: None)  # it computes: what it said last is told
    assert read(exporter)["fedseed_loss",] == 1.25


def test_a_taken_port_and_a_missing_package(exporter, monkeypatch):
    with pytest.raises(FedseedError, match=f"--metrics-port {exporter.port}: 127.0.0.1: .*choose another"):
        Exporter(exporter.port)
    monkeypatch.setattr("fedseed.reports.prometheus.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"--metrics-port needs the package prometheus_client: .*prometheus"):
        Exporter(0)
