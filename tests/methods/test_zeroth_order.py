"""The zeroth-order family on a small real problem (tests/federation/conftest.py has the same one)."""

import copy
from math import exp, sqrt

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import Basis, FedKSeed, FedZO, FeedSign, MeZO, Orbit, ParameterSpace, ZOFedSGD
from fedseed.errors import MessageError, NonFiniteError
from fedseed.federation.messages import Kind, Message
from fedseed.methods.base import Contribution
from fedseed.methods.fedkseed import Accumulated, Pairs
from fedseed.methods.feedsign import Votes, private_sign
from fedseed.methods.zofedsgd import Projections, from_byte, to_byte
from fedseed.objectives.losses import Supervised
from fedseed.runs.assembly import Federation
from fedseed.training.client import LocalClient
from fedseed.weights.layout import Layout, TensorEntry

OBJECTIVE = Supervised(lambda out, y: cross_entropy(out.float(), y, reduction="none"))
LAYOUT = Layout((TensorEntry("w", (50,), "float32"),), (0, 50))
QUICK = {"rate": 0.02, "scale": 1e-3, "batch": 8}


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).to(dtype)


def data(clients=5, dtype=torch.float32):
    g = torch.Generator().manual_seed(1)
    teacher = torch.randn(10, 3, generator=g)
    made = []
    for _ in range(clients + 1):
        x = torch.randn(40, 10, generator=g)
        made.append([(row.to(dtype), (row @ teacher).argmax()) for row in x])
    return made[:-1], made[-1]


def federation(method, clients=5, dtype=torch.float32, **settings):
    train, test = data(clients, dtype)
    defaults = {"rounds": 40, "seed": 3, "evaluation": {"": test}, "evaluate_every": 20}
    return Federation(model(dtype), train, method, OBJECTIVE, **{**defaults, **settings})


METHODS = {
    "mezo": (MeZO(**QUICK, estimates=2), 1),
    "mezo-adam": (MeZO(**QUICK, estimates=2, optimizer="adam"), 1),
    "zo-momentum": (ZOFedSGD(**QUICK, optimizer="momentum"), 5),
    "zo-own": (ZOFedSGD(**QUICK), 5),
    "zo-shared": (ZOFedSGD(**QUICK, seeds="shared"), 5),
    "zo-byte": (ZOFedSGD(**QUICK, seeds="shared", scalars="byte"), 5),
    "feedsign": (FeedSign(**QUICK), 5),
    "feedsign-votes": (FeedSign(**QUICK, votes_per_round=5, basis="hadamard", basis_size=16), 5),
    "fedkseed": (FedKSeed(**QUICK, candidates=64, steps=10), 5),
    "fedkseed-pro": (FedKSeed(**QUICK, candidates=64, steps=10, importance=True, basis="rademacher"), 5),
    "fedzo": (FedZO(**QUICK, steps=10, estimates=2), 5),
}


@pytest.mark.parametrize("name", METHODS)
def test_each_method_learns_and_the_same_recipe_gives_the_same_run(name, tmp_path):
    method, clients = METHODS[name]
    results = [federation(method, clients, out=tmp_path / str(i), rounds=60).run() for i in range(2)]
    summary = results[0].summary
    assert summary["final"]["loss"] < summary["baseline"]["loss"] - 0.02
    assert summary["weights_digest"] == results[1].summary["weights_digest"]
    assert summary["backward_passes"] == 0 and summary["forward_passes"] > 0
    assert (tmp_path / "0" / "probabilities.png").exists() == (name == "fedkseed-pro")
    if not method.dense:
        orbits = [(tmp_path / str(i) / "model.orbit").read_bytes() for i in range(2)]
        assert orbits[0] == orbits[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "small_steps"),
    [
        (name, small_steps)
        for name in ("mezo", "mezo-adam", "zo-momentum", "zo-own", "zo-shared", "feedsign-votes", "fedkseed")
        for small_steps in ("nearest", "stochastic", "from-base")
        # refused by the settings
        if small_steps != "from-base" or name not in ("zo-own", "mezo-adam", "zo-momentum")
    ],
)
def test_the_orbit_is_the_model_at_every_logged_step(name, dtype, small_steps, tmp_path):
    method, clients = METHODS[name]
    method = method.model_copy(update={"small_steps": small_steps})
    result = federation(method, clients, dtype, out=tmp_path / "run", rounds=23, evaluate_every=7).run()
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert len(orbit) == 23 and [r.round for r in orbit.records] == list(range(1, 24))
    for line in result.metrics:
        assert orbit.replay(model(dtype), line["round"]) == line["weights_digest"]


@pytest.mark.parametrize("name", ["zo-own", "zo-shared", "feedsign", "fedkseed"])
def test_clients_that_apply_the_steps_hold_the_same_digest(name):
    """Five workers of their own instead of one shared copy: after every round all have the coordinator run's digest."""
    from fedseed.federation.worker import Worker

    method, clients = METHODS[name]
    run = federation(method, clients, rounds=8, evaluate_every=1)
    workers = [Worker(model(), method, OBJECTIVE, 3) for _ in range(clients)]
    for number in range(1, 9):
        for client in run.coordinator.open(number):
            plan = run.coordinator.plan(client)
            answer = workers[client].train(plan, client, run.items[client])
            run.coordinator.receive(answer.message, client)
        step = run.coordinator.close()
        for worker in workers:
            worker.apply(step)
        assert len({w.space.digest() for w in workers}) == 1
    alone = federation(method, clients, rounds=8, evaluate_every=1)
    alone.worker.train_all = lambda p, c, i: [alone.worker.train(*a) for a in zip(p, c, i, strict=True)]
    assert alone.run().summary["weights_digest"] == workers[0].space.digest()


# -- exact equalities --------------------------------------------------------------------------------------------


def test_zo_fedsgd_with_one_client_is_mezo_bit_for_bit():
    a = federation(ZOFedSGD(**QUICK, seeds="shared"), 1, evaluate_every=1).run()
    b = federation(MeZO(**QUICK), 1, evaluate_every=1).run()
    assert [x["weights_digest"] for x in a.metrics] == [x["weights_digest"] for x in b.metrics]


def test_feedsign_with_one_client_follows_the_sign_of_mezos_projections():
    method, reference = FeedSign(**QUICK), MeZO(**QUICK)
    run = federation(method, 1)
    for number in range(1, 30):
        run.coordinator.open(number)
        space = run.worker.space
        client = LocalClient(space, OBJECTIVE, run.items[0], 3, number, 0, in_place=False)
        rho = reference.train(reference.start(space.layout, 3), None, client).scalars[0]
        answer = run.worker.train(run.coordinator.plan(0), 0, run.items[0])
        run.coordinator.receive(answer.message, 0)
        step = run.coordinator.close()
        assert Votes.decode(Message.decode(step).payload, 1).signs[0] == np.sign(rho)
        run.worker.apply(step)


def test_fedkseed_with_a_pool_as_large_as_the_steps_is_plain_local_training_along_those_seeds():
    """One client, one round, a candidate for each step: the local weights are those of MeZO steps done by hand."""
    method = FedKSeed(**QUICK, candidates=4096, steps=12, basis="normal")
    run = federation(method, 1, rounds=1)
    run.coordinator.open(1)
    plan = run.coordinator.plan(0)
    update = method.decode_update(
        run.coordinator.state, 1, Message.decode(run.worker.train(plan, 0, run.items[0]).message).payload
    )
    space = ParameterSpace(model())
    client = LocalClient(space, OBJECTIVE, run.items[0], 3, 1, 0)
    basis = Basis("normal", run.coordinator.state.pool)
    for j, rho, items in zip(update.indices, update.scalars, client.batches(8), strict=False):
        losses = []
        for side in (1e-3, -1e-3):
            saved = space.snapshot()
            space.add(basis, [1.0], side, first=int(j))  # weights really changed, and put back from a copy
            with torch.no_grad():
                losses.append(float(OBJECTIVE.losses(space.model, items).sum()) / 8)
            space.restore(saved)
        assert rho == pytest.approx((losses[0] - losses[1]) / 2e-3, rel=1e-4, abs=1e-3)
        space.add(basis, [rho], -0.02, first=int(j))
    # the accumulator rebuilds the same model, to float rounding
    rebuilt = ParameterSpace(model())
    rebuilt.keep_base()
    total = np.zeros(4096, dtype=np.float32)
    np.add.at(total, update.indices, update.scalars)
    method.apply(run.coordinator.state, Accumulated(total), rebuilt)
    for a, b in zip(space.parameters, rebuilt.parameters, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-5, atol=1e-6)


# -- sizes -------------------------------------------------------------------------------------------------------


def test_messages_have_exactly_the_published_sizes():
    rng = np.random.default_rng(0)
    method = FedKSeed()
    state = method.start(LAYOUT, 1)
    assert len(method.plan(state, 1).encode()) == 16_388
    pairs = Pairs(rng.integers(0, 4096, 200).astype(np.uint32), rng.normal(size=200).astype(np.float32))
    assert len(pairs.encode()) == 1_600
    back = method.decode_update(state, 1, pairs.encode())
    np.testing.assert_array_equal(back.indices, pairs.indices)
    np.testing.assert_array_equal(back.scalars, pairs.scalars)
    pro = FedKSeed(candidates=1024, importance=True)
    assert len(pro.plan(pro.start(LAYOUT, 1), 1).encode()) == 4 + 8 * 1024
    for votes in (1, 7, 8, 9, 64):
        method = FeedSign(votes_per_round=votes)
        state = method.start(LAYOUT, 1)
        update = Votes(rng.choice([-1, 1], votes).astype(np.int8))
        assert len(update.encode()) == -(-votes // 8)
        step = method.aggregate(state, 1, [Contribution(0, 1.0, method.decode_update(state, 1, update.encode()))])
        assert len(step.encode()) == -(-votes // 8)
        np.testing.assert_array_equal(step.signs, update.signs)
        assert method.plan(state, 1).encode() == b""
    one = np.array([0.5], dtype=np.float32)
    assert len(Projections(one, np.array([7], dtype=np.uint32)).encode()) == 8
    assert len(Projections(one).encode()) == 4 and len(Projections(one, None, 1).encode()) == 1


def test_a_run_reports_those_sizes():
    summary = federation(FedKSeed(**QUICK, candidates=64, steps=10), rounds=3, evaluate_every=1).run().summary
    assert summary["payload_bytes_up"] == 80 and summary["payload_bytes_down"] == 4 + 4 * 64
    summary = federation(FeedSign(**QUICK), rounds=10).run().summary
    assert (
        summary["payload_bytes_up"] == 1 and summary["payload_bytes_down"] == 0.9
    )  # the first has nothing to catch up


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
    assert [Votes.decode(r.payload, 1).signs[0] for r in orbit.records] == list(signs)


# -- votes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["feedsign", "feedsign-votes", "zo-shared"])
def test_votes_from_one_batch_are_the_votes_client_by_client(name):
    method, _ = METHODS[name]
    run = federation(method, 5)
    for number in range(1, 21):
        clients = run.coordinator.open(number)
        plans = [run.coordinator.plan(c) for c in clients]
        items = [run.items[c] for c in clients]
        together = run.worker.train_all(plans, clients, items)
        passes = sum(a.effort.forward_passes for a in together)
        assert passes == 2 * method.per_step  # one pair of passes a direction, whatever the number of clients
        for client, plan, mine, joint in zip(clients, plans, items, together, strict=True):
            alone = run.worker.train(plan, client, mine)
            a, b = (
                method.decode_update(None, number, Message.decode(m).payload) for m in (alone.message, joint.message)
            )
            if name == "zo-shared":
                np.testing.assert_allclose(a.scalars, b.scalars, atol=2e-3)
            else:  # no projection of this run is within float noise of zero
                np.testing.assert_array_equal(a.signs, b.signs)
            run.coordinator.receive(joint.message, client)
        run.worker.apply(run.coordinator.close())


def votes(*signs):
    return [Contribution(i, 1 / len(signs), Votes(np.array([s], dtype=np.int8))) for i, s in enumerate(signs)]


def test_majority_ties_and_zero_projections():
    method = FeedSign()
    state = method.start(LAYOUT, 7)
    assert method.aggregate(state, 1, votes(1, 1, -1)).signs[0] == 1
    assert method.aggregate(state, 1, votes(-1, 1, -1)).signs[0] == -1
    coins = [int(method.aggregate(state, t, votes(1, -1)).signs[0]) for t in range(1, 401)]
    assert coins == [int(method.coins(state, t)[0]) for t in range(1, 401)]
    assert abs(sum(coins)) < 4 * sqrt(400)  # fair within 4 standard errors

    class Flat(LocalClient):
        def perturbed_loss(self, basis, k, scale, items):
            return 1.0

    train, _ = data(1)
    for t in range(1, 9):
        client = Flat(ParameterSpace(model()), OBJECTIVE, train[0], 7, t, 0, in_place=False)
        assert method.train(state, None, client).signs[0] == method.coins(state, t)[0]


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


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("total", range(-5, 6))
def test_private_draws_have_the_papers_odds(epsilon, total):
    """20,000 draws from the operating system: the frequency of +1 within 4 standard errors of sigma(eps S / 2)."""
    method = FeedSign(epsilon=epsilon, votes_per_round=20_000)
    signs = [1] * max(total, 0) + [-1] * max(-total, 0) + ([1, -1] if total in (0,) else [])
    made = [Contribution(i, 0, Votes(np.full(20_000, s, dtype=np.int8))) for i, s in enumerate(signs)]
    drawn = method.aggregate(method.start(LAYOUT, 1), 1, made).signs
    expected = 1 / (1 + exp(-epsilon * total / 2))
    assert abs((drawn > 0).mean() - expected) < 4 * sqrt(expected * (1 - expected) / 20_000) + 1e-9


def test_private_draws_can_not_be_reproduced_from_the_recipe():
    method = FeedSign(epsilon=0.5, votes_per_round=256)
    made = [Contribution(0, 1, Votes(np.ones(256, dtype=np.int8)))]
    draws = {method.aggregate(method.start(LAYOUT, 1), 1, made).encode() for _ in range(5)}
    assert len(draws) == 5
    assert private_sign(5, 2000.0, 0.999) == 1 and private_sign(-5, 2000.0, 0.0) == -1  # no overflow


def test_privacy_spent_is_the_accountants():
    """Rarely more than T eps, and what an independent count gives for few votes; reported in the summary."""
    method = FeedSign(epsilon=0.1)
    one = method.privacy(1)
    assert one["epsilon_pure"] == one["epsilon_per_vote"] == 0.1 and one["epsilon"] <= 0.1
    many = method.privacy(1000)
    assert many["epsilon_pure"] == pytest.approx(100)
    # zero-concentrated DP, another accountant: a pure eps-private draw costs rho <= eps^2 / 2
    upper = 1000 * 0.1**2 / 2 + 2 * sqrt(1000 * 0.1**2 / 2 * np.log(1e5))
    assert 5 < many["epsilon"] < upper
    assert FeedSign().privacy(10) is None
    summary = federation(FeedSign(**QUICK, epsilon=1.0), rounds=5).run().summary
    assert summary["privacy"] == FeedSign(epsilon=1.0).privacy(5)


# -- bad input -----------------------------------------------------------------------------------------------------


def test_impossible_messages_are_refused():
    method = FedKSeed(candidates=64, steps=3)
    state = method.start(LAYOUT, 1)

    def pairs(indices, scalars):
        return Pairs(np.array(indices, dtype=np.uint32), np.array(scalars, dtype=np.float32)).encode()

    method.decode_update(state, 1, pairs([1, 63], [0.5, -3]))
    for data_, text in (
        (pairs([1, 64], [0.5, 1]), "candidate 64: the pool has 64"),
        (pairs([1], [1e38]), "at most 1e"),
        (pairs([1], [np.nan]), "only finite"),
        (pairs([1] * 4, [1] * 4), "32 bytes of pairs"),
        (b"", "0 bytes of pairs"),
        (pairs([1], [1])[:-1], "7 bytes of pairs"),
    ):
        with pytest.raises(MessageError, match=text):
            method.decode_update(state, 1, data_)
    zo = ZOFedSGD()
    for data_ in (Projections(np.array([1e38], dtype=np.float32), np.array([1], dtype=np.uint32)).encode(), b"1234"):
        with pytest.raises(MessageError):
            zo.decode_update(zo.start(LAYOUT, 1), 1, data_)
    sign = FeedSign(votes_per_round=3)
    for data_ in (b"", b"\1\1", b"\xff"):
        with pytest.raises(MessageError, match="votes"):
            sign.decode_update(sign.start(LAYOUT, 1), 1, data_)


@pytest.mark.parametrize("name", ["zo-own", "feedsign", "fedkseed"])
def test_refused_updates_leave_the_run_as_if_the_client_were_silent(name):
    """A 1e38 scalar, a foreign index, a repeat: the step is that of the honest rest."""
    method, _ = METHODS[name]
    steps = []
    for hostile in (False, True):
        run = federation(method, 3)
        run.coordinator.open(1)
        for client in (0, 1):
            answer = run.worker.train(run.coordinator.plan(client), client, run.items[client])
            run.coordinator.receive(answer.message, client)
            if hostile:
                with pytest.raises(MessageError, match="has answered"):
                    run.coordinator.receive(answer.message, client)
        if hostile:
            huge = np.array([1e38], dtype=np.float32)
            bad = {
                "zo-own": Projections(huge, np.array([1], dtype=np.uint32)).encode(),
                "feedsign": b"\xff",
                "fedkseed": Pairs(np.array([999], dtype=np.uint32), huge).encode(),
            }[name]
            with pytest.raises(MessageError):
                run.coordinator.receive(Message(Kind.UPDATE, method.code, 1, 2, bad).encode(), 2)
            assert len(run.coordinator.refused) == 3
        steps.append(run.coordinator.close())
    assert steps[0] == steps[1]


def test_loss_guard_skips_and_counts():
    guarded = FedKSeed(**QUICK, candidates=64, steps=10, clip=1e-9)
    result = federation(guarded, rounds=2, evaluate_every=1).run()
    assert len({line["weights_digest"] for line in result.metrics}) == 1
    assert result.summary["skipped_steps"] == 2 * 5 * 10
    assert "the loss guard allows" in result.metrics[1]["skipped"][0]["reason"]
    half = FedKSeed(**QUICK, candidates=64, steps=10, clip=2e-3)
    summary = federation(half, rounds=2, evaluate_every=1).run().summary
    assert 0 < summary["skipped_steps"] < 100
    with pytest.raises(NonFiniteError):
        half._quotient(float("inf"), float("inf"), 1.0)


# -- settings and details ------------------------------------------------------------------------------------------


def test_importance_follows_equation_13_and_unused_candidates_count_as_average():
    method = FedKSeed(candidates=4, importance=True)
    assert method.probabilities(method.start(LAYOUT, 1).step) == pytest.approx([0.25] * 4)
    step = Accumulated(
        np.zeros(4, dtype=np.float32), np.array([2, 9, 0, 4], dtype=np.float32), np.array([2, 3, 0, 2], dtype=np.uint32)
    )
    psi = np.array([0.0, 1.0, 0.5, 0.5])  # means 1, 3, -, 2: min-max 0, 1, and 0.5 for the unused
    np.testing.assert_allclose(method.probabilities(step), np.exp(psi) / np.exp(psi).sum(), rtol=1e-6)
    plan = method.plan(method.advance(method.start(LAYOUT, 1), step), 2)
    drawn = FedKSeed(candidates=4, importance=True, steps=40_000).draw(plan, 5)
    frequency = np.bincount(drawn, minlength=4) / 40_000
    np.testing.assert_allclose(frequency, plan.probabilities, atol=4 * 0.5 / sqrt(40_000))


def test_fedkseed_accumulates_with_the_clients_shares():
    method = FedKSeed(candidates=4, importance=True, importance_clip=2.0)
    state = method.start(LAYOUT, 1)
    a = Pairs(np.array([1, 1, 3], dtype=np.uint32), np.array([1, 2, 4], dtype=np.float32))
    b = Pairs(np.array([1], dtype=np.uint32), np.array([-8], dtype=np.float32))
    step = method.aggregate(state, 1, [Contribution(0, 0.75, a), Contribution(1, 0.25, b)])
    np.testing.assert_allclose(step.accumulator, [0, 0.75 * 3 - 0.25 * 8, 0, 0.75 * 4])
    np.testing.assert_allclose(step.sums, [0, 1 + 2 + 2, 0, 2])  # |rho| clipped at 2
    np.testing.assert_array_equal(step.uses, [0, 3, 0, 1])
    again = method.decode_step(state, step.encode())
    np.testing.assert_array_equal(again.uses, step.uses)


def test_one_byte_scalars_keep_the_sign_and_eight_percent():
    values = np.concatenate([[0.0], np.geomspace(1e-4, 500, 200), -np.geomspace(1e-4, 500, 200)]).astype(np.float32)
    back = from_byte(to_byte(values))
    np.testing.assert_allclose(back, values, rtol=0.08)
    beyond = from_byte(to_byte(np.array([1e9, -1e9, 1e-30], dtype=np.float32)))
    np.testing.assert_allclose(beyond, [2 ** (47 / 5), -(2 ** (47 / 5)), 0], rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_steps_vanish_to_nearest_but_not_otherwise(dtype):
    """300 FeedSign steps of 5e-6 in one direction of travel, on 16-bit weights near 0.02."""

    def travelled(small_steps):
        net = torch.nn.Linear(100, 100, bias=False, dtype=dtype)
        with torch.no_grad():
            net.weight.fill_(0.02)
        space = ParameterSpace(net)
        method = FeedSign(rate=5e-6, basis="rademacher", small_steps=small_steps, epsilon=None)
        state = method.start(space.layout, 1)
        if method.from_base:
            space.keep_base()
        total = np.zeros(10_000)
        for _ in range(300):
            step = Votes(np.array([1], dtype=np.int8))
            method.apply(state, step, space)
            total -= 5e-6 * Basis("rademacher", 1).direction(state.done, 0, 10_000)
            state = method.advance(state, step)
        moved = net.weight.detach().double().numpy().reshape(-1) - float(torch.tensor(0.02, dtype=dtype))
        return float(moved @ total / (total @ total))

    assert travelled("nearest") == 0
    assert travelled("from-base") == pytest.approx(1, abs=0.1)
    assert travelled("stochastic") == pytest.approx(1, abs=0.1)


def test_stochastic_rounding_hits_the_neighbours_with_the_right_odds():
    from fedseed.weights.space import stochastic

    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    for dtype in ("bfloat16", "float16"):
        torch_dtype = getattr(torch, dtype)
        for value in (0.0200001, -3.14159, 1e-6, 70.3, 0.0):
            rounded = stochastic(np.full(200_000, value, dtype=np.float32), bits, dtype)
            kept = torch.from_numpy(rounded)
            assert torch.equal(kept, kept.to(torch_dtype).float())  # the dtype holds them exactly
            assert len(np.unique(rounded)) <= 2
            spread = float(np.ptp(rounded)) / 2 + 1e-30
            assert abs(rounded.mean(dtype=np.float64) - np.float32(value)) < 4 * spread / sqrt(200_000) + 1e-12


# -- Byzantine clients ---------------------------------------------------------------------------------------------


def test_attacks_bite_and_feedsign_withstands_one_of_five():
    """Random projections of one client of five wreck ZO-FedSGD, not FeedSign; both are named in the metrics."""
    settings = {"rounds": 150, "evaluate_every": 150, "attack": "random", "attackers": [4]}
    honest = {"rounds": 150, "evaluate_every": 150}
    sign, zo = FeedSign(rate=0.01, batch=8), ZOFedSGD(rate=0.01, batch=8, seeds="shared")
    final = {
        (m.name, bool(s.get("attack"))): federation(m, **s).run().summary["final"]["loss"]
        for m in (sign, zo)
        for s in (honest, settings)
    }
    start = federation(sign).run().summary["baseline"]["loss"]
    assert final["feedsign", False] < start and final["zo-fedsgd", False] < start
    assert final["feedsign", True] < start  # still learns
    assert final["zo-fedsgd", True] > start  # destroyed
    result = federation(sign, **settings).run()
    assert result.metrics[-1]["attacked"] == ["client-4"]
    assert result.summary["attack"] == {"kind": "random", "clients": 1}


@pytest.mark.parametrize("kind", ["sign", "random", "noise"])
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
    assert changed == 8 or (name == "feedsign" and changed >= 2)


def test_settings_that_do_not_go_together():
    with pytest.raises(ValueError, match="needs seeds"):
        ZOFedSGD(small_steps="from-base")
    with pytest.raises(ValueError, match="rate"):
        FeedSign(rate=0.0)
    with pytest.raises(ValueError, match='needs optimizer = "sgd"'):
        FeedSign(small_steps="from-base", optimizer="adam")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fedkseed_needs_no_copy_to_go_back_to(dtype):
    """After training the weights are those of before, built anew from the base, which may be in a file."""
    method = FedKSeed(**QUICK, candidates=64, steps=10)
    net = model(dtype)
    with torch.no_grad():
        net[0].weight[0, 0] = -0.0  # adding a zero change would lose this sign
    runs = []
    for spill in (False, True):
        train, _ = data(5, dtype)
        runs.append(Federation(copy.deepcopy(net), train, method, OBJECTIVE, rounds=3, seed=3, spill_base=spill))
    for number in range(1, 4):
        for run in runs:
            before = run.worker.space.digest()
            picked = run.coordinator.open(number)
            for client in picked:
                answer = run.worker.train(run.coordinator.plan(client), client, run.items[client])
                assert run.worker.space.digest() == before
                run.coordinator.receive(answer.message, client)
            run.worker.apply(run.coordinator.close())
            assert run.worker.space.digest() != before
        assert runs[0].worker.space.digest() == runs[1].worker.space.digest()
