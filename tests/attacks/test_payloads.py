"""Byzantine clients that change what they send: well formed, and what the methods withstand."""

import numpy as np
import pytest

from fedseed import FeedSign, ZOFedSGD
from fedseed.attacks.updates import Attack
from fedseed.federation.messages import Message
from fedseed.randomness import Domain
from fedseed.randomness.stream import words
from support.zeroth_order import METHODS, federation


@pytest.mark.long
def test_attacks_bite_and_feedsign_withstands_one_of_five():
    """Random projections of one client of five wreck ZO-FedSGD, not FeedSign; both are named in the metrics."""
    settings = {"rounds": 150, "evaluate_every": 150, "attack": "random", "attackers": [4]}
    honest = {"rounds": 150, "evaluate_every": 150}
    sign, zo = FeedSign(learning_rate=0.01, batch=8), ZOFedSGD(learning_rate=0.01, batch=8, seeds="shared")
    results = {(m.name, "attack" in s): federation(m, **s).run() for m in (sign, zo) for s in (honest, settings)}
    final = {which: result.summary["final"]["loss"] for which, result in results.items()}
    start = results["feedsign", False].summary["baseline"]["loss"]
    assert final["feedsign", False] < start and final["zo-fedsgd", False] < start
    assert final["feedsign", True] < start  # still learns
    assert final["zo-fedsgd", True] > start  # destroyed
    result = results["feedsign", True]
    assert result.metrics[-1]["attacked"] == ["client-4"]
    assert result.summary["attack"] == {"kind": "random", "clients": 1}


def test_a_multiplier_is_one_plus_a_normal_number_and_reverses_votes_where_it_is_negative():
    drawn = words(3, Domain.ATTACK, 0, 0, 10_000).reshape(-1)
    honest = np.full(len(drawn) // 2, 2.0, dtype=np.float32)
    sent = Attack("multiplier").scalars(honest, drawn)
    assert sent.dtype == np.float32 and len(sent) == 20_000
    assert (sent / 2).mean() == pytest.approx(1, abs=0.03) and (sent / 2).std() == pytest.approx(1, abs=0.03)
    votes = Attack("multiplier").signs(np.where(np.arange(20_000) % 2, 1, -1).astype(np.int8), drawn)
    reversed_ = votes != np.where(np.arange(20_000) % 2, 1, -1)
    np.testing.assert_array_equal(reversed_, sent < 0)  # the vote of the multiplied projection
    assert reversed_.mean() == pytest.approx(0.1587, abs=0.01)  # Phi(-1)


@pytest.mark.parametrize("kind", ["sign", "random", "noise", "multiplier"])
@pytest.mark.parametrize("name", ["zo-own", "zo-byte", "feedsign", "fedkseed"])
def test_an_attack_changes_what_is_sent(name, kind):
    method, _ = METHODS[name]
    run = federation(method, attack=kind, attackers=[2])
    changed = 0
    for number in range(1, 9):
        run.coordinator.open(number)
        honest = run.worker.train(run.coordinator.plan(2), 2, run.items[2]).message
        sent = run.worker.corrupt(honest, kind)
        run.coordinator.receive(sent, 2)  # it is well formed: nobody can tell
        changed += sent != honest
        if kind == "sign":
            a, b = (
                method.decode_update(run.coordinator.state, number, Message.decode(m).payload) for m in (honest, sent)
            )
            np.testing.assert_array_equal(*(([a.signs, -b.signs]) if name == "feedsign" else [a.scalars, -b.scalars]))
        run.worker.apply(run.coordinator.close())
    # a vote may stay what it was; so may a scalar of a byte that is multiplied by nearly 1
    fewest = {"feedsign": 2 if kind != "multiplier" else 1, "zo-byte": 6 if kind == "multiplier" else 8}.get(name, 8)
    assert fewest <= changed <= 8
