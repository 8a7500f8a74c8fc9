"""How large updates and steps are said to be, worked out by hand."""

import struct
from math import sqrt
from types import SimpleNamespace

import numpy as np
import pytest

from fedseed import Basis, FedKSeed
from fedseed.errors import MessageError
from fedseed.methods import sizes
from fedseed.methods.payload import About
from fedseed.methods.pool import Accumulated, Pairs
from fedseed.weights.layout import Layout, TensorEntry

LAYOUT = Layout((TensorEntry("a", (3,), "float32"), TensorEntry("b", (5,), "bfloat16")), (0, 2, 8))


def dense(*values):
    """Three values in float32, five in bfloat16."""
    halves = np.array(values[3:], dtype="<f4").view("<u4") >> 16
    return struct.pack("<3f", *values[:3]) + halves.astype("<u2").tobytes()


def test_projections_count_by_the_largest():
    assert sizes.largest(np.array([2.0, -3.0, 0.5])) == 3.0
    assert sizes.largest(np.array([0.5, -0.1])) == 1.0
    assert sizes.largest(np.array([])) == 0.0


def test_coefficients_count_by_how_far_they_move_a_weight():
    method = SimpleNamespace(directions_of=lambda seed: Basis("rademacher", seed))
    parts = [[np.array([3.0, 4.0], np.float32), np.array([2.0], np.float32)], [np.array([1.0], np.float32)] * 2]
    found = sizes.moved(method, LAYOUT, parts)  # blocks of 2 and 6 of 8 weights
    assert found == pytest.approx(sqrt((2 * 25 + 6 * 4 + 2 * 1 + 6 * 1) / 8))
    assert sizes.moved(method, LAYOUT, []) == 0.0
    assert sizes.moved(method, LAYOUT, [[np.zeros(1, np.float32)] * 2]) == sizes.SMALLEST_MOVE


@pytest.mark.parametrize("piece", [1 << 20, 2])
def test_whole_weights_count_by_how_far_they_are_from_those_before(piece, monkeypatch):
    monkeypatch.setattr(sizes, "_PIECE", piece)
    before = dense(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    after = dense(1.5, 2.0, 3.0, 2.0, 5.0, 6.0, 7.0, 9.0)
    assert sizes.distance(LAYOUT, after, before) == pytest.approx(sqrt((0.25 + 4 + 1) / 8))
    assert sizes.distance(LAYOUT, before, before) == sizes.SMALLEST_MOVE
    assert sizes.distance(LAYOUT, after, None) == sizes.distance(LAYOUT, b"", before) == 0.0
    assert sizes.gradient_size(LAYOUT, before) == pytest.approx(sqrt(204 / 8))
    assert sizes.gradient_size(LAYOUT, dense(1.0, 0.5, *[0.0] * 6)) == pytest.approx(sqrt(1.25 / 8))
    assert sizes.gradient_size(LAYOUT, dense(0.5, *[0.0] * 7)) == sqrt(1 / 8)


# -- the pool of FedKSeed ----------------------------------------------------------------------------------------------

METHOD = FedKSeed(candidates=4, steps=3)
STATE = METHOD.advance(METHOD.start(LAYOUT, 1), Accumulated(np.array([5.0, 0.0, -2.0, 0.0], dtype=np.float32)))


def pairs(indices, scalars):
    return Pairs(np.array(indices, dtype=np.uint32), np.array(scalars, dtype=np.float32))


def test_pairs_of_the_pool_are_read_and_others_are_not():
    for good in (pairs([3], [1.0]), pairs([0, 3, 3], [1.0, 2.0, -1e6])):
        assert METHOD.decode_update(STATE, 2, good.encode()).encode() == good.encode()
    for bad, text in (
        (pairs([], []), "0 bytes of pairs: from 8 to 24"), (pairs([0] * 4, [1.0] * 4), "32 bytes of pairs"),
        (pairs([0, 4], [1.0, 1.0]), "candidate 4: the pool has 4"), (pairs([0], [1.1e6]), "1.1e[+]06|1100000"),
    ):  # fmt: skip
        with pytest.raises(MessageError, match=text):
            METHOD.decode_update(STATE, 2, bad.encode())
    assert pairs([0, 1], [-7.0, 2.0]).size(About(METHOD, STATE, "update", 2)) == 7.0


def test_a_step_of_the_pool_counts_by_what_it_adds():
    about = About(METHOD, STATE, "step")
    for now, size in (([5.0, -9.0, -2.0, 1.0], 9.0), ([5.5, 0.0, -2.0, 0.0], 1.0), ([5.0, 0.0, -2.0, 0.0], 0.0)):
        assert Accumulated(np.array(now, dtype=np.float32)).size(about) == size
