"""Byzantine clients that change what they send: well formed, and what the methods withstand."""

import numpy as np
import pytest

from fedseed import FeedSign, ZOFedSGD
from fedseed.attacks.updates import scalars, signs
from fedseed.randomness import Domain
from fedseed.randomness.stream import words
from support.zeroth_order import federation


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
    sent = scalars("multiplier", honest, drawn)
    assert sent.dtype == np.float32 and len(sent) == 20_000
    assert (sent / 2).mean() == pytest.approx(1, abs=0.03) and (sent / 2).std() == pytest.approx(1, abs=0.03)
    votes = signs("multiplier", np.where(np.arange(20_000) % 2, 1, -1).astype(np.int8), drawn)
    reversed_ = votes != np.where(np.arange(20_000) % 2, 1, -1)
    np.testing.assert_array_equal(reversed_, sent < 0)  # the vote of the multiplied projection
    assert reversed_.mean() == pytest.approx(0.1587, abs=0.01)  # Phi(-1)
