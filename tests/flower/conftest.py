"""Without Flower, these tests have messages that stand for its own."""

from importlib.util import find_spec

import pytest

from support.flower_grid import messages


@pytest.fixture(autouse=True)
def flowers_messages(monkeypatch):
    if find_spec("flwr") is None:
        messages(monkeypatch)
