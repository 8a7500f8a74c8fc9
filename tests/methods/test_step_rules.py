"""What a step's coefficients are divided by, given to, and how they decay: against NumPy, and as an
orbit keeps it.
"""

import numpy as np
import pytest
import torch

from fedseed import FeedSign, MeZO, ZOFedSGD
from fedseed.methods.feedsign import Votes
from fedseed.methods.mezo import Estimates
from fedseed.methods.zofedsgd import Projections
from support.rounds import answers, spread
from support.zeroth_order import LAYOUT, data, federation, model

SIZE = 50
EPS = 1e-3


class Steps:
    """A method's steps on 50 weights, beside what they should be in double precision."""

    def __init__(self, method):
        self.method, self.space = method, spread(LAYOUT)
        if method.from_base:
            self.space.keep_base()
        self.state = method.start(LAYOUT, 7)
        self.expected = self.weights.astype(np.float64)

    @property
    def weights(self):
        return self.space.parameters[0].detach().numpy().copy()

    def directions(self):
        """Those of the next step, shape (n, d)."""
        basis, indices = self.method.directions(7), self.method.indices(self.state.steps_done + 1)
        return np.array([basis.direction(k, 0, SIZE) for k in indices], dtype=np.float64)

    def take(self, step):
        self.space.apply(self.method.change(self.state, step))
        self.state = self.method.advance(self.state, step)


def estimates(rho):
    return Estimates((np.asarray(rho) / len(rho)).astype(np.float32))


def test_fzoo():
    """w <- w - eta g / sigma, g = 1 / (eps N) sum_i (l_i - l_0) u_i, sigma^2 = 1 / (N - 1) sum_i
    (l_i - mean)^2.
    """
    method = MeZO(
        estimates=6, estimator="one-point", divide_by="deviation", learning_rate=1e-3, scale=EPS
    )
    steps, rng = Steps(method), np.random.default_rng(0)
    for _ in range(3):
        here, losses = 2.0, 2.0 + 0.05 * rng.normal(size=6)
        g = ((losses - here) / (EPS * 6)) @ steps.directions()
        steps.expected -= 1e-3 * g / np.std(losses, ddof=1)
        steps.take(estimates((losses - here) / EPS))
    np.testing.assert_allclose(steps.weights, steps.expected, atol=2e-5)
    assert np.abs(steps.expected - np.linspace(-1, 1, SIZE)).max() > 0.1


@pytest.mark.parametrize("small_steps", ["nearest", "from-base"])
def test_meazo(small_steps):
    """v <- beta v + (1 - beta) (mean rho)^2.

    W <- w - eta / (sqrt(v / (1 - beta^t)) + zeta) mean(rho z).
    """
    settings = {
        "estimates": 3,
        "divide_by": "scalar",
        "beta2": 0.8,
        "adam_eps": 1e-3,
        "learning_rate": 0.05,
    }
    steps, rng = Steps(MeZO(**settings, small_steps=small_steps)), np.random.default_rng(1)
    v = 0.0
    for t in range(1, 6):
        rho = rng.normal(scale=10.0, size=3)
        v = 0.8 * v + 0.2 * rho.mean() ** 2
        steps.expected -= 0.05 / (np.sqrt(v / (1 - 0.8**t)) + 1e-3) * (rho @ steps.directions() / 3)
        steps.take(estimates(rho))
        if t == 2:
            # nobody answered: no average takes it
            steps.take(Estimates(np.zeros(0, dtype=np.float32)))
    np.testing.assert_allclose(steps.weights, steps.expected, atol=2e-5)
    assert steps.state.steps_done == 6 and steps.state.squares.steps == 5


@pytest.mark.parametrize("optimizer", ["momentum", "nesterov"])
def test_what_is_divided_is_what_the_optimiser_gets(optimizer):
    settings = {
        "divide_by": "deviation",
        "learning_rate": 1e-3,
        "beta1": 0.7,
        "small_steps": "stochastic",
    }
    method = MeZO(**settings, estimates=4, optimizer=optimizer)
    steps, rng, m = Steps(method), np.random.default_rng(2), np.zeros(SIZE)
    for _ in range(4):
        rho = rng.normal(scale=5.0, size=4)
        g = rho @ steps.directions() / 4 / (1e-3 * np.std(rho, ddof=1))
        m = 0.7 * m + g
        steps.expected -= 1e-3 * (m if optimizer == "momentum" else g + 0.7 * m)
        steps.take(estimates(rho))
    np.testing.assert_allclose(steps.weights, steps.expected, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("kind", [MeZO, FeedSign])
def test_adam_rebuilt_from_seeds_is_adam_for_as_long_as_it_remembers(kind):
    several = {"estimates": 2} if kind is MeZO else {"votes_per_round": 2}
    kept, rebuilt = (
        Steps(kind(**several, optimizer=optimizer, horizon=3, learning_rate=0.01, basis="normal"))
        for optimizer in ("adam", "adam-rebuilt")
    )
    for number in range(1, 6):
        for steps in (kept, rebuilt):
            rng = np.random.default_rng(number)
            step = (
                estimates(rng.normal(size=2))
                if kind is MeZO
                else Votes(np.array([1, -1], dtype=np.int8))
            )
            steps.take(step)
            if number == 2:  # nobody answered: nothing to remember
                steps.take(
                    Estimates(np.zeros(0, dtype=np.float32))
                    if kind is MeZO
                    else Votes(np.zeros(0, np.int8))
                )
        assert (kept.weights == rebuilt.weights).all() == (number <= 3)
        assert len(rebuilt.state.window) == min(number, 2)
    assert kept.state.window == () and rebuilt.space._moments is None


@pytest.mark.parametrize("estimator", ["two-point", "one-point"])
def test_hiso(estimator):
    """Whole rounds against the plain algorithm, in double precision: z' = z / sqrt(h), losses and
    steps along z'.
    """
    settings = {
        "estimates": 3,
        "estimator": estimator,
        "learning_rate": 0.05,
        "scale": 1e-2,
        "batch": 40,
    }
    method = MeZO(**settings, basis="normal", optimizer="hiso", beta2=0.8)
    run = federation(method, 1, rounds=6, seed=3)
    net, items = model(torch.float64), data(1)[0][0]
    x, y = torch.stack([x for x, _ in items]).double(), torch.stack([y for _, y in items])
    w = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
    h, basis, start = torch.ones_like(w), method.directions(3), w.clone()

    def loss(at):
        torch.nn.utils.vector_to_parameters(at, net.parameters())
        with torch.no_grad():
            return torch.nn.functional.cross_entropy(net(x), y)

    for number in range(1, 7):
        g = torch.zeros_like(w)
        for k in method.indices(number):
            z = torch.from_numpy(basis.direction(k, 0, len(w))).double() / h.sqrt()
            other, width = (w, 1e-2) if estimator == "one-point" else (w - 1e-2 * z, 2e-2)
            g += (loss(w + 1e-2 * z) - loss(other)) / width * z / 3
        w, h = w - 0.05 * g, 0.8 * h + 0.2 * g * g
    run.run()
    found = torch.nn.utils.parameters_to_vector(run.worker.space.parameters).detach().double()
    assert (w - start).abs().max() > 0.1 and h.max() - h.min() > 0.5
    torch.testing.assert_close(found, w, rtol=0, atol=2e-3)


@pytest.mark.parametrize("kind", [MeZO, FeedSign])
def test_rmsprop_takes_an_estimate_as_a_gradient(kind):
    """v <- beta v + (1 - beta) g^2; w <- w - eta g / (sqrt(v) + eps) (FeedSign, Appendix I.2)."""
    several = {"estimates": 3} if kind is MeZO else {"votes_per_round": 3}
    settings = {"optimizer": "rmsprop", "beta2": 0.9, "adam_eps": 1e-3, "learning_rate": 0.01}
    steps, rng = Steps(kind(**several, **settings, basis="normal")), np.random.default_rng(3)
    v = np.zeros(SIZE)
    for _ in range(5):
        rho = rng.normal(scale=5.0, size=3)
        if kind is FeedSign:
            rho = np.sign(rho)
        g = rho @ steps.directions() / (3 if kind is MeZO else 1)
        v = 0.9 * v + 0.1 * g * g
        steps.expected -= 0.01 * g / (np.sqrt(v) + 1e-3)
        steps.take(estimates(rho) if kind is MeZO else Votes(rho.astype(np.int8)))
    np.testing.assert_allclose(steps.weights, steps.expected, atol=2e-5)


def test_hiso_learns_from_how_several_votes_add_up():
    """z' = z / sqrt(h), g = sum_j f_j z'_j, w <- w - eta g, h <- beta h + (1 - beta) g^2, with the
    votes f_j of two clients, who look along z' of the weights that the steps have made.
    """
    settings = {"votes_per_round": 4, "learning_rate": 0.02, "scale": 1e-2, "batch": 40}
    method = FeedSign(**settings, basis="normal", optimizer="hiso", beta2=0.8)
    steps = Steps(method)
    h, rng = np.ones(SIZE), np.random.default_rng(4)
    for _ in range(5):
        votes = rng.choice([-1, 1], size=4)
        g = votes @ (steps.directions() / np.sqrt(h))
        steps.expected -= 0.02 * g
        h = 0.8 * h + 0.2 * g * g
        steps.take(Votes(votes.astype(np.int8)))
    np.testing.assert_allclose(steps.weights, steps.expected, atol=2e-5)
    assert h.max() - h.min() > 0.5  # it is no number that all entries share
    run = federation(method, rounds=12, evaluate_every=12).run()
    assert run.summary["final"]["loss"] < run.summary["baseline"]["loss"]


def test_own_directions_are_divided_by_what_all_clients_measured():
    method = ZOFedSGD(divide_by="deviation", learning_rate=1e-3, scale=EPS)
    steps, rho = Steps(method), np.array([1.0, -4.0, 2.5])
    indices = np.array([5, 999, 7], dtype=np.uint32)
    basis = method.directions(7)
    z = np.array([basis.direction(int(k), 0, SIZE) for k in indices], dtype=np.float64)
    update = [
        Projections(np.array([r], dtype=np.float32), indices=indices[i : i + 1])
        for i, r in enumerate(rho)
    ]
    steps.take(
        method.aggregate(steps.state, answers(1, [(i, 1 / 3, u) for i, u in enumerate(update)]))
    )
    expected = steps.expected - 1e-3 * (rho @ z / 3) / (EPS * np.std(rho, ddof=1))
    np.testing.assert_allclose(steps.weights, expected, atol=2e-6)
    # one alone has no deviation
    steps.take(method.aggregate(steps.state, answers(2, [(0, 1.0, update[0])])))
    np.testing.assert_allclose(steps.weights, expected, atol=2e-6)


def test_steps_decay_towards_the_base():
    """w - w0 <- (1 - lambda) (w - w0) - eta f z; a step that nobody answered moves nothing."""
    method = FeedSign(votes_per_round=2, decay=0.25, small_steps="from-base", learning_rate=0.1)
    steps, base = Steps(method), np.linspace(-1, 1, SIZE, dtype=np.float32).astype(np.float64)
    for signs in ([1, -1], [1, 1], [], [-1, 1]):
        z = steps.directions()
        if signs:
            steps.expected = base + 0.75 * (steps.expected - base) - 0.1 * np.array(signs) @ z
        steps.take(Votes(np.array(signs, dtype=np.int8)))
        np.testing.assert_allclose(steps.weights, steps.expected, atol=1e-6)
