"""FeedSign: votes, ties, coins, private draws, orbits of one bit a step."""

from math import exp, log, sqrt

import numpy as np
import pytest
import torch

from fedseed import Basis, FeedSign, MeZO, Orbit, ParameterSpace
from fedseed.aggregation import Median
from fedseed.errors import NonFiniteError
from fedseed.federation.messages import Message
from fedseed.methods.feedsign import UNLIKELY, Votes
from fedseed.methods.payload import About
from fedseed.privacy import PrivacySettings
from fedseed.privacy.sign import private_sign
from fedseed.randomness import Domain
from fedseed.randomness.stream import words
from fedseed.training.client import LocalClient
from support.rounds import answers
from support.tiers import mark
from support.zeroth_order import LAYOUT, OBJECTIVE, QUICK, data, federation, model

pytestmark = pytest.mark.usefixtures("without_pictures")


def test_feedsign_with_one_client_follows_the_sign_of_mezos_projections():
    method, reference = FeedSign(**QUICK), MeZO(**QUICK)
    run = federation(method, 1)
    for number in range(1, 30):
        run.coordinator.open(number)
        space = run.worker.space
        client = LocalClient(space, OBJECTIVE, run.items[0], 3, number, 0)
        rho = reference.train(reference.start(space.layout, 3), None, client).scalars[0]
        answer = run.worker.train(run.coordinator.plan(0), 0, run.items[0])
        run.coordinator.receive(answer.message, 0)
        step = run.coordinator.close()
        assert method.decode_step(run.worker.state, Message.decode(step).payload).signs[0] == np.sign(rho)
        run.worker.apply(step)


def test_ten_thousand_feedsign_steps_make_1250_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)  # ten thousand times is half a minute
    from fedseed.orbit import Header, OrbitWriter, Record

    method = FeedSign()
    space = ParameterSpace(model())
    header = Header("m", "0" * 32, "float32", space.layout, method, 1)
    sizes = []
    for steps in (0, 10_000):
        path = tmp_path / f"{steps}.orbit"
        writer = OrbitWriter(path, header)
        signs = np.random.default_rng(0).choice([-1, 1], steps).astype(np.int8)
        for number, sign in enumerate(signs, start=1):
            writer.append(Record(number, Votes(np.array([sign])).encode()))
        writer.close()
        sizes.append(path.stat().st_size)
    assert sizes[1] - sizes[0] == 1250 + 48  # the bits, and one record's frame
    assert sizes[1] < 2000
    orbit = Orbit.open(tmp_path / "10000.orbit")
    state = method.start(space.layout, 1)
    assert [method.decode_step(state, r.payload).signs[0] for r in orbit.records] == list(signs)


def votes(*signs):
    return [(i, 1 / len(signs), Votes(np.array([s], dtype=np.int8))) for i, s in enumerate(signs)]


def test_majority_ties_and_zero_projections():
    method = FeedSign()
    state = method.start(LAYOUT, 7)
    assert method.aggregate(state, answers(1, votes(1, 1, -1))).signs[0] == 1
    assert method.aggregate(state, answers(1, votes(-1, 1, -1))).signs[0] == -1
    coins = [int(method.aggregate(state, answers(t, votes(1, -1))).signs[0]) for t in range(1, 401)]
    assert coins == [int(method.coins(state, t)[0]) for t in range(1, 401)]
    assert abs(sum(coins)) < 4 * sqrt(400)  # fair within 4 standard errors

    class Flat(LocalClient):
        def perturbed_loss(self, basis, k, scale, items):
            return 1.0

    train, _ = data(1)
    for t in range(1, 9):
        client = Flat(ParameterSpace(model()), OBJECTIVE, train[0], 7, t, 0)
        assert method.train(state, None, client).signs[0] == method.coins(state, t)[0]


def several(*clients):
    """Votes of some clients on some directions."""
    return [(i, 1 / len(clients), signs(*one)) for i, one in enumerate(clients)]


def signs(*values):
    return Votes(np.array(values, dtype=np.int8))


def test_only_ties_are_settled_by_coins_whatever_the_rule():
    method = FeedSign(votes_per_round=3)
    state = method.start(LAYOUT, 7)
    tied = set()
    for number in range(1, 20):
        made, coins = several((1, 1, -1), (-1, 1, -1)), method.coins(state, number)
        for rule in (None, Median()):
            found = method.aggregate(state, answers(number, made, rule)).signs
            assert found.tolist() == [coins[0], 1, -1] and found.dtype == np.int8
        tied.add(int(coins[0]))
    assert tied == {1, -1}
    # a median is not a sum: of one vote that is a lie it makes nothing
    made = [(0, 0.2, signs(1, 1, 1)), (1, 0.4, signs(-1, 1, 1)), (2, 0.4, signs(1, -1, -1))]
    assert method.aggregate(state, answers(1, made, Median())).signs.tolist() == [1, 1, 1]
    assert signs(1, -1, 1).with_vector(np.array([0.0, 2.5, -0.1]), About(method, state, "update")).signs.tolist() == [
        1, 1, -1,
    ]  # fmt: skip


def test_how_likely_a_step_is_follows_from_the_votes():
    """A majority that was another one takes a small chance for each sign that differs; the same one is certain."""
    made = answers(1, several((1, 1, -1), (1, -1, -1), (-1, 1, -1)))
    method = FeedSign(votes_per_round=3)
    state = method.start(LAYOUT, 7)
    assert method.log_chance(state, made, signs(1, 1, -1)) == 0.0
    assert method.log_chance(state, made, signs(1, -1, 1)) == pytest.approx(2 * log(UNLIKELY))
    private = FeedSign(votes_per_round=3, epsilon=0.5)  # sums 1, 1, -3
    expected = -sum(log(1 + exp(-0.25 * against)) for against in (1, -1, 3))
    assert private.log_chance(state, made, signs(1, -1, -1)) == pytest.approx(expected)
    for one in (method, private):
        assert one.log_chance(state, answers(1, []), signs(1, 1, 1)) == 0.0 == one.log_chance(state, made, signs())
        assert one.odds is one and one.unsummable is None


def test_what_does_not_go_with_a_private_draw():
    assert FeedSign().incomparable is None
    assert "epsilon = 0.5: the private draw is made of the sum" in FeedSign(epsilon=0.5).incomparable
    settings = PrivacySettings(level="client", clip=1.0, noise=1.0)
    assert "set method.epsilon" in FeedSign().unprotected(settings)
    assert "method.epsilon = 0.5 is DP-FeedSign" in FeedSign(epsilon=0.5).unprotected(settings)


def test_coins_are_the_streams():
    """Old runs' ties are settled by them: the lowest bits of the step's words."""
    for votes, number in ((1, 1), (1, 2), (3, 9), (21, 5)):
        method = FeedSign(votes_per_round=votes)
        drawn = words(7, Domain.COIN, 0, number << 14, 6).reshape(-1)[:votes]
        coins = method.coins(method.start(LAYOUT, 7), number)
        assert coins.tolist() == [1 if int(word) % 2 else -1 for word in drawn] and coins.dtype == np.int8
    assert len(set(coins.tolist())) == 2


def test_a_step_without_votes_is_empty_and_a_private_client_without_examples_votes_its_coins():
    method = FeedSign(votes_per_round=3, epsilon=1.0, **QUICK)
    for made in (method, FeedSign(votes_per_round=3)):
        assert made.aggregate(made.start(LAYOUT, 1), answers(1, [])).encode() == b""
    state = method.start(LAYOUT, 7)
    client = LocalClient(ParameterSpace(model()), OBJECTIVE, [], 7, 4, 0)
    assert method.train(state, None, client).signs.tolist() == method.coins(state, 4).tolist()
    with pytest.raises(NonFiniteError):
        FeedSign(**QUICK).train(state, None, client)


def test_as_many_votes_as_there_is_room_for_and_none_that_have_a_size():
    assert FeedSign(votes_per_round=1 << 15, population=2, batch=16).per_step == 1 << 16
    for settings, text in (
        ({"votes_per_round": 1 << 15, "population": 4}, "131,072 votes a step, at most 65,536"),
        ({"divide_by": "deviation", "votes_per_round": 2}, 'divide_by = "deviation": votes have no size'),
        ({"optimizer": "hiso"}, 'optimizer = "hiso" learns from the size'),
        ({"normalize": "ranks"}, 'normalize = "ranks": votes have no scale'),
    ):
        with pytest.raises(ValueError, match=text):
            FeedSign(**settings)


def test_abstaining_clients_and_a_step_that_nobody_voted_on(tmp_path):
    run = federation(FeedSign(**QUICK), out=tmp_path / "run", rounds=6)
    bad = [(x * float("nan"), y) for x, y in run.items[1]]
    run.items[1] = bad
    result = run.run()
    assert {s["client"] for s in result.metrics[-1]["skipped"]} == {"client-1"}
    assert len(result.metrics[-1]["skipped"]) == 6
    silent = federation(FeedSign(**QUICK), out=tmp_path / "silent", rounds=6)
    silent.items = [bad] * 5
    digests = {line["weights_digest"] for line in silent.run().metrics}
    assert len(digests) == 1
    orbit = Orbit.open(tmp_path / "silent" / "model.orbit")
    assert len(orbit) == 6 and orbit.replay(model()) in digests


@pytest.mark.parametrize("epsilon", mark([0.1, 1.0, 4.0], lambda epsilon: epsilon != 1.0))
@pytest.mark.parametrize("total", range(-5, 6))
def test_private_draws_have_the_papers_odds(epsilon, total):
    """20,000 draws from the operating system: the frequency of +1 within 4 standard errors of sigma(eps S / 2)."""
    method = FeedSign(epsilon=epsilon, votes_per_round=20_000)
    signs = [1] * max(total, 0) + [-1] * max(-total, 0) + ([1, -1] if total in (0,) else [])
    made = answers(1, [(i, 0, Votes(np.full(20_000, s, dtype=np.int8))) for i, s in enumerate(signs)])
    drawn = method.aggregate(method.start(LAYOUT, 1), made).signs
    expected = 1 / (1 + exp(-epsilon * total / 2))
    assert abs((drawn > 0).mean() - expected) < 4 * sqrt(expected * (1 - expected) / 20_000) + 1e-9


def test_private_draws_can_not_be_reproduced_from_the_recipe():
    method = FeedSign(epsilon=0.5, votes_per_round=256)
    made = answers(1, [(0, 1, Votes(np.ones(256, dtype=np.int8)))])
    draws = {method.aggregate(method.start(LAYOUT, 1), made).encode() for _ in range(5)}
    assert len(draws) == 5
    assert private_sign(5, 2000.0) == 1 and private_sign(-5, 2000.0) == -1  # no overflow


def test_privacy_spent_is_the_accountants():
    """Rarely more than T eps, and what an independent count gives for few votes; reported in the summary."""
    method = FeedSign(epsilon=0.1)
    one = method.privacy.spent(1)
    assert one["epsilon_pure"] == one["epsilon_per_vote"] == 0.1 and one["epsilon"] <= 0.1
    many = method.privacy.spent(1000)
    assert many["epsilon_pure"] == pytest.approx(100)
    # zero-concentrated DP, another accountant: a pure eps-private draw costs rho <= eps^2 / 2
    upper = 1000 * 0.1**2 / 2 + 2 * sqrt(1000 * 0.1**2 / 2 * np.log(1e5))
    assert 5 < many["epsilon"] < upper
    assert FeedSign().privacy is None
    summary = federation(FeedSign(**QUICK, epsilon=1.0), rounds=5).run().summary
    assert summary["privacy"] == FeedSign(epsilon=1.0).privacy.spent(5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_steps_vanish_to_nearest_but_not_otherwise(dtype):
    """300 FeedSign steps of 5e-6 in one direction of travel, on 16-bit weights near 0.02."""

    def travelled(small_steps):
        net = torch.nn.Linear(100, 100, bias=False, dtype=dtype)
        with torch.no_grad():
            net.weight.fill_(0.02)
        space = ParameterSpace(net)
        method = FeedSign(learning_rate=5e-6, basis="rademacher", small_steps=small_steps, epsilon=None)
        state = method.start(space.layout, 1)
        if method.from_base:
            space.keep_base()
        total = np.zeros(10_000)
        for _ in range(300):
            step = Votes(np.array([1], dtype=np.int8))
            space.apply(method.change(state, step))
            total -= 5e-6 * Basis("rademacher", 1).direction(state.done, 0, 10_000)
            state = method.advance(state, step)
        moved = net.weight.detach().double().numpy().reshape(-1) - float(torch.tensor(0.02, dtype=dtype))
        return float(moved @ total / (total @ total))

    assert travelled("nearest") == 0
    assert travelled("from-base") == pytest.approx(1, abs=0.1)
    assert travelled("stochastic") == pytest.approx(1, abs=0.1)
