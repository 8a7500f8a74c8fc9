"""Error feedback beside its formulas, on a client of which only the change is made up."""

import numpy as np
import pytest

from fedseed import Sign, TopK
from fedseed.errors import NonFiniteError
from fedseed.methods.feedback import CHUNK
from fedseed.weights.layout import Layout, TensorEntry
from support.made_up import MadeUp
from support.rounds import answers

SIZE = 2 * CHUNK + 90
LAYOUT = Layout((TensorEntry("w", (SIZE,), "float32"),), (0, SIZE))


def vectors():
    return np.random.default_rng(0).normal(size=(2, SIZE)).astype(np.float32)


def sent(method, state, update, weight=1.0):
    """q as a step of this update alone adds it to the weights."""
    found = np.zeros(SIZE, dtype=np.float32)
    change = method.change(state, method.aggregate(state, answers(2, [(0, weight, update)])))
    for patch in change.patches:
        where, values = patch.within(0, SIZE)
        found[where] += values
    assert change.scale == -method.global_rate
    return found


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("make", [TopK, Sign, lambda **more: Sign(every=2, **more)])
def test_what_is_not_sent_is_remembered_and_added(make, beta):
    # three quarters in round 2
    training = {"learning_rate": 0.125, "schedule": {"kind": "linear", "rounds": 4}}
    method = make(feedback=beta, global_rate=0.25, training=training)
    state = method.start(LAYOUT, 1)
    change, memory = vectors()
    for before in (None, memory):
        client = MadeUp(change=change, memory=before)
        update = method.train(state, None, client)
        p = change if before is None or not beta else change + before
        assert update.encode() == method.compress(state, p, 2).encode()
        if beta:
            np.testing.assert_allclose(
                client.memory, beta * (p - sent(method, state, update)), atol=1e-6
            )
        assert client.calls == [("train", 0.75 * 0.125), *(["recall", "keep"] if beta else [])]


@pytest.mark.parametrize("make", [TopK, Sign])
def test_what_is_not_finite_or_does_not_fit_is_refused(make):
    method = make()
    change = vectors()[0]
    change[7] = np.inf
    client = MadeUp(change=change)
    with pytest.raises(NonFiniteError, match="the local update is not finite"):
        method.train(method.start(LAYOUT, 1), None, client)
    assert "keep" not in client.calls
    halves = Layout((TensorEntry("w", (SIZE,), "bfloat16"),), (0, SIZE))
    with pytest.raises(ValueError, match=r"method\.training\.autocast"):
        make(training={"autocast": "bfloat16"}).check(halves)
    method.check(halves)
    assert method.entrywise  # what it costs is in proportion to the model
