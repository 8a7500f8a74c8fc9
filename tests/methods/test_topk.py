"""Top-k beside its formulas: what is kept, what is remembered, what is refused."""

import numpy as np
import pytest

from fedseed import FedAvg, Orbit, ParameterSpace, TopK
from fedseed.aggregation.median import Median
from fedseed.errors import MessageError
from fedseed.methods import topk
from fedseed.methods.feedback import CHUNK
from fedseed.methods.payload import DecodeContext, Small, to_floats
from fedseed.methods.topk import KeptEntries, quantized
from fedseed.weights.layout import Layout, TensorEntry
from support.rounds import answers
from support.zeroth_order import federation, model

SIZE = 2 * CHUNK + 1000
LARGE = Layout(
    (TensorEntry("a", (SIZE - 7,), "float32"), TensorEntry("b", (7,), "float32")), (0, SIZE)
)
TRAINING = {"learning_rate": 0.1, "batch": 8, "accumulation": 1, "steps": 4}


def started(method):
    return method, method.start(LARGE, 1)


def dense(patch, size=SIZE):
    found = np.zeros(size)
    found[patch.offsets] = patch.values
    return found


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_what_is_sent_is_the_formula(bits):
    """Of each chunk the k largest, each at its level."""
    method, state = started(TopK(share=0.01, bits=bits))
    p = np.random.default_rng(bits).standard_cauchy(SIZE).astype(np.float32)
    update = method.decode_update(state, 1, method.compress(state, p, 1).encode())
    q = dense(update.patch(method.counts(state)))
    for number, chunk in enumerate(np.split(np.arange(SIZE), [CHUNK, 2 * CHUNK])):
        kept = chunk[q[chunk] != 0]
        assert len(kept) == round(0.01 * len(chunk))
        assert np.abs(p[kept]).min() >= np.abs(np.delete(p[chunk], kept - chunk[0])).max()
        (scale,), (levels,) = quantized(np.abs(p[kept])[None].astype(np.float64), 1 << (bits - 1))
        assert update.scales[number] == pytest.approx(scale, rel=2**-8)
        np.testing.assert_allclose(
            q[kept], np.sign(p[kept]) * levels * update.scales[number], rtol=1e-6
        )
    assert np.square(p - q).sum() < 0.9 * np.square(p).sum()
    about = DecodeContext(method, state, "update")
    assert update.size(about) == pytest.approx(np.sqrt(np.square(q).sum() / SIZE))
    turned = update.with_numbers(-update.numbers(about), about)
    np.testing.assert_array_equal(dense(turned.patch(method.counts(state))), -q)
    np.testing.assert_array_equal(turned.numbers(about), -np.sign(q[q != 0]))
    assert (
        update.with_numbers(np.zeros(len(turned.codes.numbers)), about).numbers(about) == 1
    ).all()


def test_levels_and_a_scale_by_hand():
    """8/4 = 2 gives levels 1, 1, 4 and 4, which 63/34 fits best, which gives the same levels.

    Rows of their own.
    """
    scale, levels = quantized(np.array([[1.0, 2, 7, 8], [10, 20, 70, 80]]), 4)
    np.testing.assert_allclose(scale, [63 / 34, 630 / 34])
    assert levels.tolist() == [[1, 1, 4, 4]] * 2
    # from 3/2 on it would be 1, 2, 2 and 2
    scale, levels = quantized(np.array([[3.0, 6, 8, 10]]), 2)
    assert (scale.tolist(), levels.tolist()) == ([4.5], [[1, 1, 2, 2]])


def test_what_is_zero_counts_as_positive():
    """Also where nothing has changed at all; then values are next to nothing."""
    method, state = started(TopK(share=0.001))
    p = np.zeros(SIZE, dtype=np.float32)
    p[9], p[CHUNK + 3] = -8.0, 8.0
    update = method.compress(state, p, 1)
    assert (update.codes.numbers >= 2).sum() == 1  # the sign bit
    entries = method.decode_update(state, 1, update.encode()).patch(method.counts(state))
    assert np.flatnonzero(entries.values < 0).tolist() == [list(entries.offsets).index(9)]
    found = dense(entries)[[9, CHUNK + 3]]  # levels 2, 1, 1 and 1 fit 8, 0, 0 and 0 best at 16/7
    np.testing.assert_allclose(found, [-32 / 7, 32 / 7], rtol=2**-8)
    last = entries.offsets >= 2 * CHUNK
    assert (entries.values[last] > 0).all() and entries.values[last].max() < 1e-37
    huge = KeptEntries(np.full(3, 3e38, np.float32), update.places, update.codes)
    assert np.isinf(huge.patch(method.counts(state)).values).sum() == 2  # without a warning
    whole = method.start(Layout((TensorEntry("a", (CHUNK,), "float32"),), (0, CHUNK)), 1)
    assert len(method.compress(whole, p[:CHUNK], 1).places.numbers) == 4
    # a scale of 0 is possible
    silent = KeptEntries(np.zeros(3, np.float32), update.places, update.codes)
    assert (
        not method.decode_update(state, 1, silent.encode()).patch(method.counts(state)).values.any()
    )


def test_a_step_is_what_the_rule_makes_of_the_entries(monkeypatch):
    monkeypatch.setattr(topk, "TOGETHER", 1)  # chunk by chunk
    method, state = started(TopK(share=0.5))
    updates = [
        method.compress(state, np.random.default_rng(i).normal(size=SIZE), 1) for i in range(3)
    ]
    each = [dense(update.patch(method.counts(state))) for update in updates]
    made = [
        (i, weight, update)
        for (i, update), weight in zip(enumerate(updates), (0.5, 0.3, 0.2), strict=True)
    ]
    for rule, expected in (
        (None, 0.5 * each[0] + 0.3 * each[1] + 0.2 * each[2]),
        (Median(), np.median(each, axis=0)),
    ):
        step = method.decode_step(state, method.aggregate(state, answers(1, made, rule)).encode())
        np.testing.assert_allclose(
            dense(method.change(state, step).patches[0]), expected, rtol=2**-8, atol=1e-6
        )
    none = method.aggregate(state, answers(1, []))
    nobody = method.decode_step(state, none.encode())
    assert (
        not len(none.values)
        and not len(nobody.values)
        and not getattr(method.change(state, nobody), "patches", ())
    )


def test_messages_that_nobody_can_have_made_are_refused():
    method, state = started(TopK(share=0.001))  # 4, 4 and 1 entries
    assert [TopK(share=share).counts(state).tolist() for share in (0.001, 1)] == [
        [4, 4, 1],
        [4096, 4096, SIZE - 8192],
    ]
    good = method.compress(state, np.random.default_rng(1).normal(size=SIZE).astype(np.float32), 1)

    def refused(text, scales=good.scales, places=good.places.numbers, codes=good.codes.numbers):
        data = KeptEntries(
            np.float32(scales), Small(np.uint16(places), 12), Small(np.uint16(codes), 2)
        ).encode()
        with pytest.raises(MessageError, match=text):
            method.decode_update(state, 1, data)

    swapped = good.places.numbers.copy()
    swapped[:2] = swapped[1::-1]
    refused("entry 1 of 9: places in a chunk must ascend", places=swapped)
    refused("scale 1 of 3 is negative", scales=[1, -1, 1])
    refused("numbers must be finite", scales=[1, np.nan, 1])
    # of more than comes: before room is made for it
    claim = np.array([CHUNK, CHUNK, 1000], dtype="<u2").tobytes()
    with pytest.raises(
        MessageError, match="payload too short: 13788 bytes needed at byte 6, but only 0 are left"
    ):
        method.decode_step(state, claim)


def test_it_learns_better_with_feedback_and_its_orbit_is_the_model(tmp_path, without_pictures):
    summaries = {}
    for feedback, out in ((1.0, None), (0.0, tmp_path / "run")):
        method = TopK(share=0.02, feedback=feedback, training=TRAINING)
        summaries[feedback] = federation(method, rounds=8, out=out).run().summary
    assert (
        summaries[1.0]["final"]["loss"]
        < summaries[0.0]["final"]["loss"]
        < summaries[0.0]["baseline"]["loss"]
    )
    assert Orbit.open(out / "model.orbit").replay(model()) == summaries[0.0]["weights_digest"]
    assert not (out / "memory").exists()  # nothing is remembered


def test_all_entries_in_eight_bits_are_fedavg_but_for_rounding():
    """share = 1 leaves nothing out: the memory holds what 8 bits round away."""
    run = federation(TopK(share=1, bits=8, training=TRAINING), rounds=3)
    run.run()
    size = run.worker.space.size
    errors = [np.abs(run.worker.memory.recall(client, 4, size)).max() for client in range(5)]
    assert 0 < max(errors) < 0.01
    fedavg = federation(FedAvg(training=TRAINING, weighting="equal"), rounds=3)
    fedavg.run()
    start, *both = (ParameterSpace(m).dense() for m in (model(), fedavg.tuned(), run.tuned()))
    whole, mine = (to_floats(end, "float32") - to_floats(start, "float32") for end in both)
    assert np.linalg.norm(mine - whole) < 0.02 * np.linalg.norm(whole)
