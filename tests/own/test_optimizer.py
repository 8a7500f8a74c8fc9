"""`fedseed.ZOOptimizer` in a loop of one's own: it tunes, and its orbit is the model."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import FedAvg, FedKSeed, FeedSign, MeZO, Orbit, ParameterSpace, ZOOptimizer
from fedseed.errors import OrbitError, RecipeError
from support.zeroth_order import data, model

CLIENTS, _ = data(1)
INPUTS, TARGETS = torch.stack([x for x, _ in CLIENTS[0]]), torch.stack([y for _, y in CLIENTS[0]])
METHODS = {
    "mezo": {"learning_rate": 0.05},
    "adam": {"learning_rate": 0.01, "optimizer": "adam", "estimates": 2},
    "stochastic": {"learning_rate": 0.05, "small_steps": "stochastic"},
    "from-base": {"learning_rate": 0.05, "small_steps": "from-base"},
    "one-point": {"learning_rate": 0.05, "estimates": 3, "estimator": "one-point"},
    "feedsign": {"method": FeedSign(learning_rate=0.01)},
}


def loop(optimizer, steps, first=0):
    tuned, losses = optimizer.space.model, []
    for at in range(first, steps):
        rows = [(8 * at + i) % len(INPUTS) for i in range(8)]
        losses.append(
            optimizer.step(lambda rows=rows: cross_entropy(tuned(INPUTS[rows]), TARGETS[rows]))
        )
    return losses


def loss(tuned):
    with torch.no_grad():
        return float(cross_entropy(tuned(INPUTS), TARGETS))


@pytest.mark.parametrize("settings", METHODS.values(), ids=METHODS)
def test_it_learns_and_its_orbit_is_the_model(settings, tmp_path):
    tuned, path = model(), tmp_path / "a.orbit"
    before = loss(tuned)
    with ZOOptimizer(tuned, seed=5, orbit=path, **settings) as optimizer:
        losses = loop(optimizer, 150)
    assert loss(tuned) < before - 0.1 and all(map(math.isfinite, losses))
    with pytest.raises(OrbitError, match="was completed by close"):
        loop(optimizer, 1)
    orbit = Orbit.open(path)
    assert (len(orbit), orbit.complete) == (150, True)
    assert (
        orbit.replay(again := model(), check_all=True)
        == optimizer.digest()
        == ParameterSpace(again).digest()
    )


@pytest.mark.parametrize(
    "method", [FeedSign(), MeZO(batch=16), MeZO(estimates=3)], ids=["feedsign", "mezo", "three"]
)
def test_a_closure_is_called_twice_for_each_direction(method):
    tuned, calls = model(), []
    ZOOptimizer(tuned, method).step(
        lambda: calls.append(1) or cross_entropy(tuned(INPUTS), TARGETS)
    )
    assert len(calls) == 2 * getattr(method, "estimates", 1)


def test_a_step_is_the_method_s_own():
    """One direction, two losses, w <- w - eta rho z: as the paper has it."""
    tuned = model()
    optimizer = ZOOptimizer(tuned, learning_rate=0.1, scale=1e-2, seed=7)
    found = loop(optimizer, 1)[0]
    other, sides = model(), []
    space, basis = ParameterSpace(other), MeZO().directions(7)
    for scale in (1e-2, -1e-2):
        with space.perturbed(basis, 0, scale), torch.no_grad():
            sides.append(float(cross_entropy(other(INPUTS[:8]), TARGETS[:8])))
    rho = torch.tensor([(sides[0] - sides[1]) / 2e-2], dtype=torch.float64).float().numpy()
    space.add(basis, rho, scale=-0.1)
    assert found == pytest.approx(sum(sides) / 2) and optimizer.digest() == space.digest()


def test_an_interrupted_loop_goes_on_to_the_same_bits(tmp_path):
    whole = ZOOptimizer(model(), orbit=tmp_path / "whole.orbit", learning_rate=0.05)
    loop(whole, 8)
    whole.close()
    for name, ends in (("killed", False), ("closed", True)):
        path = tmp_path / f"{name}.orbit"
        first = ZOOptimizer(model(), orbit=path, learning_rate=0.05)
        loop(first, 5)
        if ends:
            first.close()
        second = ZOOptimizer(model(), orbit=path, resume=True, learning_rate=0.05)
        assert second.steps == (5 if ends else 4)  # the newest step is kept back until the next one
        loop(second, 8, second.steps)
        second.close()
        assert second.digest() == whole.digest()
        assert path.read_bytes() == (tmp_path / "whole.orbit").read_bytes()


def test_a_loss_that_is_not_finite_is_an_empty_step(tmp_path):
    tuned = model()
    with ZOOptimizer(tuned, orbit=tmp_path / "a.orbit", learning_rate=0.05) as optimizer:
        loop(optimizer, 2)
        before = optimizer.digest()
        assert math.isnan(optimizer.step(lambda: torch.tensor(math.inf)))
        assert optimizer.digest() == before
        loop(optimizer, 2)
    assert Orbit.open(tmp_path / "a.orbit").replay(model()) == optimizer.digest()


def test_modes_and_gradients_are_left_as_they_are():
    tuned = torch.nn.Sequential(
        torch.nn.Linear(10, 16), torch.nn.Dropout(0.9), torch.nn.Linear(16, 3)
    ).train()
    tuned[0].eval()
    seen = []

    def closure():
        seen.append((torch.is_grad_enabled(), tuned[1].training))
        return cross_entropy(tuned(INPUTS), TARGETS)

    ZOOptimizer(tuned, learning_rate=0.05).step(closure)
    assert seen == [(False, False)] * 2 and tuned[1].training and not tuned[0].training
    assert all(p.grad is None for p in tuned.parameters())


def test_what_does_not_fit_is_refused(tmp_path):
    for method in (FedAvg(training={"learning_rate": 0.1}), FedKSeed(candidates=8)):
        with pytest.raises(RecipeError, match="more than one zeroth-order step"):
            ZOOptimizer(model(), method)
    with pytest.raises(RecipeError, match="population"):
        ZOOptimizer(model(), MeZO(batch=4, population=4))
    with pytest.raises(RecipeError, match="settings or a method"):
        ZOOptimizer(model(), MeZO(), learning_rate=0.1)
    with pytest.raises(RecipeError, match="no trainable parameters"):
        ZOOptimizer(model().requires_grad_(False))
    ZOOptimizer(model(), orbit=tmp_path / "a.orbit").close()
    with pytest.raises(OrbitError, match="the orbit exists already"):
        ZOOptimizer(model(), orbit=tmp_path / "a.orbit")
    with pytest.raises(OrbitError, match=r"method\.learning_rate"):
        ZOOptimizer(model(), orbit=tmp_path / "a.orbit", resume=True, learning_rate=0.5)
