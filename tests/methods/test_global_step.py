"""Ferret's global optimisers, rates of blocks and seed for all rounds: against NumPy, and as an
orbit keeps them.
"""

from itertools import pairwise

import numpy as np
import pytest

from fedseed import Ferret
from fedseed.errors import MessageError
from fedseed.methods.ferret import Coefficients, CoefficientStep
from fedseed.weights.layout import Layout, TensorEntry
from support.problem import Problem
from support.rounds import plan, spread

BOUNDS = (0, 30, 32, 100)
LAYOUT = Layout((TensorEntry("w", (100,), "float32"),), BOUNDS)
SIZES = np.diff(BOUNDS)


def steps(rounds):
    """Steps of two clients' parts, blocks of very different norms and counts."""
    rng = np.random.default_rng(0)

    def part(seed):
        blocks = zip((6, 2, 4), (1.0, 0.01, 0.1), strict=True)
        return Coefficients(
            seed, tuple((scale * rng.normal(size=k)).astype(np.float32) for k, scale in blocks)
        )

    return [
        CoefficientStep((part(100 * number), part(100 * number + 1))) for number in range(rounds)
    ]


def change_of(method, step):
    """D, in double precision."""
    made = np.zeros(100)
    for part in step.parts:
        basis = method.directions_of(part.seed)
        for gammas, a, b in zip(part.gammas, *zip(*pairwise(BOUNDS), strict=True), strict=True):
            for k, gamma in enumerate(gammas):
                made[a:b] += float(gamma) * basis.direction(k, a, b, b - a)
    return made


def walked(method, rounds=5):
    """The weights after some steps, one of them empty, and the state."""
    where, state = spread(LAYOUT), method.start(LAYOUT, 1)
    for number, step in enumerate(steps(rounds)):
        for each in (step, CoefficientStep(())) if number == 2 else (step,):
            where.apply(method.change(state, each))
            state = method.advance(state, each)
    return where.parameters[0].detach().numpy(), state


@pytest.mark.parametrize("kind", ["average", "momentum", "nesterov", "adam"])
def test_global_optimisers(kind):
    method = Ferret(
        server=kind,
        global_rate=0.3,
        server_beta1=0.8,
        server_beta2=0.7,
        server_eps=0.05,
        directions=10,
    )
    w, m, v = np.linspace(-1, 1, 100), np.zeros(100), np.zeros(100)
    for step in steps(5):
        change = change_of(method, step)
        if kind == "adam":  # FedAdam's: not corrected for its start
            m, v = 0.8 * m + 0.2 * change, 0.7 * v + 0.3 * change**2
            w -= 0.3 * m / (np.sqrt(v) + 0.05)
        else:
            m = 0.8 * m + change
            w -= 0.3 * {"average": change, "momentum": m, "nesterov": change + 0.8 * m}[kind]
    found, state = walked(method)
    np.testing.assert_allclose(found, w, atol=1e-5)
    assert state.steps_done == 5 and state.squares.steps == 0
    drawn = Ferret(server=kind, training={"small_steps": "stochastic"})
    assert drawn.change(drawn.start(LAYOUT, 1), step).rounding == (step.parts[0].seed, 0)


@pytest.mark.parametrize("kind", ["average", "momentum"])
@pytest.mark.parametrize("basis", ["rademacher", "truncated_normal"])
@pytest.mark.parametrize("block_rate", ["adagrad", "rms"])
def test_rates_of_blocks(block_rate, basis, kind):
    """|D_l|^2 / d_l from rho_l K_l |gamma_l|^2, summed over the parts.

    D_l over its root and tau.
    """
    settings = {"global_rate": 0.3, "server_beta2": 0.7, "server_eps": 0.05, "directions": 10}
    method = Ferret(server=kind, block_rate=block_rate, basis=basis, **settings)
    w, m, s = np.linspace(-1, 1, 100), np.zeros(100), np.zeros(3)
    rho = np.array([method.directions_of(0).variance(int(size)) for size in SIZES])
    for t, step in enumerate(steps(5), 1):
        squares = np.array(
            [[len(g) * np.square(g.astype(np.float64)).sum() for g in p.gammas] for p in step.parts]
        )
        squares = rho * squares.sum(axis=0) / SIZES
        s = s + squares if block_rate == "adagrad" else 0.7 * s + 0.3 * squares
        root = np.sqrt(s if block_rate == "adagrad" else s / (1 - 0.7**t))
        change = change_of(method, step) / np.repeat(root + 0.05, SIZES)
        m = 0.9 * m + change
        w -= 0.3 * (change if kind == "average" else m)
    found, state = walked(method)
    np.testing.assert_allclose(found, w, atol=1e-5)
    assert state.squares.steps == 5 and len(state.squares.values) == 3


def test_one_seed_for_all_rounds():
    """Every plan has it, an update of another is refused, and the weights move in the span of its
    directions only.
    """
    method = Ferret(
        directions=20, blocks="one", allocation="size", seeds="fixed", basis="rademacher"
    )
    state = method.start(LAYOUT, 1)
    seeds = {plan(method, state, number).seed for number in range(1, 6)}
    shared = Ferret(seeds="shared")
    assert len(seeds) == 1 and seeds.isdisjoint(
        {plan(shared, state, number).seed for number in range(1, 6)}
    )
    good = Coefficients(seeds.pop(), tuple(np.ones(6, dtype=np.float32) for _ in SIZES))
    for number in (1, 5):
        assert method.decode_update(state, number, good.encode()).seed == good.seed
        with pytest.raises(MessageError, match="the round's seed is"):
            method.decode_update(state, number, Coefficients(good.seed ^ 1, good.gammas).encode())
    problem, far = Problem(), {}
    for kind in ("fixed", "shared"):
        method = problem.ferret(directions=20, allocation="size", seeds=kind, basis="rademacher")
        run = problem.federation(method)
        before = np.concatenate(
            [p.detach().double().reshape(-1).numpy() for p in run.worker.space.parameters]
        )
        run.run()
        moved = (
            np.concatenate(
                [p.detach().double().reshape(-1).numpy() for p in run.worker.space.parameters]
            )
            - before
        )
        basis = method.directions_of(method.round_seed(run.worker.state, 1))
        span = np.array([basis.direction(k, 0, len(moved)) for k in range(20)], dtype=np.float64).T
        rest = moved - span @ np.linalg.lstsq(span, moved, rcond=None)[0]
        far[kind] = np.linalg.norm(rest) / np.linalg.norm(moved)
    assert far["fixed"] < 1e-5 and far["shared"] > 0.1
