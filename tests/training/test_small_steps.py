"""Small steps in 16-bit weights: kept in a float32 copy, or on average, or lost.

And said how much was lost.
"""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import FedAvg, Federation, FedMeZO, FedZO, Ferret, ParameterSpace
from fedseed.errors import NonFiniteError, RecipeError
from fedseed.methods.dense import Weights
from fedseed.objectives.losses import Supervised
from fedseed.randomness import Domain, kernels
from fedseed.randomness.kernels.reference import stochastic
from fedseed.recipe.reading import read_recipe
from fedseed.training import steps
from fedseed.training.client import LocalClient
from fedseed.training.settings import OPTIMIZERS, LocalTraining
from support.heard import Heard
from support.rounds import answers, plan
from support.tiers import mark

OBJECTIVE = Supervised(lambda out, y: cross_entropy(out.float(), y, reduction="none"))
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# what "nearest" stands still at: steps below half a unit in the last place of weights from 0.15 to
# 0.3
RATES = {"bfloat16": 2e-3, "float16": 2e-4}
STEPS = 200


def model(dtype=torch.float32, width=48):
    """Weights that bfloat16 holds exactly, so that all dtypes start from the same."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(20, width), torch.nn.Tanh(), torch.nn.Linear(width, 4)
    )
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.sign(p) * (0.15 + 0.15 * torch.rand(p.shape)))
    return net.bfloat16().to(dtype)


def items(dtype=torch.float32, client=0, count=32):
    g = torch.Generator().manual_seed(7)
    teacher = torch.randn(20, 4, generator=g)
    g = torch.Generator().manual_seed(100 + client)
    x = torch.randn(count, 20, generator=g).bfloat16().float()
    return [(row.to(dtype), (row @ teacher).argmax()) for row in x]


def training(dtype="bfloat16", **settings):
    return LocalTraining(
        **{
            "learning_rate": RATES[dtype],
            "steps": STEPS,
            "batch": 32,
            "accumulation": 1,
            **settings,
        }
    )


def client_of(dtype=torch.float32, factor=1.0, count=32):
    """A client whose gradients are `factor` times as long."""
    objective = Supervised(lambda out, y: cross_entropy(out.float(), y, reduction="none") * factor)
    return LocalClient(ParameterSpace(model(dtype)), objective, items(dtype, count=count), 1, 2, 0)


def vector(tensors):
    return np.concatenate([t.detach().double().reshape(-1).numpy() for t in tensors])


def change(client, settings):
    """w_start - w_end of local training, from where the small steps are.

    The client is left trained.
    """
    start = vector(client.space.parameters)
    client.first_order(settings)
    return start - vector(client._finer or client.space.parameters)


def cosine(a, b):
    return float(a @ b / np.sqrt((a @ a) * (b @ b))) if a.any() else 0.0


def distance(a, b):
    """|a - b| / |b|."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.fixture(scope="module")
def exact():
    """The change of 200 float32 steps, at each dtype's rate."""
    return {name: change(client_of(), training(name)) for name in DTYPES}


@pytest.mark.long
@pytest.mark.parametrize("name", DTYPES)
def test_two_hundred_steps_follow_float32_where_nearest_stands_still(name, exact):
    """At the same rate nearest moves not a single weight.

    Master is within 0.5%, stochastic within 30%.
    """
    dtype, wanted = DTYPES[name], exact[name]
    assert not change(client_of(dtype), training(name)).any()
    master = change(client_of(dtype), training(name, small_steps="master"))
    assert cosine(master, wanted) > 0.9999 and distance(master, wanted) < 0.005
    drawn = change(client_of(dtype), training(name, small_steps="stochastic"))
    assert cosine(drawn, wanted) > 0.96 and distance(drawn, wanted) < 0.3
    # as far along float32's change
    assert drawn @ wanted / (wanted @ wanted) == pytest.approx(1, abs=0.05)


@pytest.mark.long
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("streaming", mark([False, True], bool))
def test_ferrets_coefficients_follow_float32s(name, streaming):
    """From the copy, or from weights that were rounded stochastically.

    Streaming sums gradients up in any case.
    """

    def gammas(dtype, small_steps):
        method = Ferret(
            directions=64,
            basis="hadamard",
            blocks="one",
            allocation="size",
            seeds="shared",
            streaming=streaming,
            training=training(name, small_steps=small_steps),
        )
        client = client_of(dtype)
        state, before = method.start(client.space.layout, 1), client.space.digest()
        found = np.concatenate(method.train(state, plan(method, state, 2), client).gammas).astype(
            float
        )
        assert client.space.digest() != before or small_steps == "nearest"
        client.put_back()
        assert client.space.digest() == before
        return found

    wanted = gammas(torch.float32, "nearest")
    master, drawn = (gammas(DTYPES[name], small_steps) for small_steps in ("master", "stochastic"))
    assert cosine(master, wanted) > 0.998 and distance(master, wanted) < 0.05
    assert cosine(drawn, wanted) > (0.99 if streaming else 0.9)
    lost = gammas(DTYPES[name], "nearest")
    # streaming's nearest sees each gradient, but all of them at the weights of the beginning
    assert distance(lost, wanted) > 5 * distance(master, wanted)


FUSED = ("adam", "adamw", "adagrad")


@pytest.mark.parametrize("piece", [1 << 22, 300])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("small_steps", ["master", "stochastic"])
def test_every_optimiser_steps_in_float32(small_steps, name, piece, monkeypatch):
    """Torch's own in float32 on the same gradients, rounded after each step by the stream or never:
    to the bit.
    """
    monkeypatch.setattr(steps, "PIECE", piece)
    g = torch.Generator().manual_seed(3)
    p = torch.nn.Parameter((torch.randn(1000, generator=g) / 8).half())
    space = ParameterSpace(torch.nn.ParameterList([p]))
    settings = training(
        optimizer=name, learning_rate=1e-3, weight_decay=0.01, small_steps=small_steps
    )
    made = steps.steps_of(
        settings, space.vector, steps.Rounder(space.vector, 5), None, adapts=False
    )
    own = torch.nn.Parameter(p.detach().float())
    # a fused step rounds differently from an ordinary one on some processors
    fused = {"fused": True} if small_steps == "master" and name in FUSED else {}
    optimizer = getattr(torch.optim, OPTIMIZERS[name])([own], lr=1e-3, weight_decay=0.01, **fused)
    for number in range(1, 5):
        gradient = (torch.randn(1000, generator=g) / 64).half()
        made.weights[0].grad = gradient.to(made.weights[0].dtype)
        own.grad = gradient.float()
        assert made.step()
        optimizer.step()
        if small_steps == "master":
            assert torch.equal(made.finer[0], own) and torch.equal(p, own.half())
            continue
        words = kernels.load("reference").element_words(5, Domain.ROUNDING, number, 0, 1000)
        with torch.no_grad():
            own.copy_(torch.from_numpy(stochastic(own.detach().numpy(), words, "float16")))
        assert torch.equal(p.float(), own)


@pytest.mark.parametrize("small_steps", ["master", "stochastic"])
@pytest.mark.parametrize("name", DTYPES)
def test_the_same_numbers_give_the_same_bits(small_steps, name):
    """(seed, round, client) decide; other clients before do not matter."""
    dtype = DTYPES[name]
    settings = training(name, steps=5, small_steps=small_steps)

    def sent(space, **numbers):
        client = LocalClient(
            space, OBJECTIVE, items(dtype), **{"seed": 1, "round": 2, "number": 0, **numbers}
        )
        client.first_order(settings)
        found = client.weights()
        assert client.weights() == found  # rounded alike
        client.put_back()
        return found

    first = sent(ParameterSpace(model(dtype)))
    space = ParameterSpace(model(dtype))
    others = [sent(space, **other) for other in ({"number": 1}, {"round": 3}, {"seed": 2})]
    assert sent(space) == first and len({first, *others}) == 4


# -- what clients send, averaged
# ---------------------------------------------------------------------------------------


def averaged(method, dtype, clients=5, rounds=3):
    """w_start - w after rounds of a method, by hand, in which every client takes part."""
    client = client_of(dtype)
    space = client.space
    start, state = vector(space.parameters), method.start(space.layout, 1)
    state = method.advance(state, Weights(space.dense()))
    for number in range(1, rounds + 1):
        made = []
        for i in range(clients):
            one = LocalClient(space, OBJECTIVE, items(dtype, client=i), 1, number, i)
            update = method.train(state, None, one)
            made.append((i, 1 / clients, method.decode_update(state, number, update.encode())))
            one.put_back()
        made = answers(number, made)
        state = method.remember(state, made)
        step = method.decode_step(state, method.aggregate(state, made).encode())
        space.apply(method.change(state, step))
        state = method.advance(state, step)
    return start - vector(space.parameters)


CASES = {
    "average": ("bfloat16", {}),
    "average in float16": ("float16", {}),
    "rate": ("bfloat16", {"global_rate": 0.5}),
    "momentum": ("bfloat16", {"server": "momentum", "global_rate": 0.5}),
}


@pytest.mark.parametrize("case", mark(CASES, lambda case: case != "average"))
@pytest.mark.long
def test_an_average_of_clients_follows_float32(case):
    """Three rounds of five clients, 40 steps each: as far along float32's change within 10%.

    Nearest not a tenth.
    """
    name, server = CASES[case]
    settings = {"steps": 40, "batch": 16}
    wanted = averaged(FedAvg(training=training(name, **settings), **server), torch.float32)
    lost = averaged(FedAvg(training=training(name, **settings), **server), DTYPES[name])
    assert lost @ wanted / (wanted @ wanted) < 0.1
    for small_steps in ("master", "stochastic"):
        found = averaged(
            FedAvg(training=training(name, **settings, small_steps=small_steps), **server),
            DTYPES[name],
        )
        assert found @ wanted / (wanted @ wanted) == pytest.approx(1, abs=0.1)
        assert cosine(found, wanted) > 0.8


# -- gradients that underflow or overflow
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("small_steps", ["master", "stochastic"])
def test_gradients_below_float16_are_kept_by_the_loss_scale(small_steps):
    """Adam does not care how long gradients are, unless they are zero: within 10% of the steps of
    longer ones.
    """

    def moved(factor, loss_scale):
        adam = {"optimizer": "adam", "learning_rate": 1e-3, "steps": 10, "small_steps": small_steps}
        return change(client_of(torch.float16, factor), training(**adam, loss_scale=loss_scale))

    wanted = moved(1.0, "auto")
    assert distance(moved(3e-5, "auto"), wanted) < 0.1
    assert distance(moved(3e-5, 32768.0), wanted) < 0.1
    assert np.linalg.norm(moved(1e-9, 1.0)) == 0  # each of them was zero


@pytest.mark.parametrize("small_steps", ["master", "stochastic"])
def test_a_gradient_that_overflows_changes_nothing_and_is_counted(small_steps):
    settings = training("float16", steps=3, small_steps=small_steps)

    def trained(factor, **more):
        client = client_of(torch.float16, factor)
        found = change(client, settings.model_copy(update=more))
        assert np.isfinite(found).all()
        return client, found

    # the scale is lowered until it fits, and the batch is taken again: no step is lost
    client, found = trained(30.0, learning_rate=RATES["float16"] / 30)
    assert client.cost.skipped_steps == 0 and len(client.cost.losses) == 3
    assert client.cost.backward_passes > 3
    _, fixed = trained(30.0, learning_rate=RATES["float16"] / 30, loss_scale=8.0)
    assert distance(found, fixed) < (0.02 if small_steps == "master" else 1.5)
    with pytest.raises(NonFiniteError, match="finite in none of 3 local steps"):
        trained(30.0, loss_scale=steps.FIRST_SCALE)

    # one batch of three is bad at a fixed scale: that step is left out, the others are taken
    client = client_of(torch.float16, count=96)
    accumulate, weights = client._accumulate_gradient, client.space.parameters

    def overflowing(*arguments):
        loss = accumulate(*arguments)
        if client.cost.backward_passes == 2:
            for w in (*weights, *(client._finer or ())):
                if w.grad is not None:
                    w.grad[..., 0] = float("inf")
        return loss

    client._accumulate_gradient = overflowing
    client.first_order(settings.model_copy(update={"loss_scale": 2.0}))
    assert client.cost.skipped_steps == 1 and len(client.cost.losses) == 3
    assert all(p.isfinite().all() for p in weights)


# -- autocast
# ------------------------------------------------------------------------------------------------


def test_autocast_trains_float32_weights_by_16_bit_passes(exact):
    """200 steps: within 5% of float32's change; what is computed is not what float32 computes."""
    wanted, client, autocast = exact["bfloat16"], client_of(), "float16"
    found = change(client, training(autocast=autocast))
    assert 0 < distance(found, wanted) < 0.05
    assert client.cost.skipped_steps == 0 and all(
        p.dtype == torch.float32 for p in client.space.parameters
    )
    scaled = change(client_of(), training(autocast=autocast, loss_scale=1024.0))
    assert distance(scaled, found) < 0.05


# -- in whole runs: what is lost is said and written down, what is kept is the same anywhere
# ---------------------------

SLOW_STEPS = {"learning_rate": 2e-3, "batch": 8, "accumulation": 2, "steps": 10}


@pytest.mark.parametrize("name", ["fedavg", "ferret"])
def test_a_run_says_once_how_many_weights_moved(name, make_problem, tmp_path, without_pictures):
    problem, training = (
        make_problem(torch.bfloat16),
        LocalTraining(**SLOW_STEPS, small_steps="nearest"),
    )
    method = FedAvg(training=training)
    if name == "ferret":
        method = problem.ferret(training=training, allocation="previous")
    heard = Heard()
    result = problem.federation(method, rounds=3, out=tmp_path / "run", progress=heard).run()
    share = result.metrics[1]["weights_moved"]
    assert 0 < share < 0.5 and not any(
        "weights_moved" in line for line in (result.metrics[0], *result.metrics[2:])
    )
    assert (
        json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1])[
            "weights_moved"
        ]
        == share
    )
    [text] = [text for text in heard.warnings if "16-bit weights moved" in text]
    assert text.startswith(
        f"round 1: {share:.2%} of the 16-bit weights moved in a client's local training"
    )
    assert all(word in text for word in ("method.training.small_steps", '"master"', '"stochastic"'))
    heard = Heard()  # it is said of the first round only, not again after an interruption
    problem.federation(method, rounds=3, out=tmp_path / "run", progress=heard).run(True)
    assert not any("16-bit weights moved" in text for text in heard.warnings)


@pytest.mark.parametrize("kind", ["fedzo", "fedmezo"])
def test_averages_of_zeroth_order_clients_keep_small_steps_too(kind, make_problem):
    """Rounded to nearest at the coordinator, an average of few clients that moved would be what it
    was.
    """

    def moved(small_steps):
        problem = make_problem(torch.bfloat16)
        common = {"learning_rate": 1e-5, "batch": 8, "steps": 5, "small_steps": small_steps}
        method = FedZO(**common) if kind == "fedzo" else FedMeZO(**common, travel="tensors")
        federation = problem.federation(method, rounds=1, per_round=5)
        before = federation.worker.space.snapshot()
        federation.run()
        after = federation.worker.space.parameters
        return (
            sum(int((a != b).sum()) for a, b in zip(before, after, strict=True))
            / federation.worker.space.size
        )

    assert moved("stochastic") > 3 * moved("nearest") > 0


def test_autocast_needs_float32_weights():
    few = ["rounds=1", "task.clients=2", "task.families_per_client=1", "federation.per_round=2"]
    for name, dtype, key in (
        ("fedavg", "float16", "method.training"),
        ("feedsign", "bfloat16", "method"),
    ):
        with pytest.raises(RecipeError, match=rf"{key}\.autocast .*{dtype} already"):
            Federation.from_file(
                f"small-{name}", [*few, f"model.dtype={dtype}", f"{key}.autocast=bfloat16"]
            )
    with pytest.raises(RecipeError, match=r"method\.training.*loss_scale = 4 needs small_steps"):
        read_recipe("small-fedavg", ["method.training.loss_scale=4"])
    assert (
        read_recipe(
            "small-fedavg", ["method.training.small_steps=master"]
        ).method.training.small_steps
        == "master"
    )
