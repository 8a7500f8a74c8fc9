"""Runs that die at any moment end as if they had not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

METHODS = ["ferret", "fedkseed", "feedsign", "fedavg"]
MOMENTS = {"training", "aggregation", "writing", "evaluation"}


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path):
    """SIGKILLs at each kind of moment and after random times: the digest, metrics and orbit bytes are the same.

    tests/cli/test_cli.py always kills one.
    """
    harness = Path(__file__).parents[1] / "support" / "kill_harness.py"
    command = [sys.executable, harness, tmp_path, "4", "4", *METHODS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report) == METHODS
    for name, of in report.items():
        assert of["kills"] == dict.fromkeys(MOMENTS, 4), (name, report)
        assert of["same"], (name, report)
