"""byzfl's rules and attacks (MIT), which ours are laid beside.

Its package imports torchvision for its data sets, which nothing here needs: the modules of rules
are loaded without it."""

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest


def byzfl(name):
    """A module of byzfl, such as "aggregators".

    The test is skipped where it is not installed (`make setup` does).
    """
    if "byzfl" not in sys.modules:
        found = find_spec("byzfl")
        if found is None:
            pytest.skip("pip install --no-deps byzfl")
        package = ModuleType("byzfl")
        package.__path__ = list(found.submodule_search_locations)
        sys.modules["byzfl"] = package
    return importlib.import_module(f"byzfl.{name}")
