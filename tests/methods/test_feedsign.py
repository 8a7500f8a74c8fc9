"""FeedSign: votes, ties, coins, private draws, orbits of one bit a step."""

from math import sqrt

import numpy as np
import pytest
import torch

from fedseed import Basis, FeedSign, ParameterSpace
from fedseed.aggregation import Median
from fedseed.methods.feedsign import Votes
from fedseed.methods.payload import DecodeContext
from fedseed.randomness import Domain
from fedseed.randomness.stream import words
from fedseed.training.client import LocalClient
from support.rounds import answers
from support.zeroth_order import LAYOUT, OBJECTIVE, data, model


def votes(*clients):
    """Votes of some clients on some directions."""
    return [(i, 1 / len(clients), signs(*one)) for i, one in enumerate(clients)]


def signs(*values):
    return Votes(np.array(values, dtype=np.int8))


def test_majority_ties_and_zero_projections():
    method = FeedSign()
    state = method.start(LAYOUT, 7)
    assert method.aggregate(state, answers(1, votes((1,), (1,), (-1,)))).signs[0] == 1
    assert method.aggregate(state, answers(1, votes((-1,), (1,), (-1,)))).signs[0] == -1
    coins = [
        int(method.aggregate(state, answers(t, votes((1,), (-1,)))).signs[0]) for t in range(1, 401)
    ]
    assert coins == [int(method.coins(state, t)[0]) for t in range(1, 401)]
    assert abs(sum(coins)) < 4 * sqrt(400)  # fair within 4 standard errors

    class Flat(LocalClient):
        def population_losses(self, basis, along, scale, items):
            return [1.0] * len(along)

    train, _ = data(1)
    for t in range(1, 9):
        client = Flat(ParameterSpace(model()), OBJECTIVE, train[0], 7, t, 0)
        assert method.train(state, None, client).signs[0] == method.coins(state, t)[0]


def test_only_ties_are_settled_by_coins_whatever_the_rule():
    method = FeedSign(votes_per_round=3)
    state = method.start(LAYOUT, 7)
    tied = set()
    for number in range(1, 20):
        made, coins = votes((1, 1, -1), (-1, 1, -1)), method.coins(state, number)
        for rule in (None, Median()):
            found = method.aggregate(state, answers(number, made, rule)).signs
            assert found.tolist() == [coins[0], 1, -1] and found.dtype == np.int8
        tied.add(int(coins[0]))
    assert tied == {1, -1}
    assert method.aggregate(state, answers(1, [])).signs.tolist() == []
    kept = FeedSign(votes_per_round=3, small_steps="from-base")
    assert kept.advance(kept.start(LAYOUT, 7), signs(1, -1, 1)).coefficients.tolist() == [1, -1, 1]
    # a median is not a sum: of one vote that is a lie it makes nothing
    made = [(0, 0.2, signs(1, 1, 1)), (1, 0.4, signs(-1, 1, 1)), (2, 0.4, signs(1, -1, -1))]
    assert method.aggregate(state, answers(1, made, Median())).signs.tolist() == [1, 1, 1]
    turned = signs(1, -1, 1).with_vector(
        np.array([0.0, 2.5, -0.1]), DecodeContext(method, state, "update")
    )
    assert turned.signs.tolist() == [1, 1, -1]


def test_coins_are_the_streams():
    """Old runs' ties are settled by them: the lowest bits of the step's words."""
    for votes, number in ((1, 1), (1, 2), (3, 9), (21, 5)):
        method = FeedSign(votes_per_round=votes)
        drawn = words(7, Domain.COIN, 0, number << 14, 6).reshape(-1)[:votes]
        coins = method.coins(method.start(LAYOUT, 7), number)
        assert (
            coins.tolist() == [1 if int(word) % 2 else -1 for word in drawn]
            and coins.dtype == np.int8
        )
    assert len(set(coins.tolist())) == 2


@pytest.mark.long
def test_small_steps_vanish_to_nearest_but_not_otherwise(dtype=torch.bfloat16):
    """300 FeedSign steps of 5e-6 in one direction of travel, on 16-bit weights near 0.02."""

    def travelled(small_steps):
        net = torch.nn.Linear(100, 100, bias=False, dtype=dtype)
        with torch.no_grad():
            net.weight.fill_(0.02)
        space = ParameterSpace(net)
        method = FeedSign(
            learning_rate=5e-6, basis="rademacher", small_steps=small_steps, epsilon=None
        )
        state = method.start(space.layout, 1)
        if method.from_base:
            space.keep_base()
        total = np.zeros(10_000)
        for _ in range(300):
            step = Votes(np.array([1], dtype=np.int8))
            space.apply(method.change(state, step))
            total -= 5e-6 * Basis("rademacher", 1).direction(state.steps_done, 0, 10_000)
            state = method.advance(state, step)
        moved = net.weight.detach().double().numpy().reshape(-1) - float(
            torch.tensor(0.02, dtype=dtype)
        )
        return float(moved @ total / (total @ total))

    assert travelled("nearest") == 0
    assert travelled("from-base") == pytest.approx(1, abs=0.1)
    assert travelled("stochastic") == pytest.approx(1, abs=0.1)
