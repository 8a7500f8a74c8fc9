"""How large updates and steps are said to be, worked out by hand."""

import struct
from math import sqrt

import numpy as np
import pytest

from fedseed import Basis, FedAvg
from fedseed.methods import dense
from fedseed.methods import summands as sizes
from fedseed.methods.fedsgd import Gradient
from fedseed.methods.payload import About
from fedseed.weights.layout import Layout, TensorEntry

LAYOUT = Layout((TensorEntry("a", (3,), "float32"), TensorEntry("b", (5,), "bfloat16")), (0, 2, 8))


def packed(*values):
    """Three values in float32, five in bfloat16."""
    halves = np.array(values[3:], dtype="<f4").view("<u4") >> 16
    return struct.pack("<3f", *values[:3]) + halves.astype("<u2").tobytes()


def test_projections_count_by_the_largest():
    assert sizes.largest(np.array([2.0, -3.0, 0.5])) == 3.0
    assert sizes.largest(np.array([0.5, -0.1])) == 1.0
    assert sizes.largest(np.array([])) == 0.0


def test_coefficients_count_by_how_far_they_move_a_weight():
    basis = Basis("rademacher", 0)
    parts = [[np.array([3.0, 4.0], np.float32), np.array([2.0], np.float32)], [np.array([1.0], np.float32)] * 2]
    found = sizes.moved(basis, LAYOUT, parts)  # blocks of 2 and 6 of 8 weights
    assert found == pytest.approx(sqrt((2 * 25 + 6 * 4 + 2 * 1 + 6 * 1) / 8))
    assert sizes.moved(basis, LAYOUT, []) == 0.0
    assert sizes.moved(basis, LAYOUT, [[np.zeros(1, np.float32)] * 2]) == sizes.SMALLEST_MOVE


def test_entries_count_by_how_far_they_move_a_weight():
    assert sizes.of_entries(LAYOUT, np.float32([3.0, -4.0])) == pytest.approx(sqrt(25 / 8))
    assert sizes.of_entries(LAYOUT, np.float32([1e30])) == pytest.approx(1e30 / sqrt(8))
    assert sizes.of_entries(LAYOUT, np.zeros(2, np.float32)) == sizes.SMALLEST_MOVE
    assert sizes.of_entries(LAYOUT, np.zeros(0, np.float32)) == 0.0


@pytest.mark.parametrize("piece", [1 << 20, 2])
def test_whole_weights_count_by_how_far_they_are_from_those_before(piece, monkeypatch):
    monkeypatch.setattr(dense, "PIECE", piece)
    before = packed(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    after = packed(1.5, 2.0, 3.0, 2.0, 5.0, 6.0, 7.0, 9.0)

    def size(payload, known=None):
        state = dense.DenseState(LAYOUT, 1, known if known is None else dense.Weights(known))
        return payload.size(About(FedAvg(), state, "update"))

    assert size(dense.Weights(after), before) == pytest.approx(sqrt((0.25 + 4 + 1) / 8))
    assert size(dense.Weights(before), before) == sizes.SMALLEST_MOVE
    assert size(dense.Weights(after)) == size(dense.Weights(b""), before) == 0.0
    assert size(Gradient(1, before)) == pytest.approx(sqrt(204 / 8))
    assert size(Gradient(1, packed(1.0, 0.5, *[0.0] * 6))) == pytest.approx(sqrt(1.25 / 8))
    assert size(Gradient(1, packed(0.5, *[0.0] * 7))) == sqrt(1 / 8)
