"""Damaged updates and logs are taken or refused as they should, in bounded time and memory.

`tests/orbit/test_file.py` has orbits, `tests/transport` names and headers.
"""

import os

import pytest

from support.hostile.fuzzing import ROOMS, drive
from support.tiers import SLOW

CASES = {"updates": 900, "logs": 120}
SECONDS = float(os.environ.get("FEDSEED_FUZZ_SECONDS", "0"))  # of each, in place of so many cases


@pytest.mark.long
@pytest.mark.parametrize("room", ROOMS)
def test_nothing_but_a_refusal_comes_of_it(room, tmp_path):
    if SECONDS:
        print(room, *drive(room, seed=2, seconds=SECONDS, folder=tmp_path))
    else:
        count = CASES[room] * (20 if SLOW else 1)
        assert drive(room, seed=1, count=count, folder=tmp_path)[0] == count
