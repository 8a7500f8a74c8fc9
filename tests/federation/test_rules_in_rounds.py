"""Aggregation rules in rounds: too few answers, rules that remember, methods whose vectors come in
parts.
"""

import numpy as np
import pytest

from fedseed import FedAvg, FedKSeed, FeedSign, Ferret
from fedseed.aggregation import CentredClipping, Krum, Median, MultiKrum, NormBound
from fedseed.federation.messages import Message
from fedseed.methods import TopK
from fedseed.methods import dense as dense_module
from fedseed.training.settings import LocalTraining
from support.heard import Heard
from support.rounds import answers
from support.zeroth_order import QUICK, federation

LOCAL = LocalTraining(optimizer="sgd", learning_rate=0.1, steps=3, batch=8)


def remembering(rounds, out, **settings):
    method = FedKSeed(**QUICK, candidates=32, steps=10)
    rule = CentredClipping(momentum=0.5, radius=5.0)
    return federation(
        method, rounds=rounds, out=out, aggregation=rule, evaluate_every=rounds, **settings
    )


@pytest.mark.long
@pytest.mark.parametrize("lost", [False, True])
def test_a_resumed_run_goes_on_with_what_the_rule_remembers(tmp_path, without_pictures, lost):
    """Without the file it goes on from zero, and says so: another model."""
    whole = remembering(5, tmp_path / "whole").run().summary
    remembering(3, tmp_path / "cut").run()
    if lost:
        for path in (tmp_path / "cut").glob("kept-*.npz"):
            path.unlink()

    told = Heard()
    run = remembering(5, tmp_path / "cut", progress=told)
    found = run.run(resume=True, extend=True).summary
    assert (found["weights_digest"] == whole["weights_digest"]) != lost
    assert any("centred-clipping continues without" in line for line in told.warnings) == lost


def test_a_dense_method_keeps_the_outcome_beside_its_weights(tmp_path, quickly):
    def made(rounds, out):
        rule = CentredClipping(momentum=0.5)
        return federation(
            FedAvg(training=LOCAL), rounds=rounds, out=tmp_path / out, aggregation=rule
        )

    whole = made(4, "whole").run().summary["weights_digest"]
    made(2, "cut").run()
    assert made(4, "cut").run(resume=True, extend=True).summary["weights_digest"] == whole
    assert {path.name for path in (tmp_path / "cut").glob("kept-*")} == {"kept-3.npz", "kept-4.npz"}


def received(run):
    """Opens a round, and hands all answers to the coordinator; the messages."""
    sent = []
    for client in run.coordinator.open(1):
        data = run.worker.train(run.coordinator.plan(client), client, run.items[client]).message
        run.coordinator.receive(data, client)
        sent.append(Message.decode(data))
    return sent


@pytest.mark.parametrize(
    "rule", [Krum(), MultiKrum(), NormBound(), Median(liars=1, before=["nearest-neighbours"])]
)
def test_weights_are_compared_by_how_far_they_moved_and_as_one_vector(rule, monkeypatch):
    """Tensors in pieces of seven entries: the outcome is the base and what the rule makes of the
    whole moves.
    """
    monkeypatch.setattr(dense_module, "PIECE", 7)
    run = federation(FedAvg(training=LOCAL), aggregation=rule)
    space = run.worker.space
    before = np.frombuffer(space.dense(), dtype="<f4").astype(np.float64)
    moves = [
        np.frombuffer(sent.payload, dtype="<f4").astype(np.float64) - before
        for sent in received(run)
    ]
    run.worker.apply(run.coordinator.close().encode())
    after = np.frombuffer(space.dense(), dtype="<f4")
    np.testing.assert_allclose(after, before + rule.combine(moves, [0.2] * 5), rtol=0, atol=1e-6)
    assert np.abs(after - before).max() > 1e-3


@pytest.mark.parametrize(
    "method",
    [
        Ferret(seeds="shared", directions=24, allocation="uniform", training=LOCAL),
        TopK(training=LOCAL, share=0.5),
        FeedSign(**QUICK),
    ],
)
def test_a_rule_sees_a_methods_parts_as_one_vector(method):
    """One of five is chosen by Krum, with all its blocks: the step is that client's."""
    run = federation(method, aggregation=Krum())
    state, alone = run.coordinator.state, []
    for sent in received(run):
        update = method.decode_update(state, 1, sent.payload)
        alone.append(method.aggregate(state, answers(1, [(sent.client, 1.0, update)])).encode())
    assert run.coordinator.close().payload in alone
