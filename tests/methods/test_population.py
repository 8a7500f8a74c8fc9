"""Populations: many directions in two passes over a batch, beside each part moved along its
direction by hand.
"""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedseed import Basis, FedKSeed, FedMeZO, FedZO, FeedSign, MeZO, ParameterSpace, ZOFedSGD
from fedseed.errors import MessageError, NonFiniteError
from fedseed.methods.zofedsgd import ByteProjections, Projections
from fedseed.objectives.losses import Choices
from fedseed.randomness import Domain, derive
from fedseed.tasks.data import Choice
from fedseed.training.client import LocalClient, part_losses
from support.rounds import answers, plan
from support.zeroth_order import LAYOUT, OBJECTIVE, data, model

SETTINGS = {"learning_rate": 0.02, "scale": 0.05, "batch": 8, "population": 4, "basis": "lowrank"}
METHODS = {
    "mezo": MeZO(**SETTINGS, estimates=2),
    "mezo-one-point": MeZO(**SETTINGS, estimates=2, estimator="one-point"),
    "mezo-rademacher": MeZO(**SETTINGS | {"basis": "rademacher"}),
    "zo-own": ZOFedSGD(**SETTINGS, basis_rank=2),
    "zo-shared": ZOFedSGD(**SETTINGS, seeds="shared"),
    "feedsign": FeedSign(**SETTINGS, votes_per_round=2),
    "feedsign-one": FeedSign(**SETTINGS | {"population": 1}),
    "fedkseed": FedKSeed(**SETTINGS, candidates=16, steps=3),
    "fedkseed-one": FedKSeed(**SETTINGS | {"population": 1, "basis": "normal"}, steps=12),
    "fedkseed-hadamard": FedKSeed(
        **SETTINGS | {"basis": "hadamard"}, candidates=16, steps=3, importance=True
    ),
    "fedzo": FedZO(**SETTINGS, steps=2, estimates=2),
    "fedmezo": FedMeZO(**SETTINGS, steps=3),
}


def tuned(method, items, number=1):
    """(a worker's state, the client, its update) in round `number`."""
    space = ParameterSpace(model(), method.blocks)
    if method.from_base:
        space.keep_base()
    state = method.start(space.layout, 3)
    client = LocalClient(space, OBJECTIVE, items, 3, number, 0)
    update = method.train(state, plan(method, state, number), client)
    client.put_back()
    return state, client, update


class ByHand:
    """Steps in double precision, on a model whose weights are really moved."""

    def __init__(self, method, basis, client):
        self.method, self.basis = method, basis
        self.matrices = client.space.layout.matrices
        self.model = model().double()
        self.w = parameters_to_vector(self.model.parameters()).detach()
        self.batches = client.batches(method.batch)

    def direction(self, k):
        made = self.basis.direction(int(k), 0, len(self.w), matrices=self.matrices)
        return torch.from_numpy(made.astype(np.float64))

    def loss(self, items, k=0, scale=0.0):
        vector_to_parameters(self.w + scale * self.direction(k), self.model.parameters())
        x, y = torch.stack([x.double() for x, _ in items]), torch.stack([y for _, y in items])
        return float(cross_entropy(self.model(x), y).detach())

    def step(self, along):
        """rho of each direction, a population after the other; then w <- w - eta mean(rho z)."""
        items, n, rho = next(self.batches), self.method.population, []
        each, one_sided = len(items) // n, getattr(self.method, "estimator", "") == "one-point"
        for number, k in enumerate(along):
            part = items[number % n * each :][:each]
            plus, minus = self.loss(part, k, 0.05), self.loss(part, k, 0.0 if one_sided else -0.05)
            rho.append((plus - minus) / (0.05 if one_sided else 0.1))
        moved = sum(r * self.direction(k) for r, k in zip(rho, along, strict=True))
        self.w = self.w - self.method.learning_rate * moved / len(along)
        return np.array(rho)


@pytest.mark.parametrize("name", METHODS)
def test_an_update_is_what_each_part_says_of_its_direction(name):
    """Also of later local steps, which start from where the ones before went.

    And the step takes their mean.
    """
    method = METHODS[name]
    state, client, update = tuned(method, data()[0][0])
    steps, times = (
        getattr(method, "steps", 1),
        getattr(method, "estimates", getattr(method, "votes_per_round", 1)),
    )
    one_sided = getattr(method, "estimator", "") == "one-point"
    # one-point estimates have one at w in common
    passes = steps * (times + 1 if one_sided else 2 * times)
    assert client.cost.forward_passes == passes and client.cost.skipped_steps == 0
    basis = plan(method, state, 1).seed if name.startswith("fedkseed") else state.seed
    if name in ("fedzo", "fedmezo"):
        basis = derive(3, Domain.CLIENT_SEED, 1, 0)
    hand = ByHand(method, method.directions(basis), client)
    count = method.population * times
    if hasattr(update, "indices") and update.indices is not None:
        first = update.indices
        alongs = (
            first.reshape(steps, -1)
            if len(first) > 1
            else [range(int(first[0]), int(first[0]) + 4)]
        )
    else:
        alongs = [range(t * count, (t + 1) * count) for t in range(steps)]
    rho = np.concatenate([hand.step(along) for along in alongs])
    close = {"atol": 2e-4, "rtol": 1e-4}
    if name.startswith("feedsign"):
        np.testing.assert_array_equal(update.signs, np.sign(rho))
        return
    if name != "fedzo":
        of_rho = {"mezo": 1 / len(rho), "fedmezo": 0.02 / 4}.get(name.partition("-")[0], 1.0)
        np.testing.assert_allclose(update.scalars / of_rho, rho, **close)
    space = ParameterSpace(model())
    space.keep_base()
    space.apply(method.change(state, method.aggregate(state, answers(1, [(0, 1.0, update)]))))
    found, before = (parameters_to_vector(m.parameters()).detach() for m in (space.model, model()))
    torch.testing.assert_close(found.double(), hand.w, atol=2e-5, rtol=0)
    assert float((found - before).abs().max()) > 1e-3


@pytest.mark.long
def test_an_example_with_several_rows_takes_one_pass_too(small):
    """The options of a choice are rows of their own, all at the weights of their example's
    direction.
    """
    language, tokenizer = small[0], small[1]
    space, objective = ParameterSpace(language), Choices(tokenizer)
    options = (" great", " bad", " fine")
    made = [
        Choice(f"{word} film. It was", options[: 2 + i % 2], i % 2) for i, word in enumerate("abcd")
    ]
    items = objective.prepare(made)
    calls = []
    hook = language.register_forward_hook(lambda *_: calls.append(1))
    basis, along = MeZO(basis="lowrank").directions(5), [3, 4, 9, 1]
    (found,) = part_losses(space, objective, [items], basis, along, 0.05)
    assert len(calls) == 1 and space.rows.reason is None
    pairs = zip(items, along, strict=True)
    alone = [part_losses(space, objective, [[item]], basis, [k], 0.05)[0][0] for item, k in pairs]
    assert found == pytest.approx(alone, abs=1e-4)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        (half,) = part_losses(space, objective, [items], basis, along, 0.05)
    hook.remove()
    assert len(calls) == 6 and space.rows.reason is None
    # bfloat16 has 8 bits, so that a logit of 8 to 16 moves by 1/32 when it is rounded, and by more
    # before that, on one processor otherwise than on the next
    assert half == pytest.approx(found, abs=0.2) and half != found


# -- losses that are not usable
# ----------------------------------------------------------------------------------------


def spoilt(at):
    """A client whose first batch has NaN in the parts `at`, of four."""
    items = data()[0][0]
    chosen = next(LocalClient(ParameterSpace(model()), OBJECTIVE, items, 3, 1, 0).batches(8))
    bad = {id(item) for part in at for item in chosen[2 * part :][:2]}
    return [(x * float("nan"), y) if id(item) in bad else item for item in items for x, y in [item]]


def test_a_part_without_a_usable_loss_is_left_out_alone():
    _, client, update = tuned(METHODS["zo-own"], spoilt([1]))
    good = tuned(METHODS["zo-own"], data()[0][0])[2]
    assert update.scalars[1] == 0 and client.cost.skipped_steps == 1
    np.testing.assert_array_equal(update.scalars[[0, 2, 3]], good.scalars[[0, 2, 3]])
    assert len(client.cost.losses) == 6 and np.isfinite(client.cost.losses).all()
    one = FedKSeed(**SETTINGS, candidates=16, steps=1)
    _, _, pairs = tuned(one, spoilt([0, 3]))
    np.testing.assert_array_equal(pairs.indices, tuned(one, data()[0][0])[2].indices[1:3])
    _, _, trace = tuned(FedMeZO(**SETTINGS, steps=1, personal="loss"), spoilt([2]))
    assert np.flatnonzero(trace.scalars == 0).tolist() == [2] and np.isfinite(trace.loss)


def test_without_any_usable_loss_a_client_says_nothing():
    everything = range(4)
    for name in ("zo-own", "mezo-one-point", "feedsign", "fedkseed-hadamard"):
        method = METHODS[name].model_copy(update={"steps": 1} if "fedkseed" in name else {})
        with pytest.raises(
            NonFiniteError, match="none of 4 parts of the batch was usable: loss is nan"
        ):
            tuned(method, spoilt(everything))
    clipped = METHODS["zo-shared"].model_copy(update={"clip": 1e-9})
    with pytest.raises(NonFiniteError, match="the loss guard allows only 1e-09"):
        tuned(clipped, data()[0][0])


# -- messages
# ------------------------------------------------------------------------------------------------


def test_messages_have_a_scalar_for_each_direction_and_lies_are_refused():
    rng = np.random.default_rng(0)
    four = rng.normal(size=4).astype(np.float32)
    own, shared = METHODS["zo-own"], METHODS["zo-shared"]
    state = own.start(LAYOUT, 1)
    sent = Projections(four, indices=np.array([2**32 - 4], dtype=np.uint32))
    assert own.directions(5) == Basis("lowrank", 5, 4096, 2)
    assert (
        len(sent.encode()) == 4 + 16
        and len(ByteProjections(four, indices=sent.indices).encode()) == 4 + 4
    )
    back = own.decode_update(state, 1, sent.encode())
    np.testing.assert_array_equal(back.scalars, four)
    step = own.aggregate(state, answers(1, [(0, 0.25, back), (1, 0.75, back)]))
    np.testing.assert_allclose(
        step.scalars, np.concatenate([four * 0.25, four * 0.75]) / 4, rtol=1e-6
    )
    assert [t.first for t in own.change(state, own.decode_step(state, step.encode())).terms] == [
        2**32 - 4
    ] * 2
    mean = shared.aggregate(
        state, answers(1, [(0, 0.5, Projections(four)), (1, 0.5, Projections(-3 * four))])
    )
    np.testing.assert_allclose(mean.scalars, -four / 4, rtol=1e-6)

    def of_own(scalars, *first):
        return Projections(scalars, indices=np.array(first, dtype=np.uint32)).encode()

    refused = [
        (own, of_own(four, 6), "index of 6: not a multiple of 4"),
        (own, of_own(np.tile(four, 2), 4, 8), "8 projections .* not 4"),
        (own, of_own(four[:1], 4), "8 bytes are not a whole number of entries of 20"),
        (own, of_own(four * 1e7, 4), "at most 1e"),
        (
            shared,
            Projections(np.tile(four, 2)).encode(),
            "8 projections in update of zo-fedsgd, not 4",
        ),
        (shared, b"", "0 projections"),
        (METHODS["feedsign"], b"\1\1", "too long"),
        (METHODS["mezo"], four.tobytes(), "too short"),
    ]
    for method, payload, text in refused:
        with pytest.raises(MessageError, match=text):
            method.decode_update(method.start(LAYOUT, 1), 1, payload)
