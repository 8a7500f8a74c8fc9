"""Runs that die at random moments end as if they had not."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path):
    """40 SIGKILLs for Ferret, FedKSeed and FeedSign, 6 for FedAvg: the digest, metrics and orbit bytes are the same."""
    harness = Path(__file__).parents[1] / "support" / "kill_harness.py"
    done = subprocess.run([sys.executable, harness, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {name: of["kills"] for name, of in report.items()} == {
        "ferret": 14, "fedkseed": 13, "feedsign": 13, "fedavg": 6,
    }  # fmt: skip
    assert all(of["same"] for of in report.values()), report
    moments = sum((Counter(of["moments"]) for of in report.values()), Counter())
    assert all(moments[kind] >= 3 for kind in ("any time", "training", "aggregation", "writing", "evaluation"))
