"""Damaged messages, files and arguments are taken or refused as they should, in bounded time and memory."""

import pytest

from support.hostile.fuzzing import ROOMS, drive
from support.tiers import SLOW, mark

CASES = {"keys": 60, "logs": 120, "said": 60, "server_log": 120}
QUICK = ("updates", "orbits", "wire")


@pytest.mark.long
@pytest.mark.parametrize("room", mark(ROOMS, lambda room: room not in QUICK, "long"))
def test_nothing_but_a_refusal_comes_of_it(room, tmp_path):
    count = CASES.get(room, 250) * (20 if SLOW else 1)
    assert drive(room, seed=1, count=count, folder=tmp_path).cases == count
