from dataclasses import replace
from math import nan

import numpy as np
import pytest
import torch

from fedseed import FedMeZO, Orbit
from fedseed.errors import MessageError
from fedseed.methods.dense import Weights
from fedseed.methods.fedmezo import Rate, Trace, Traces, phi
from fedseed.methods.payload import DecodeContext
from fedseed.randomness import Domain, derive
from fedseed.weights.layout import Layout, TensorEntry
from support.made_up import MadeUp
from support.rounds import answers, plan
from support.tiers import tiered

pytestmark = pytest.mark.usefixtures("without_pictures")

FAST = {"learning_rate": 3e-2, "steps": 6, "batch": 8, "basis": "rademacher"}
LAYOUT = Layout((TensorEntry("w", (2,), "float32"),), (0, 2))
SIGNALS = ["constant", "random", "loss", "loss-5", "update"]


def run(problem, out=None, **settings):
    return problem.federation(FedMeZO(**{**FAST, **settings}), out=out).run()


@tiered(
    {
        "dtype": [torch.float32, torch.bfloat16],
        "basis": ["rademacher", "hadamard", "normal", "truncated_normal"],
    },
    quick=1,
)
def test_exact_pairs_are_the_bits_of_tensors(make_problem, basis, dtype):
    results = [
        run(make_problem(dtype), basis=basis, personal="loss", **travel)
        for travel in ({"travel": "tensors"}, {"travel": "pairs", "combine": "exact"})
    ]
    tensors, pairs = (result.summary for result in results)
    assert tensors["weights_digest"] == pairs["weights_digest"]
    assert [m["weights_digest"] for m in results[0].metrics] == [
        m["weights_digest"] for m in results[1].metrics
    ]
    each = {torch.float32: 4, torch.bfloat16: 2}[dtype]
    assert tensors["payload_bytes_up"] == 4 + each * tensors["parameters"]
    assert pairs["payload_bytes_up"] == 4 + 4 * 6


def test_huge_pairs_are_refused_also_where_the_rate_is_0():
    method = FedMeZO(steps=2, schedule={"kind": "linear", "rounds": 2})
    about = DecodeContext(method, replace(method.start(LAYOUT, 7), rounds_done=4), "update", 5)
    assert Trace.decode(Trace(np.zeros(2, np.float32)).encode(), about).size(about) == 1.0
    with pytest.raises(MessageError, match=r"scalar 1 is .*, but at most 1e"):
        Trace.decode(Trace(np.array([0, 1e-9], np.float32)).encode(), about)


def test_pairs_of_a_population_by_hand():
    """The rate is three quarters in round 2; a step is as large as its estimates.

    Exact ones are taken one by one.
    """
    settings = {
        "steps": 2,
        "population": 2,
        "batch": 2,
        "schedule": {"kind": "linear", "rounds": 4},
    }
    method = FedMeZO(**settings, combine="exact")
    state, unit = replace(method.start(LAYOUT, 7), rounds_done=1), 0.75 * 1e-5 / 2
    a, b = np.float32([-3, 1, 0, 2]) * np.float32(unit), np.float32([2, 0, 0, 0]) * np.float32(unit)
    step = Traces((Trace(a, client=1, weight=0.25), Trace(b, client=2, weight=0.75)))
    assert step.size(DecodeContext(method, state, "step", 2)) == pytest.approx(0.25 * 3 + 0.75 * 2)
    found = [
        (weight, [add.terms[0].first for add in adds])
        for weight, adds in method.change(state, step).branches
    ]
    assert found == [(0.25, [0, 2]), (0.75, [0])]


LOSSES = ((3.0, 1.0), (nan, 1.0), (2.0, 2.5), (1.0, 1.0))  # on both sides of four directions


@pytest.mark.parametrize("population", [1, 2])
@pytest.mark.parametrize("personal", ["loss", "update", "constant"])
@pytest.mark.parametrize("travel", ["pairs", "tensors"])
def test_local_steps_by_hand(travel, personal, population):
    """eta_i f rho / n of each direction, with the round's factor f of 0.75.

    The second has no usable loss.
    """
    small = "stochastic" if travel == "tensors" else "nearest"
    method = FedMeZO(
        steps=4 // population,
        batch=2,
        population=population,
        scale=0.5,
        learning_rate=0.2,
        personal=personal,
        travel=travel,
        small_steps=small,
        schedule={"kind": "linear", "rounds": 4},
    )
    state, client = method.start(LAYOUT, 7), MadeUp(LOSSES)
    rate = 0.75 * (0.2 if personal == "constant" else 0.3)
    update = method.train(state, Rate(None if personal == "constant" else 0.3), client)
    mine = [np.float32(rate * rho / population) for rho in (2.0, 0.0, -0.5, 0.0)]
    seed = derive(7, Domain.CLIENT_SEED, 2, 4)
    expected = [(seed, at, mine[at : at + population], -1.0) for at in (0, 2)]
    applied = [
        (t.basis.seed, t.first, list(t.coefficients), c.scale)
        for c in client.changes
        for t in c.terms
    ]
    assert applied == expected and client.skipped == 1 and "loss is nan" in client.reason
    steps = [(seed, at // population) for at in (0, 2)]
    assert [one.rounding for one in client.changes] == (
        steps if small == "stochastic" else [None, None]
    )
    assert update.loss == (1.75 if personal == "loss" else None)  # of 2, 2.25 and 1
    if travel == "pairs":
        assert update.scalars.tolist() == mine
    else:
        assert update.data == b"weights"


@pytest.mark.parametrize("personal", SIGNALS)
@pytest.mark.parametrize("travel", ["pairs", "tensors"])
def test_a_round_leaves_the_signals_that_the_rates_follow(travel, personal):
    method = FedMeZO(personal=personal, travel=travel, steps=1)
    state = method.start(LAYOUT, 1)
    loss = 1.5 if method.losses_travel else None
    if travel == "pairs":
        made = [Trace(np.float32([at]), loss=loss) for at in (0.25, -0.5)]
    else:
        made = [Weights(np.float32(at).tobytes(), loss=loss) for at in ([1, 2], [5, 5])]
    round_ = answers(1, [(3, 0.75, made[0]), (5, 0.25, made[1])])
    after = method.advance(method.remember(state, round_), method.aggregate(state, round_))
    assert after.rounds_done == 1
    # shares of what lies between two; of pairs, in multiples of their orthogonal directions' length
    far = 5.0 if travel == "tensors" else (0.25**2 + 0.5**2) ** 0.5
    signals = (
        [1.5, 1.5]
        if method.losses_travel
        else [pytest.approx(0.25 * far), pytest.approx(0.75 * far)]
    )
    noted = [] if personal in ("constant", "random") else [[3, signals[0]], [5, signals[1]]]
    assert after.signals.tolist() == noted and state.add_signals({}).signals.shape == (0, 2)
    assert method.remember(after, answers(2, [])).signals is after.signals
    assert len(method.remember(state, round_).signals) == (
        0 if travel == "pairs" else len(after.signals)
    )
    assert state.load_state_dict(after.state_dict()).signals.tolist() == after.signals.tolist()


def test_five_signals_of_a_client_are_remembered():
    state = FedMeZO(personal="loss-5").start(LAYOUT, 1)
    for number in range(7):
        state = state.add_signals({3: float(number)} if number else {3: 0.0, 5: 9.0, 7: 5.0})
    assert state.signals_of(3) == [2.0, 3.0, 4.0, 5.0, 6.0] and state.signals_of(5) == [9.0]
    rate = plan(FedMeZO(personal="loss-5"), state, 8, 7, [3, 5, 7]).rate  # of 4, 9 and 5
    assert rate == pytest.approx(1e-5 * (1 - 0.5 / 3))


def test_a_random_rate_is_the_streams():
    method = FedMeZO(learning_rate=0.2, alpha=0.5, personal="random")
    at = 2 * (derive(7, Domain.RATE, 3, 4) / 2**64) - 1
    assert plan(method, method.start(None, 7), 3, 4, [4]).rate == pytest.approx(
        0.2 * (1 + 0.5 * at), rel=1e-6
    )


def test_the_formula_of_the_rates():
    method = FedMeZO(learning_rate=1e-5, alpha=0.5, personal="loss", travel="tensors")
    assert phi({0: 1.0, 1: 2.0, 2: 6.0}, 2) == 1.0  # mean 3, largest difference 3
    assert phi({0: 1.0, 1: 2.0, 2: 6.0}, 0) == pytest.approx(-2 / 3)
    # all equal; or little apart
    assert phi({0: 4.0, 1: 4.0}, 1) == 0.0 and phi({0: 4.0, 1: 4.5}, 1) == 1.0
    assert phi({5: 7.0}, 5) == 0.0  # one client
    assert phi({0: 1.0, 1: 3.0}, 2) == 0.0  # nothing is known of it
    state = method.start(None, 1)
    assert plan(method, state, 1, 0, [0, 1]).rate == pytest.approx(1e-5)  # nobody has a loss yet
    state = state.add_signals({0: 9.0, 1: 2.0, 2: 6.0}).add_signals({0: 1.0})
    rates = [plan(method, state, 2, client, [0, 1, 2]).rate for client in range(3)]
    np.testing.assert_allclose(
        rates, [1e-5 * (1 - 0.5 * 2 / 3), 1e-5 * (1 - 0.5 / 3), 1.5e-5], rtol=1e-6
    )
    assert plan(method, state, 2, 1, [1]).rate == pytest.approx(1e-5)  # alone in its round


def test_shared_directions_make_one_branch_which_learns_and_is_replayed(problem, tmp_path):
    """A step is as long as one client's pairs, whoever answers."""
    summary = run(problem, tmp_path / "run", seeds="shared").summary
    assert summary["final"]["loss"] < summary["baseline"]["loss"]
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert orbit.replay(problem.model()) == summary["weights_digest"]
    assert {len(record.payload) for record in orbit.records} == {4 + 8 + 4 * 6}
    method = FedMeZO(**FAST, seeds="shared")
    state = method.start(problem.federation(method).header.layout, 1)
    made = [Trace(np.full(6, value, dtype=np.float32)) for value in (1.0, 4.0)]
    step = method.aggregate(state, answers(1, [(0, 0.75, made[0]), (3, 0.25, made[1])]))
    assert step.parts[0].scalars.tolist() == [1.75] * 6
