"""What holds for every zeroth-order method: it learns, its orbit is the model, its messages are
checked.
"""

import numpy as np
import pytest
import torch

from fedseed import Basis, FeedSign, MeZO, RandOpt, ZOFedSGD
from fedseed.errors import MessageError
from fedseed.federation.messages import Message, MessageKind
from fedseed.methods.fedkseed import Pairs
from fedseed.methods.zofedsgd import ByteProjections, Projections
from fedseed.objectives.losses import Supervised
from fedseed.training.client import LocalClient
from fedseed.weights.space import ParameterSpace
from support.rounds import plan
from support.tiers import mark
from support.zeroth_order import LAYOUT, METHODS, OBJECTIVE, QUICK, data, federation, model

# rounds, of ten steps each; the other's rounds are one step; tests/methods/test_bits.py has others
LONG = {"fedzo": 8}


@pytest.mark.parametrize("name", mark(["mezo-adam", *LONG], lambda name: name in LONG, "long"))
def test_each_method_learns_and_the_same_recipe_gives_the_same_run(
    name, tmp_path, without_pictures
):
    method, clients = METHODS[name]
    results = [
        federation(method, clients, out=tmp_path / str(i), rounds=LONG.get(name, 40)).run()
        for i in range(2)
    ]
    summary = results[0].summary
    assert summary["final"]["loss"] < summary["baseline"]["loss"] - 0.02
    assert summary["weights_digest"] == results[1].summary["weights_digest"]
    assert summary["backward_passes"] == 0 and summary["forward_passes"] > 0
    if not method.catch_up.replaces:
        orbits = [(tmp_path / str(i) / "model.orbit").read_bytes() for i in range(2)]
        assert orbits[0] == orbits[1]


POPULATION = {"learning_rate": 0.02, "scale": 0.05, "batch": 8, "population": 4, "basis": "lowrank"}
TOGETHER = {
    "feedsign": METHODS["feedsign"][0],
    "zo-shared": METHODS["zo-shared"][0],
    "feedsign-population": FeedSign(**POPULATION, votes_per_round=2),
    "zo-shared-population": ZOFedSGD(**POPULATION, seeds="shared"),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_votes_from_one_batch_are_the_votes_client_by_client(name, monkeypatch):
    """A pair of passes for each population, however many clients.

    Three processes find what one does.
    """
    method = TOGETHER[name]
    run = federation(method, 5)
    for number in range(1, 9):
        clients = run.coordinator.open(number)
        asked = [run.coordinator.plan(c) for c in clients], clients, [run.items[c] for c in clients]
        together = run.worker.train_all(*asked)
        passes = 2 * method.per_step // method.population
        assert sum(a.cost.forward_passes for a in together) == passes
        for client, plan_, mine, joint in zip(clients, asked[0], asked[2], together, strict=True):
            alone = run.worker.train(plan_, client, mine)
            a, b = (
                method.decode_update(run.worker.state, number, Message.decode(m).payload)
                for m in (alone.message, joint.message)
            )
            if name.startswith("zo"):
                np.testing.assert_allclose(a.scalars, b.scalars, atol=2e-3)
                assert alone.cost.losses == pytest.approx(joint.cost.losses, abs=1e-5)
            else:  # no projection of this run is within float noise of zero
                np.testing.assert_array_equal(a.signs, b.signs)
        parts = [run.worker.look(*asked, part, 3) for part in range(3)]
        known = {look: seen for found in parts for look, seen in found.items()}
        assert sum(map(len, parts)) == len(known) == passes
        with monkeypatch.context() as patch:
            patch.setattr(run.worker.objective, "losses", None)  # nothing is measured again
            assert [a.message for a in run.worker.train_all(*asked, known)] == [
                a.message for a in together
            ]
        for client, joint in zip(clients, together, strict=True):
            run.coordinator.receive(joint.message, client)
        run.worker.apply(run.coordinator.close().encode())


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
                "zo-own": Projections(huge, indices=np.array([1], dtype=np.uint32)).encode(),
                "feedsign": b"\xff",
                "fedkseed": Pairs(np.array([999], dtype=np.uint32), huge).encode(),
            }[name]
            with pytest.raises(MessageError):
                run.coordinator.receive(
                    Message(MessageKind.UPDATE, method.code, 1, 2, bad).encode(), 2
                )
        steps.append(run.coordinator.close().encode())
    assert steps[0] == steps[1]


@pytest.mark.parametrize("name", ["zo-shared", "fedkseed"])
def test_autocast_changes_forward_passes_and_no_bit_of_the_weights(name):
    """Losses in bfloat16 give other projections, near those of float32.

    The weights are restored to the bit.
    """
    train, _ = data()
    found = {}

    class Noted(LocalClient):
        def population_losses(self, *arguments):
            losses = super().population_losses(*arguments)
            noted.extend(losses)
            return losses

    for autocast in (None, "bfloat16", "float16"):
        noted = []
        method = METHODS[name][0].model_copy(update={"scale": 0.05, "autocast": autocast})
        space = ParameterSpace(model())
        if method.from_base:
            space.keep_base()
        state = method.start(space.layout, 3)
        client, before = Noted(space, OBJECTIVE, train[0], 3, 1, 0), space.digest()
        method.train(state, plan(method, state, 1), client)
        client.put_back()
        assert space.digest() == before and all(p.dtype == torch.float32 for p in space.parameters)
        found[autocast] = np.array(noted[:2])  # of the first step, at the same weights
    for autocast in ("bfloat16", "float16"):
        assert (found[autocast] != found[None]).any()
        np.testing.assert_allclose(found[autocast], found[None], atol=0.02)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_autocast_sees_each_side_of_a_perturbation_in_a_model_that_has_to_be_moved():
    """A scripted model's weights are changed in place: a cast that was kept from the other side
    would hide it.
    """
    train, _ = data()
    scripted = torch.jit.trace(model(), torch.randn(2, 10))
    client = LocalClient(ParameterSpace(scripted), OBJECTIVE, train[0], 3, 1, 0)
    before = client.space.digest()
    with client.autocast("bfloat16"):
        plus, minus = (
            client.population_losses(Basis("normal", 1), [0], scale, train[0][:8])
            for scale in (0.3, -0.3)
        )
    assert plus != minus and client.space.digest() == before


@pytest.mark.parametrize("kind", [MeZO, RandOpt])  # the second has no population
def test_estimates_of_a_quadratic_are_its_slopes(kind):
    """l(w) = sum_i a_i w_i^2 / 2 along z: two-point z^T A w exactly, one-point z^T A w + eps z^T A
    z / 2.
    """
    curvature, at = torch.tensor([1.0, 4.0, 0.5, 2.0]), torch.tensor([3.0, -1.0, 2.0, 0.5])
    net = torch.nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(at[None])
    # of sqrt(4 a_i) e_i
    rows = Supervised(lambda out, y: (out * out).reshape(len(out), -1).sum(1) / 2)
    # the mean over four is l
    items = [(row, torch.zeros(1)) for row in torch.diag((4 * curvature).sqrt())]
    method = kind(scale=0.25, batch=4, basis="rademacher")
    client = LocalClient(ParameterSpace(net), rows, items, 1, 1, 0)
    basis = method.directions(7)
    for k in range(4):
        z = torch.from_numpy(basis.direction(k, 0, 4)).double()
        slope, bend = float(z @ (curvature * at).double()), float(z * z @ curvature.double())
        assert method.two_point(client, basis, k, items).rho == pytest.approx(slope, abs=1e-4)
        # each on all of them
        one, _ = client.estimates(method, basis, [k, k + 1], items, one_sided=True)
        assert one.rho == pytest.approx(slope + 0.25 * bend / 2, abs=1e-4)


def test_zo_fedsgd_with_one_client_is_mezo_bit_for_bit():
    a = federation(ZOFedSGD(**QUICK, seeds="shared"), 1, evaluate_every=1).run()
    b = federation(MeZO(**QUICK), 1, evaluate_every=1).run()
    assert [x["weights_digest"] for x in a.metrics] == [x["weights_digest"] for x in b.metrics]


def sent(values):
    """What arrives of scalars that travel in a byte each."""
    method = ZOFedSGD(seeds="shared", scalars="byte")
    state = method.start(LAYOUT, 1)
    each = (ByteProjections(np.array([value], dtype=np.float32)).encode() for value in values)
    return np.concatenate([method.decode_update(state, 1, data).scalars for data in each])


def test_one_byte_scalars_keep_the_sign_and_eight_percent():
    values = np.concatenate(
        [[0.0], np.geomspace(1e-4, 500, 200), -np.geomspace(1e-4, 500, 200)]
    ).astype(np.float32)
    np.testing.assert_allclose(sent(values), values, rtol=0.08)
    np.testing.assert_allclose(
        sent([1e9, -1e9, 1e-30]), [2 ** (47 / 5), -(2 ** (47 / 5)), 0], rtol=1e-6
    )
