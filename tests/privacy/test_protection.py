"""What wraps a method where data are protected: by hand, for each kind of protection."""

from dataclasses import replace
from math import exp, nan, sqrt

import numpy as np
import pytest

from fedseed import FedKSeed, FedMeZO, FeedSign
from fedseed.methods.fedkseed import Accumulated, Pairs, Pool
from fedseed.methods.fedmezo import Rate
from fedseed.methods.feedsign import Votes
from fedseed.methods.payload import DecodeContext
from fedseed.privacy import PrivacySettings, PrivateScalars, protect, protection_of
from fedseed.randomness import Domain, derive
from fedseed.training.client import LocalClient
from fedseed.weights.space import ParameterSpace
from support.made_up import MadeUp
from support.rounds import answers
from support.zeroth_order import LAYOUT, OBJECTIVE, QUICK, data, model

CLIENT = PrivacySettings(level="client", clip=1.0, noise=1.0)


@pytest.fixture
def quiet(monkeypatch):
    """In place of noise: the mean of the vectors over who was asked, and a half.

    What it is made of is noted.
    """
    noted = []

    def mean(self, vectors, asked):
        noted.append((vectors, asked))
        return np.sum(vectors, axis=0) / asked + 0.5

    monkeypatch.setattr(PrivateScalars, "mean", mean)
    return noted


def scripted(method, *rho):
    """A client with a projection for each of four directions; NaN: its losses are not usable."""
    return MadeUp([(method.scale * each, -method.scale * each) for each in rho])


def test_a_pool_of_clients_by_hand(quiet):
    """As many pairs as any client sends, bounded as one vector of the pool.

    The noisy mean is accumulated.
    """
    shape = {"candidates": 4, "steps": 2, "population": 2, "batch": 2}
    method = protect(
        FedKSeed(**shape, weighting="equal", schedule={"kind": "linear", "rounds": 4}, decay=0.5),
        CLIENT,
    )
    state = method.advance(
        method.start(LAYOUT, 1), Accumulated(np.array([4, 0, 8, 0], dtype=np.float32))
    )
    protection, plan = protection_of(method), Pool(0, np.zeros(4, dtype=np.float32), None)
    about = DecodeContext(method, state, "update", 2)
    drawn = method.draw(plan, derive(1, Domain.CLIENT_SEED, 2, 4))
    expected = np.array([3.0, -1.0, 2.0, 0.5]) * np.bincount(drawn, minlength=4)
    sent = protection.train(state, plan, scripted(method, 3.0, -1.0, 2.0, 0.5))
    assert len(sent.indices) == 4
    np.testing.assert_allclose(sent.vector(about), expected / np.linalg.norm(expected), atol=1e-6)
    silent = protection.train(state, plan, scripted(method, nan, nan, nan, nan))
    assert len(silent.encode()) == len(sent.encode()) and not silent.scalars.any()
    other = Pairs(np.array([1, 1], dtype=np.uint32), np.array([2.0, 4.0], dtype=np.float32))
    told = protection.combine(state, answers(3, [(0, 1.0, other)]), 3)
    # half of what was there is forgotten; the round's factor is a half, the population 2
    expected = np.array([2.0, 0.0, 4.0, 0.0]) + (np.array([0, 6, 0, 0]) / 3 + 0.5) * 0.5 / 2
    np.testing.assert_allclose(method.aggregate(state, told).accumulator, expected, rtol=1e-6)
    nobody = protection.combine(state, answers(3, []), 3)
    assert method.aggregate(state, nobody).accumulator.tolist() == [4, 0, 8, 0]


@pytest.mark.parametrize("seeds", ["own", "shared"])
def test_traces_are_bounded_as_projections(quiet, seeds):
    """They travel times the round's rate over n: both sides know that factor.

    Own directions get noise one by one.
    """
    schedule = {"kind": "linear", "rounds": 4}
    shape = {"steps": 2, "batch": 2, "population": 2, "learning_rate": 0.2, "seeds": seeds}
    method = protect(FedMeZO(**shape, schedule=schedule), CLIENT)
    state, by, protection = (
        replace(method.start(LAYOUT, 7), rounds_done=1),
        0.75 * 0.2 / 2,
        protection_of(method),
    )
    update = protection.train(state, Rate(), scripted(method, 2.0, nan, -0.5, 0.0))
    np.testing.assert_allclose(
        update.scalars, by * np.array([2.0, 0.0, -0.5, 0.0]) / 4.25**0.5, rtol=1e-6
    )
    told = protection.combine(state, answers(2, [(4, 0.5, update), (5, 0.5, update)]), 3)
    step = method.aggregate(state, told)
    assert len(quiet) == len(step.parts) == (2 if seeds == "own" else 1)
    for vectors, asked in quiet:
        assert asked == (1 if seeds == "own" else 3) and len(vectors) == (
            1 if seeds == "own" else 2
        )
        assert np.linalg.norm(vectors[0]) == pytest.approx(1.0, rel=1e-6)
    share = 1.0 if seeds == "own" else 2 / 3
    mean = share * update.scalars + by * 0.5
    np.testing.assert_allclose(step.parts[0].scalars, mean, rtol=1e-5)


# -- votes
# ------------------------------------------------------------------------------------------------


def test_a_client_without_usable_examples_votes_its_coins():
    method = FeedSign(votes_per_round=3, epsilon=1.0, **QUICK)
    state = method.start(LAYOUT, 7)
    spoilt = [(x * nan, y) for x, y in data(1)[0][0]]
    for items in ([], spoilt):
        client = LocalClient(ParameterSpace(model()), OBJECTIVE, items, 7, 4, 0)
        assert (
            protection_of(method).train(state, None, client).signs.tolist()
            == method.coins(state, 4).tolist()
        )
    assert protection_of(method).combine(state, answers(1, []), 3).answers == ()


@pytest.mark.parametrize("total", range(-5, 6))
def test_private_draws_have_the_papers_odds(total, epsilon=1.0):
    """20,000 draws from the operating system: the frequency of +1 within 4 standard errors of
    sigma(eps S / 2).
    """
    method = FeedSign(epsilon=epsilon, votes_per_round=20_000)
    signs = [1] * max(total, 0) + [-1] * max(-total, 0) + ([1, -1] if total in (0,) else [])
    made = answers(
        1, [(i, 0, Votes(np.full(20_000, s, dtype=np.int8))) for i, s in enumerate(signs)]
    )
    state = method.start(LAYOUT, 1)
    drawn = method.aggregate(state, protection_of(method).combine(state, made, len(made))).signs
    expected = 1 / (1 + exp(-epsilon * total / 2))
    assert abs((drawn > 0).mean() - expected) < 4 * sqrt(expected * (1 - expected) / 20_000) + 1e-9
