"""Runs that die at any moment end as if they had not."""

import json
import random
import signal
import time
from collections import Counter

import pytest

from support.forked import start
from support.kill_harness import METHODS, MOMENTS, session
from support.left import left_by

EACH, TIMED = 2, 2  # deaths at each kind of moment, and after random times


def ended(process):
    """Whether it ended by itself, and was not killed."""
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(name, tmp_path):
    """SIGKILLs at each kind of moment and after random times: the digest, metrics and orbit bytes
    are the same.

    tests/cli/test_cli.py always kills one.
    """
    began = time.monotonic()
    assert ended(start(session, name, tmp_path / "undisturbed", None, 0, tmp_path / "counts"))
    duration, expected = time.monotonic() - began, left_by(tmp_path / "undisturbed")
    seen, draw = json.loads((tmp_path / "counts").read_text()), random.Random(f"kill {name}")
    # None: after a random time
    left = [None] * TIMED + [kind for kind in MOMENTS for _ in range(EACH)]
    draw.shuffle(left)
    kills, runs = Counter(), 0
    while left:
        runs, finished = runs + 1, False
        folder = tmp_path / str(runs)
        while not finished:
            if not left:
                finished = ended(start(session, name, folder))
            elif left[0] is None:
                del left[0]
                process = start(session, name, folder)
                process.join(draw.uniform(0, 0.8 * duration))
                process.kill()
                finished = ended(process)
            else:
                # a session that has fewer such moments before it than a whole run ends, and the
                # next run has it
                number = draw.randint(1, max(1, seen[left[0]] // 2))
                finished = ended(start(session, name, folder, left[0], number))
                if not finished:
                    kills[left.pop(0)] += 1
        assert left_by(folder) == expected
    assert kills == dict.fromkeys(MOMENTS, EACH)
