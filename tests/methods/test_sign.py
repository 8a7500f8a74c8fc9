"""Sign with error feedback beside its formulas."""

from dataclasses import replace

import numpy as np
import pytest

from fedseed import Orbit, ParameterSpace, Sign
from fedseed.aggregation.median import Median
from fedseed.errors import MessageError
from fedseed.methods.base import find_misfit
from fedseed.methods.feedback import CHUNK
from fedseed.methods.payload import SMALLEST_MOVE, DecodeContext
from fedseed.methods.sign import SignStep
from fedseed.weights.change import NOTHING
from fedseed.weights.layout import Layout, TensorEntry
from support.rounds import answers
from support.zeroth_order import federation, model

SIZE = 2 * CHUNK + 1001
LARGE = Layout((TensorEntry("a", (SIZE,), "float32"),), (0, SIZE))
TRAINING = {"learning_rate": 0.2, "batch": 8, "accumulation": 1, "steps": 4}


def moved(change):
    found = np.zeros(SIZE)
    for patch in change.patches:
        where, values = patch.within(0, SIZE)
        found[where] += values * np.float32(change.scale)
    return found


@pytest.mark.parametrize("every", [1, 2])
def test_a_step_is_the_mean_of_scaled_signs(every):
    """In two rounds with every = 2 each chunk is sent once."""
    method = Sign(every=every, global_rate=0.5)
    state = method.start(LARGE, 1)
    vectors = [np.random.default_rng(i).normal(size=SIZE).astype(np.float32) for i in range(2)]
    total, sent = np.zeros(SIZE), 0
    for number in range(1, every + 1):
        updates = [
            method.decode_update(state, number, method.compress(state, v, number).encode())
            for v in vectors
        ]
        sent += len(updates[0].encode())
        made = answers(number, [(i, (0.25, 0.75)[i], update) for i, update in enumerate(updates)])
        step = method.decode_step(state, method.aggregate(state, made).encode())
        total += moved(method.change(state, step))
    expected = np.zeros(SIZE)
    for weight, v in zip((0.25, 0.75), vectors, strict=True):
        for chunk in np.split(np.arange(SIZE), [CHUNK, 2 * CHUNK]):
            expected[chunk] -= (
                0.5 * weight * np.abs(v[chunk]).mean() * np.where(v[chunk] >= 0, 1, -1)
            )
    np.testing.assert_allclose(total, expected, rtol=2**-8, atol=1e-3)
    assert sent == 4 * every + 2 * 3 + -(-SIZE // 8)


def test_zero_counts_as_positive_and_a_turn_may_be_of_no_chunk():
    method = Sign(every=4)
    state = method.start(LARGE, 1)
    signs = method.compress(state, np.float32([-1, 0, 0.5] * (SIZE // 3)), 1).signs
    assert signs[:6].tolist() == [-1, 1, 1, -1, 1, 1]
    nothing = method.compress(state, np.ones(SIZE, np.float32), 4)
    data = nothing.encode()
    assert len(data) == 4 and not len(method.decode_update(state, 4, data).signs)
    step = method.decode_step(
        state, method.aggregate(state, answers(4, [(0, 1.0, nothing)])).encode()
    )
    assert not method.change(state, step).patches
    nobody = method.decode_step(state, method.aggregate(state, answers(4, [])).encode())
    assert method.change(state, nobody) is NOTHING
    still = method.compress(state, np.zeros(SIZE, np.float32), 1)  # a scale of 0 is possible
    assert method.decode_update(state, 1, still.encode()).scales.tolist() == [0.0]


def test_how_large_it_is():
    """As if all chunks were whole; a step, as if all signs agreed."""
    method = Sign()
    about = DecodeContext(method, method.start(LARGE, 1), "step")
    update = method.compress(about.state, np.repeat(np.float32([1, 2, 4]), CHUNK)[:SIZE], 1)
    assert update.size(about) == pytest.approx((21 * CHUNK / SIZE) ** 0.5)
    turned = update.with_numbers(-update.signs, about)
    assert (turned.signs == -update.signs).all() and turned.scales is update.scales
    step = SignStep(tuple(replace(update, weight=weight) for weight in (0.25, -0.5, 0.0)))
    assert (
        step.size(about) == pytest.approx(0.75 * update.size(about))
        and SignStep(()).size(about) == 0
    )
    assert method.compress(about.state, np.zeros(SIZE, np.float32), 1).size(about) == SMALLEST_MOVE


def test_messages_that_nobody_can_have_made_are_refused():
    method = Sign(every=2)
    state = method.start(LARGE, 1)
    vector = np.random.default_rng(1).normal(size=SIZE).astype(np.float32)
    first, second = (method.compress(state, vector, number) for number in (1, 2))

    def refused(update, text, number=1):
        with pytest.raises(MessageError, match=text):
            method.decode_update(state, number, update.encode())

    refused(second, "chunks 1 modulo 2 do not belong to round 1")
    refused(replace(first, turn=2), "chunks 2 modulo 2")
    refused(replace(first, scales=np.float32([-1, 1])), "scale 0 of 2 is negative")
    refused(replace(first, signs=first.signs[:-8]), "too short")
    refused(replace(first, signs=np.r_[first.signs, [-1] * 8]), "too long")
    mixed = SignStep((replace(first, weight=0.5), replace(second, weight=0.5)))
    with pytest.raises(MessageError, match="different chunks"):
        method.decode_step(state, mixed.encode())
    with pytest.raises(MessageError, match="chunks 2 modulo 2"):
        method.decode_step(state, SignStep((replace(first, weight=0.5, turn=2),)).encode())
    assert "passed on unchanged" in find_misfit(method, Median())


@pytest.mark.parametrize("settings", [{}, {"feedback": 0.0}])
def test_it_learns_and_its_orbit_is_the_model(tmp_path, without_pictures, settings):
    result = federation(Sign(training=TRAINING, **settings), rounds=4, out=tmp_path).run()
    assert result.summary["final"]["loss"] < result.summary["baseline"]["loss"] - 0.1
    assert Orbit.open(tmp_path / "model.orbit").replay(model()) == result.summary["weights_digest"]
    d = ParameterSpace(model()).size
    assert result.summary["payload_bytes_up"] == 4 + 2 + -(-d // 8)
