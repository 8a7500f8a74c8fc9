"""The attack by the orbit: it names the canary, nothing where there is none, and no more than
epsilon allows.
"""

from math import exp, log

import numpy as np
import pytest
import torch

from fedseed import FeedSign, Orbit
from fedseed.errors import RecipeError
from fedseed.methods.feedsign import Votes
from fedseed.recipe.reading import read_recipe
from fedseed_papers.audits import by_orbit
from fedseed_papers.audits.canaries import Planting
from fedseed_papers.audits.guessing import rank
from support.rounds import answers
from support.zeroth_order import LAYOUT, OBJECTIVE, QUICK, Federation, data, model

CANDIDATES, COPIES, ROUNDS = 20, 20, 80


def candidates():
    """Pictures of noise, each with a class."""
    drawn = torch.Generator().manual_seed(7)
    return [
        (row, torch.tensor(number % 3))
        for number, row in enumerate(torch.randn(CANDIDATES, 10, generator=drawn))
    ]


def attacked(method, planted, tmp_path, rounds=ROUNDS, per_round=3):
    """Scores by the orbit of a run whose second client has the canary (None: nobody) in half of its
    40 examples.
    """
    plan = Planting(1, range(COPIES), candidates())
    train, _ = data(3)
    settings = {"rounds": rounds, "seed": 3, "per_round": per_round}
    known = Federation(model(), train, method, OBJECTIVE, **settings)
    if planted is not None:
        train[1] = [plan.candidates[planted]] * COPIES + train[1][COPIES:]
    Federation(model(), train, method, OBJECTIVE, **settings, out=tmp_path).run()
    records = Orbit.open(tmp_path / "model.orbit").records
    return by_orbit.scores(known, records, plan, 40), records, known


def test_how_likely_a_step_is_follows_from_the_votes():
    """A majority that was another one takes a small chance for each sign that differs.

    The same one is certain.
    """

    def signs(*values):
        return Votes(np.array(values, dtype=np.int8))

    made = answers(
        1,
        [
            (i, 1 / 3, v)
            for i, v in enumerate((signs(1, 1, -1), signs(1, -1, -1), signs(-1, 1, -1)))
        ],
    )
    method, likely = FeedSign(votes_per_round=3), by_orbit.log_chance
    state = method.start(LAYOUT, 7)
    assert likely(method, state, made, signs(1, 1, -1)) == 0.0
    assert likely(method, state, made, signs(1, -1, 1)) == pytest.approx(2 * log(by_orbit.UNLIKELY))
    private = FeedSign(votes_per_round=3, epsilon=0.5)  # sums 1, 1, -3
    expected = -sum(log(1 + exp(-0.25 * against)) for against in (1, -1, 3))
    assert likely(private, state, made, signs(1, -1, -1)) == pytest.approx(expected)
    for one in (method, private):
        assert (
            likely(one, state, answers(1, []), signs(1, 1, 1))
            == 0.0
            == likely(one, state, made, signs())
        )


def test_votes_name_the_canary(tmp_path, without_pictures):
    """Two of three clients take part in a round, and the candidate's not in all."""
    scores, records, known = attacked(FeedSign(**QUICK), 11, tmp_path, per_round=2)
    # it explains every step; none of the others does
    assert rank(scores, 11) == 1 and scores[11] == 0
    # the attack has followed the whole orbit
    assert known.worker.space.digest() == records[-1].digest


@pytest.mark.long
def test_a_private_draws_odds_are_within_its_epsilon(tmp_path, without_pictures):
    """For every pair of candidates: what DP-FeedSign promises.

    And the odds are told, not made up.
    """
    scores, _, _ = attacked(FeedSign(**QUICK, epsilon=0.01), 4, tmp_path, rounds=40)
    assert 0 < np.ptp(scores) <= 0.01 * 40
    assert scores == pytest.approx(40 * np.log(0.5), abs=0.02 * 40)  # nearly fair coins


@pytest.mark.parametrize(
    ("recipe", "settings", "said"),
    [
        (
            "digits-ferret",
            "rounds=1",
            "--by orbit: how likely a step of ferret is, is not known; take --by model",
        ),
        (
            "digits-feedsign",
            "attack.kind=sign attack.clients=1",
            "--by orbit: what clients of [attack] send",
        ),
        (
            "digits-feedsign",
            "aggregation.name=krum aggregation.liars=1",
            "--by orbit: aggregation.name = ",
        ),
    ],
)
def test_what_can_not_be_reckoned_with_is_refused(recipe, settings, said):
    with pytest.raises(RecipeError) as refused:
        by_orbit.check(read_recipe(recipe, settings.split()))
    assert said in str(refused.value)
