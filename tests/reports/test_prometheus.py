"""Figures for Prometheus, read with its own parser."""

import pytest

from fedseed.errors import FedseedError, RecipeError
from fedseed.reports.prometheus import Exporter
from fedseed.reports.results import RoundLine
from support.reports import STATUS, read_figures


@pytest.fixture
def exporter():
    made = Exporter(0)
    yield made
    made.close()


def test_a_run_is_told_of_as_it_goes(exporter):
    assert read_figures(exporter)["fedseed_rounds_done_total",] == 0  # nobody to ask yet
    exporter.attach(lambda: STATUS)
    for number in (1, 2):
        exporter.count(RoundLine(number, bytes_up=100.0, bytes_down=50.0, taking_part=3))
    found = read_figures(exporter)
    assert found["fedseed_payload_bytes_total", "up"] == 600 and found["fedseed_payload_bytes_total", "down"] == 300
    assert found["fedseed_rounds_done_total",] == 2 and found["fedseed_round",] == 3
    assert found["fedseed_clients",] == 4 and found["fedseed_clients_alive",] == 3 and found["fedseed_loss",] == 1.25
    assert found["fedseed_refused_messages_total", "evil\nname\\"] == 3 and ("fedseed_train_loss",) not in found
    assert next(set(key) for key in found if key[0] == "fedseed_run_info") == {"fedseed_run_info", "ferret", 'a "run"'}
    exporter.attach(lambda: None)  # it computes: what it said last is told
    assert read_figures(exporter)["fedseed_loss",] == 1.25


def test_a_taken_port_and_a_missing_package(exporter, monkeypatch):
    with pytest.raises(FedseedError, match=f"--metrics-port {exporter.port}: 127.0.0.1: .*choose another"):
        Exporter(exporter.port)
    monkeypatch.setattr("fedseed.reports.prometheus.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"--metrics-port needs the package prometheus_client: .*prometheus"):
        Exporter(0)
