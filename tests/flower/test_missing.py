"""Without Flower an app's two lines say what to install, and nothing else of fedseed asks for it."""

import sys

import pytest

from fedseed.errors import FedseedError
from fedseed.flower import client_app, server_app


@pytest.mark.parametrize(("make", "module"), [(server_app, "flwr.serverapp"), (client_app, "flwr.clientapp")])
def test_what_is_missing_is_named(make, module, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FedseedError, match=r"^Flower is not installed: pip install '\.\[flower\]' in"):
        make("small-ferret")
