"""`make gpu` runs from end to end without a GPU, so that nobody borrows one to find a misspelt
name.
"""

import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).parent.parent / "benchmarks" / "gpu.py"


@pytest.mark.slow
def test_all_its_parts_run_through_the_interpreter(tmp_path):
    report = tmp_path / "report.md"
    command = [sys.executable, str(GPU), "--toy", "--out", str(report), "--budget", "1e9"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = report.read_text()
    assert "0 comparisons differ" in text and "left out" not in text
    assert text.count("same digest") == 2  # Ferret and FeedSign; FedAvg has no orbit
    for part in ("same", "perturbed", "rounds", "speed"):
        assert f"## {part}" in text
    for line in (
        "one hadamard direction added",
        "rebuild from 64",
        "digest of the weights",
        "a FeedSign step",
        "a FedKSeed round",
        "a Ferret round, streaming",
    ):
        assert line in text
