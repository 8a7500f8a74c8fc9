"""How large updates and steps are said to be, worked out by hand."""

import struct
from math import sqrt

import numpy as np
import pytest

from fedseed import Basis, FedAvg, Ferret, TopK
from fedseed.methods import dense
from fedseed.methods import payload as sizes
from fedseed.methods.fedsgd import Gradient
from fedseed.methods.ferret import Coefficients, CoefficientStep
from fedseed.methods.payload import DecodeContext, State
from fedseed.methods.topk import Combined
from fedseed.weights.layout import Layout, TensorEntry

LAYOUT = Layout((TensorEntry("a", (3,), "float32"), TensorEntry("b", (5,), "bfloat16")), (0, 2, 8))


def packed(*values):
    """Three values in float32, five in bfloat16."""
    halves = np.array(values[3:], dtype="<f4").view("<u4") >> 16
    return struct.pack("<3f", *values[:3]) + halves.astype("<u2").tobytes()


def test_projections_count_by_the_largest():
    assert sizes.projection_size(np.array([2.0, -3.0, 0.5])) == 3.0
    assert sizes.projection_size(np.array([0.5, -0.1])) == 1.0
    assert sizes.projection_size(np.array([])) == 0.0


def test_coefficients_count_by_how_far_they_move_a_weight():
    def size(*parts):
        step = CoefficientStep(
            tuple(Coefficients(0, tuple(map(np.float32, part))) for part in parts)
        )
        about = DecodeContext(Ferret(basis="truncated_normal"), State(LAYOUT, 1), "step")
        assert all(part.size(about) == CoefficientStep((part,)).size(about) for part in step.parts)
        return step.size(about)

    found = size([[3, 4], [2]], [[1], [1]])  # blocks of 2 and 6 of 8 weights
    a, b = (Basis("truncated_normal").variance(length) for length in (2, 6))
    assert found == pytest.approx(sqrt((2 * 25 * a + 6 * 4 * b + 2 * 1 * a + 6 * 1 * b) / 8))
    assert size() == 0.0 and size([[0], [0]]) == sizes.SMALLEST_MOVE


def test_entries_count_by_how_far_they_move_a_weight():
    def size(*values):
        step = Combined.from_entries(np.arange(len(values)), np.float32(values), 1)
        return step.size(DecodeContext(TopK(), State(LAYOUT, 1), "step"))

    assert size(3.0, -4.0) == pytest.approx(sqrt(25 / 8)) and size(1e30) == pytest.approx(
        1e30 / sqrt(8)
    )
    assert size(0, 0) == sizes.SMALLEST_MOVE and size() == 0.0


@pytest.mark.parametrize("piece", [1 << 20, 2])
def test_whole_weights_count_by_how_far_they_are_from_those_before(piece, monkeypatch):
    monkeypatch.setattr(dense, "PIECE", piece)
    before = packed(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    after = packed(1.5, 2.0, 3.0, 2.0, 5.0, 6.0, 7.0, 9.0)

    def size(payload, known=None):
        state = dense.DenseState(LAYOUT, 1, known if known is None else dense.Weights(known))
        return payload.size(DecodeContext(FedAvg(), state, "update"))

    assert size(dense.Weights(after), before) == pytest.approx(sqrt((0.25 + 4 + 1) / 8))
    assert size(dense.Weights(before), before) == sizes.SMALLEST_MOVE
    assert size(dense.Weights(after)) == size(dense.Weights(b""), before) == 0.0
    assert size(Gradient(1, before)) == pytest.approx(sqrt(204 / 8))
    assert size(Gradient(1, packed(1.0, 0.5, *[0.0] * 6))) == pytest.approx(sqrt(1.25 / 8))
    assert size(Gradient(1, packed(0.5, *[0.0] * 7))) == sqrt(1 / 8)
