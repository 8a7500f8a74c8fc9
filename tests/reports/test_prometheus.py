"""Figures for Prometheus, read with its own parser; the board and the alarms that show them."""

import json
import re

import pytest
import yaml

from fedseed.errors import FedseedError, RecipeError
from fedseed.metrics import METRICS
from fedseed.reports.prometheus import Exporter
from fedseed.reports.results import RoundLine
from support.documents import ROOT
from support.reports import STATUS, read_figures

FOLDER = ROOT / "examples" / "monitoring"


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
    assert (
        found["fedseed_payload_bytes_total", "up"] == 600
        and found["fedseed_payload_bytes_total", "down"] == 300
    )
    assert found["fedseed_rounds_done_total",] == 2 and found["fedseed_round",] == 3
    assert (
        found["fedseed_clients",] == 4
        and found["fedseed_clients_alive",] == 3
        and found["fedseed_loss",] == 1.25
    )
    assert (
        found["fedseed_refused_messages_total", "evil\nname\\"] == 3
        and ("fedseed_train_loss",) not in found
    )
    assert next(set(key) for key in found if key[0] == "fedseed_run_info") == {
        "fedseed_run_info",
        "ferret",
        'a "run"',
    }
    exporter.attach(lambda: None)  # it computes: what it said last is told
    assert read_figures(exporter)["fedseed_loss",] == 1.25


def test_a_taken_port_and_a_missing_package(exporter, monkeypatch):
    with pytest.raises(
        FedseedError, match=f"--metrics-port {exporter.port}: 127.0.0.1: .*choose another"
    ):
        Exporter(exporter.port)
    monkeypatch.setattr("fedseed.reports.prometheus.find_spec", lambda name: None)
    with pytest.raises(
        RecipeError, match=r"--metrics-port needs the package prometheus_client: .*prometheus"
    ):
        Exporter(0)


def asked(query):
    """The figures that a query names."""
    return set(re.findall(r"\bfedseed_\w+", query))


def test_the_board_shows_every_figure_and_no_other(exporter):
    """Of metrics those that fedseed declares: a recipe's own have other names."""
    last = {name: 1.0 for name, metric in METRICS.items() if metric.shown}
    exporter.attach(lambda: STATUS | {"last": last})
    figures = read_figures(exporter)
    there = {name for name, *_ in figures}
    board = json.loads((FOLDER / "board.json").read_text(encoding="utf-8"))
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    assert set().union(*(asked(target["expr"]) for target in targets)) == there
    for variable in board["templating"]["list"]:
        assert asked(variable["query"]) <= there
    with_labels = {
        "client": "fedseed_refused_messages_total",
        "direction": "fedseed_payload_bytes_total",
    }
    for target in targets:
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            assert asked(target["expr"]) == {with_labels[label]}
    rules = yaml.safe_load((FOLDER / "alarms.yml").read_text(encoding="utf-8"))["groups"][0][
        "rules"
    ]
    for rule in rules:
        assert asked(rule["expr"]) <= there and (
            asked(rule["expr"]) or rule["expr"].startswith("up{")
        )
