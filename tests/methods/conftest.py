"""Whole runs of a method take the small problem of the federation's tests."""

import runpy
from pathlib import Path

_shared = runpy.run_path(str(Path(__file__).parents[1] / "federation" / "conftest.py"))
problem, make_problem = _shared["problem"], _shared["make_problem"]
