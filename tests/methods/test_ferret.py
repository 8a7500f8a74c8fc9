import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import Basis, Ferret, ParameterSpace
from fedseed.errors import MessageError, NonFiniteError
from fedseed.methods import ferret
from fedseed.methods.ferret import Coefficients, CoefficientStep, FerretPlan, parse_bytes
from fedseed.methods.payload import DecodeContext
from fedseed.objectives.losses import Supervised
from fedseed.orbit.header import chosen_settings
from fedseed.randomness import Domain, derive
from fedseed.training.client import LocalClient
from fedseed.training.settings import LocalTraining
from fedseed.weights.layout import Layout, TensorEntry
from support.made_up import MadeUp
from support.rounds import answers, plan, spread
from support.tiers import tiered
from weights.test_space import flat

SIZES = (300, 20, 700, 80)
BOUNDARIES = (0, 300, 320, 1020, 1100)
LAYOUT = Layout((TensorEntry("w", (1100,), "float32"),), BOUNDARIES)


def delta(seed=0):
    """Blocks of very different norms."""
    rng = np.random.default_rng(seed)
    parts = [s * rng.normal(size=n) for s, n in zip((1.0, 5.0, 0.1, 1e-4), SIZES, strict=True)]
    return np.concatenate(parts).astype(np.float32)


def norms(vector):
    return np.array([np.linalg.norm(vector[a:b]) for a, b in itertools.pairwise(BOUNDARIES)])


def coefficients(method, state, basis, delta, where):
    """What a client makes of its change `delta`: gamma_l of each block."""
    counts = method.allocate(state, norms(delta))
    return method.scale_products(state, basis, where.project(delta, basis, counts.tolist()))


BASES = ["normal", "truncated_normal", "rademacher", "hadamard"]


@tiered({"basis": BASES, "allocation": ["norm", "sqrt", "uniform", "size"]})
def test_block_wise_reconstruction_is_unbiased(basis, allocation):
    """Each block's mean over 400 seeds points along Delta with length 1, within 4 standard errors
    (each below 8%).
    """
    method = Ferret(directions=60, basis=basis, allocation=allocation)
    state, target, where = method.start(LAYOUT, 1), delta(), spread(LAYOUT)
    along = []
    for seed in range(400):
        gammas = coefficients(method, state, Basis(basis, seed, size=60), target, where)
        probe = spread(LAYOUT)
        before = probe.parameters[0].detach().clone()
        probe.apply(method.change(state, CoefficientStep((Coefficients(seed, tuple(gammas)),))))
        moved = (before - probe.parameters[0].detach()).numpy().astype(np.float64)
        pairs = [(moved[a:b], target[a:b]) for a, b in itertools.pairwise(BOUNDARIES)]
        along.append([mine @ wanted / (wanted @ wanted) for mine, wanted in pairs])
    error = np.std(along, axis=0) / np.sqrt(400)
    # the fourth block's change, 1e-4 of weights near 1, meets float32 rounding: leave it to the
    # error bar
    assert (error[:3] < 0.08).all()
    assert (np.abs(np.mean(along, axis=0) - 1) < 4 * error + 1e-3).all()


@pytest.mark.parametrize("basis", [*BASES, "lowrank"])
def test_exact_is_the_least_squares_solution(basis, monkeypatch):
    monkeypatch.setattr(ferret, "GRAM_PIECE", 100)  # blocks in several pieces
    monkeypatch.setattr(ferret, "EXACT_LIMIT", 6)  # as many as there are of each block
    method = Ferret(directions=24, basis=basis, allocation="uniform", exact=True)
    state, target = method.start(LAYOUT, 1), delta()
    drawn = Basis(basis, 7, size=24)
    gammas = coefficients(method, state, drawn, target, spread(LAYOUT))
    for gamma, a, b in zip(gammas, BOUNDARIES[:-1], BOUNDARIES[1:], strict=True):
        v = [drawn.direction(k, a, b, b - a, LAYOUT.matrices) for k in range(len(gamma))]
        v = np.stack(v, axis=1).astype(np.float64)
        best = np.linalg.lstsq(v, target[a:b].astype(np.float64), rcond=None)[0]
        np.testing.assert_allclose(gamma, best, rtol=2e-4, atol=2e-4 * np.abs(best).max())


@pytest.mark.parametrize("seeds", ["shared", "per-client"])
def test_aggregate_and_apply_are_the_papers_sum(seeds):
    """w - eta_g sum_i c_i sum_l V_l gamma_l, with counts that differ between clients."""
    method = Ferret(directions=20, basis="hadamard", seeds=seeds, global_rate=0.5)
    state = method.start(LAYOUT, 1)
    rng, made = np.random.default_rng(4), []
    for client, (weight, counts) in enumerate(
        [(0.5, (6, 1, 12, 1)), (0.3, (2, 20, 2, 2)), (0.2, (3, 3, 3, 3))]
    ):
        gammas = tuple(rng.normal(size=count).astype(np.float32) for count in counts)
        made.append((client, weight, Coefficients(9 if seeds == "shared" else client, gammas)))
    step = method.decode_step(state, method.aggregate(state, answers(4, made)).encode())
    where = spread(LAYOUT)
    before = where.parameters[0].detach().clone().double().numpy()
    where.apply(method.change(state, step))
    expected = before.copy()
    for _, weight, update in made:
        for gamma, a, b in zip(update.gammas, BOUNDARIES[:-1], BOUNDARIES[1:], strict=True):
            for k, value in enumerate(gamma):
                v = Basis("hadamard", update.seed, size=20).direction(k, a, b)
                expected[a:b] -= 0.5 * weight * float(value) * v
    np.testing.assert_allclose(where.parameters[0].detach().numpy(), expected, atol=2e-6)


def test_wrong_updates_are_refused():
    method = Ferret(directions=20, allocation="size", seeds="shared")
    state = method.start(LAYOUT, 1)
    seed = plan(method, state, 1).seed
    good = Coefficients(seed, tuple(np.ones(c, dtype=np.float32) for c in (6, 1, 12, 1)))
    method.decode_update(state, 1, good.encode())
    cases = {
        "the round's seed is": Coefficients(seed ^ 1, good.gammas),
        "20 are allowed": Coefficients(seed, (np.ones(21, dtype=np.float32), *good.gammas[1:])),
    }
    for text, update in cases.items():
        with pytest.raises(MessageError, match=text):
            method.decode_update(state, 1, update.encode())
    with pytest.raises(MessageError, match="the round's seed"):
        method.decode_update(state, 2, good.encode())  # an old round's seed
    with pytest.raises(MessageError, match="2 parts"):
        method.decode_step(state, good.encode() * 2)
    with pytest.raises(ValueError, match=r"method\.directions = 3: the model has 4 blocks"):
        Ferret(directions=3, allocation="size").start(LAYOUT, 1)
    assert Ferret(directions=4, allocation="size").start(LAYOUT, 1) == Ferret(directions=3).start(
        LAYOUT, 1
    )


@pytest.mark.parametrize(
    ("norms", "products", "text"),
    [
        (
            [1, np.inf, 1, 1],
            [[1], [1], [1], [1]],
            "the local update is not finite: a weight overflowed",
        ),
        (
            [1, 1, 1, 1],
            [[1], [1, np.nan], [1], [1]],
            "a coefficient is not finite: the local update overflowed",
        ),
    ],
)
def test_one_number_that_is_not_finite_is_enough(norms, products, text):
    method = Ferret(directions=4)
    with pytest.raises(NonFiniteError, match=text):
        method.train(
            method.start(LAYOUT, 1), FerretPlan(None), MadeUp(norms=norms, products=products)
        )


def test_a_schedule_gives_the_round_its_rate_and_the_seed_is_the_clients_or_the_rounds():
    training = {"learning_rate": 0.5, "schedule": {"kind": "linear", "rounds": 4}}
    for seeds, expected in (
        ("per-client", derive(1, Domain.CLIENT_SEED, 3, 2)),
        ("shared", derive(1, Domain.ROUND_SEED, 3)),
        ("fixed", derive(1, Domain.ROUND_SEED, 0)),
    ):
        method = Ferret(directions=4, seeds=seeds, training=training)
        state, client = (
            method.start(LAYOUT, 1),
            MadeUp(norms=[1.0] * 4, products=[[1.0] * 4] * 4, number=2, round=3),
        )
        update = method.train(state, plan(method, state, 3), client)
        assert update.seed == client.bases[0].seed == expected
        assert client.calls == [("train", 0.25)]
        assert (
            (plan(method, state, 3).seed is None)
            == (seeds == "per-client")
            == (method.incomparable is not None)
        )
        assert method.lasting_entries == (seeds == "fixed")
        step = CoefficientStep((update,))
        assert method.change(state, step).rounding is None  # to nearest
        kept = Ferret(directions=4, seeds=seeds, training={**training, "small_steps": "stochastic"})
        for done in range(3):  # what a step's rounding is drawn by differs from step to step
            assert kept.change(state, step).rounding == (expected, done if seeds == "fixed" else 0)
            state = kept.advance(state, step)
            assert state.previous is step


@pytest.mark.parametrize(
    ("allocation", "most"), [("size", None), ("norm", [12] * 4), ("sqrt", [12] * 4)]
)
def test_a_vector_has_a_place_for_each_coefficient_that_any_client_can_have(allocation, most):
    method = Ferret(basis="rademacher", directions=12, allocation=allocation, seeds="shared")
    state = method.start(LAYOUT, 1)
    about = DecodeContext(method, state, "update", 2)
    most = most or method.allocate(state).tolist()
    assert Coefficients.words(about) == sum(most)
    ends = np.cumsum([0, *most])
    update = Coefficients(
        7, (np.float32([5, 0]), np.float32([0]), np.float32([0, 0, 4]), np.float32([-1]))
    )
    vector = update.vector(about)
    assert vector.dtype == np.float64 and len(vector) == sum(most)
    assert {int(at): vector[at] for at in np.flatnonzero(vector)} == {
        0: 5,
        ends[2] + 2: 4,
        ends[3]: -1,
    }
    summed = Coefficients.from_vector(vector, about)
    if allocation == "size":
        assert list(map(len, summed.gammas)) == most  # as many as every client sends
    else:
        # none is empty
        assert [gamma.tolist() for gamma in summed.gammas] == [[5], [0], [0, 0, 4], [-1]]
    assert summed.seed == plan(method, state, 2).seed != 7
    again = update.with_numbers(2 * vector, about)
    assert again.seed == 7 and [gamma.tolist() for gamma in again.gammas] == [
        [10, 0],
        [0],
        [0, 0, 8],
        [-2],
    ]
    assert {gamma.dtype.name for gamma in again.gammas} == {"float32"}
    vector[ends[1] - 1] = 1
    assert len(Coefficients.from_vector(vector, about).gammas[0]) == most[0]


# -- streaming
# ------------------------------------------------------------------------------------------------


def regression():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(9, 7), torch.nn.Tanh(), torch.nn.Linear(7, 7), torch.nn.Linear(7, 2)
    )
    net[2].weight = torch.nn.Parameter(net[2].weight.detach().t())  # not contiguous
    g = torch.Generator().manual_seed(1)
    items = [(torch.randn(9, generator=g), torch.randn(2, generator=g)) for _ in range(40)]
    return net, items, Supervised(lambda out, y: ((out - y) ** 2).mean(-1))


class Tied(torch.nn.Module):
    """An embedding, padded, that is the output layer too, and another that is not."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(11, 6, padding_idx=0)
        self.places = torch.nn.Embedding(5, 6)
        self.hidden = torch.nn.Linear(6, 6)

    def forward(self, ids):
        x = self.words(ids)
        x *= 2.0  # in place
        x = torch.tanh(self.hidden(x + self.places(torch.arange(5))))
        return (x @ self.words.weight.T).mean(1)


def language():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    items = [(torch.randint(0, 4, (5,), generator=g), torch.tensor(i % 11)) for i in range(40)]
    return Tied(), items, Supervised(lambda out, y: cross_entropy(out, y, reduction="none"))


@tiered(
    {
        "problem": [regression, language],
        "basis": ["hadamard", "rademacher", "truncated_normal"],
        "blocks": ["one", "tensor", 3],
        "weight_decay": [0.0, 0.1],
    },
    together=2,
)
def test_streaming_gives_the_same_coefficients(problem, basis, blocks, weight_decay):
    """Gradient by gradient, or from the change at the end: within 1e-4 of the largest.

    The weights are put back.
    """
    training = LocalTraining(
        learning_rate=0.1, steps=6, batch=4, accumulation=1, weight_decay=weight_decay
    )
    gammas = []
    for streaming in (False, True):
        net, items, objective = problem()
        where = ParameterSpace(net, blocks)
        method = Ferret(
            directions=200,
            basis=basis,
            blocks=blocks,
            allocation="size",
            training=training,
            streaming=streaming,
        )
        client = LocalClient(where, objective, items, 1, 1, 0)
        before = where.digest()
        state = method.start(where.layout, 1)
        gammas.append(np.concatenate(method.train(state, plan(method, state, 1), client).gammas))
        assert where.digest() != before and all(p.grad is None for p in where.parameters)
        client.put_back()
        assert where.digest() == before
        assert set(client.cost.seconds) == {"local", "projection"}
    np.testing.assert_allclose(gammas[1], gammas[0], atol=1e-4 * np.abs(gammas[0]).max())
    assert np.abs(gammas[0]).max() > 0


@pytest.mark.parametrize("blocks", ["tensor", 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("allocation", ["norm", "sqrt"])
def test_a_clients_counts_follow_the_norms_of_its_blocks_changes(blocks, dtype, allocation):
    """What a client really sends: K_l = max(2, floor(K |Delta_l| / max |Delta|)), from the weights
    before and after.
    """
    net, items, objective = regression()
    net, items = net.to(dtype), [(x.to(dtype), y.to(dtype)) for x, y in items]
    with torch.no_grad():
        net[3].weight.mul_(8)  # the blocks change by very different lengths
    where = ParameterSpace(net, blocks)
    training = LocalTraining(learning_rate=0.01, steps=3, batch=8, accumulation=1, weight_decay=0.0)
    method = Ferret(
        directions=90,
        basis="truncated_normal",
        blocks=blocks,
        allocation=allocation,
        training=training,
    )
    state = method.start(where.layout, 1)

    client = LocalClient(where, objective, items, 1, 1, 0)
    before = flat(where).double()
    sent = method.train(state, plan(method, state, 1), client)
    moved = (before - flat(where).double()).numpy()
    length = np.array(
        [np.linalg.norm(moved[a:b]) for a, b in itertools.pairwise(where.layout.boundaries)]
    )
    counts = np.array([len(gamma) for gamma in sent.gammas])
    assert len(counts) == len(length) > 2 and length.min() > 0 and length.max() > 1.4 * length.min()
    if allocation == "norm":
        np.testing.assert_array_equal(counts, np.maximum(2, np.floor(90 * length / length.max())))
    else:  # Proposition 2: in proportion to sqrt(|Delta_l| / rho_l), K in all
        share = np.sqrt(
            length / [Basis("truncated_normal").variance(n) for n in where.layout.block_sizes]
        )
        assert counts.sum() == 90
        np.testing.assert_allclose(counts, 90 * share / share.sum(), atol=1)


@pytest.mark.parametrize(
    ("size", "scalars"), [(2800, "bit"), ("28kB", "bit"), ("300 kB", "float32")]
)
def test_a_budget_of_bytes_is_what_a_client_sends(size, scalars):
    assert [parse_bytes(text) for text in ("7B", "28kB", "1.5 MB")] == [7, 28_000, 1_500_000]
    method = Ferret(bytes=size)
    layout = Layout((TensorEntry("w", (100_000,), "float32"),), (0, 100_000))
    state, gamma = method.start(layout, 1), np.ones(method.directions, dtype=np.float32)
    sent = len(method.update_type(method.round_seed(state, 1), (gamma,)).encode())
    assert method.scalars == scalars and method.bytes - 8 <= sent <= method.bytes
    assert (
        Ferret(bytes=size, directions=50).directions == 50
        and Ferret(bytes=size, blocks="tensor").blocks == "tensor"
    )
    assert type(method).model_validate(chosen_settings(method)) == method
