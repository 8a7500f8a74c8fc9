"""FedKSeed and FedKSeed-Pro: a pool of seeds, an accumulator, probabilities, the loss guard."""

import itertools
import tracemalloc

import numpy as np
import pytest
import torch

from fedseed import FedKSeed, ParameterSpace
from fedseed.errors import MessageError, NonFiniteError
from fedseed.methods import fedkseed
from fedseed.methods.fedkseed import Accumulated, HalfPairs, Pairs, Pool, probabilities
from fedseed.methods.payload import DecodeContext
from fedseed.randomness import Domain, derive
from fedseed.training.client import LocalClient
from support.memory import LiveBytes
from support.rounds import answers, plan
from support.zeroth_order import LAYOUT, OBJECTIVE, QUICK, data, federation, model

LINEAR = {"kind": "linear", "rounds": 4}


def test_loss_guard_skips_and_counts():
    guarded = FedKSeed(**QUICK, candidates=64, steps=10, clip=1e-9)
    result = federation(guarded, rounds=2, evaluate_every=1).run()
    assert len({line["weights_digest"] for line in result.metrics}) == 1
    assert result.summary["skipped_steps"] == 2 * 5 * 10
    assert "the loss guard allows" in result.metrics[1]["skipped"][0]["reason"]
    half = FedKSeed(**QUICK, candidates=64, steps=10, clip=2e-3)
    summary = federation(half, rounds=2, evaluate_every=1).run().summary
    assert 0 < summary["skipped_steps"] < 100 and half.problem(half.clip, 0.0) is None
    with pytest.raises(NonFiniteError):
        half.quotients([float("inf")], [float("inf")], 1.0)


def test_fedkseed_accumulates_with_the_clients_weights():
    method = FedKSeed(candidates=4, importance=True, importance_clip=2.0)
    state = method.start(LAYOUT, 1)
    a = Pairs(np.array([1, 1, 3], dtype=np.uint32), np.array([1, 2, 4], dtype=np.float32))
    b = Pairs(np.array([1], dtype=np.uint32), np.array([-8], dtype=np.float32))
    step = method.aggregate(state, answers(1, [(0, 0.75, a), (1, 0.25, b)]))
    np.testing.assert_allclose(step.accumulator, [0, 0.75 * 3 - 0.25 * 8, 0, 0.75 * 4])
    np.testing.assert_allclose(step.sums, [0, 1 + 2 + 2, 0, 2])  # |rho| clipped at 2
    np.testing.assert_array_equal(step.uses, [0, 3, 0, 1])
    again = method.decode_step(state, step.encode())
    np.testing.assert_array_equal(again.uses, step.uses)
    state = method.advance(state, step)
    np.testing.assert_array_equal(plan(method, state, 2).probabilities, probabilities(step))


def test_scalars_in_half_precision_take_six_bytes_a_pair_and_are_rounded_to_nearest():
    method = FedKSeed(candidates=8, steps=5, scalars="float16")
    state = method.start(LAYOUT, 1)
    rho = np.array([0.1, -3.0004, 70_000.0, -1e5, 1e-9], dtype=np.float32)
    sent = HalfPairs(np.array([1, 1, 3, 4, 7], dtype=np.uint32), rho)
    assert len(sent.encode()) == 5 * 6
    read = method.decode_update(state, 1, sent.encode())
    assert read.scalars.dtype == np.float32
    assert read.scalars.tolist() == [float(np.float16(0.1)), -3.0, 65504.0, -65504.0, 0.0]
    assert read.indices.tolist() == [1, 1, 3, 4, 7]
    assert sent.content(0, sent.encode()).scalars == 5
    with pytest.raises(MessageError, match="38 bytes are not a whole number of entries of 6"):
        method.decode_update(state, 1, b"0" * 38)
    with pytest.raises(MessageError, match="36 bytes of pairs, but expected 6 to 30, 6 for each"):
        method.decode_update(state, 1, b"\0" * 36)
    infinite = np.array([1], dtype="<u4").tobytes() + np.array([np.inf], dtype="<f2").tobytes()
    with pytest.raises(MessageError, match="finite"):
        method.decode_update(state, 1, infinite)
    assert (
        type(read.with_vector(np.arange(8.0), DecodeContext(method, state, "update", 1)))
        is HalfPairs
    )


def test_a_run_in_half_precision_tunes_as_well_with_a_quarter_less_up():
    runs = {
        scalars: federation(
            FedKSeed(**QUICK, candidates=64, steps=10, scalars=scalars), rounds=3, evaluate_every=3
        ).run()
        for scalars in ("float32", "float16")
    }
    whole, half = (runs[scalars].summary for scalars in ("float32", "float16"))
    assert half["payload_bytes_up"] == whole["payload_bytes_up"] * 6 / 8
    assert half["payload_bytes_down"] == whole["payload_bytes_down"]
    gain = whole["baseline"]["loss"] - whole["final"]["loss"]
    assert gain > 0 and abs(half["final"]["loss"] - whole["final"]["loss"]) < 0.02 * gain
    assert half["weights_digest"] != whole["weights_digest"]


def test_fedkseed_forgets_and_follows_its_schedule():
    """A_j <- (1 - decay) A_j + c_i f rho_j, with the round's factor f.

    Without answers nothing is forgotten.
    """
    method = FedKSeed(candidates=3, decay=0.25, schedule=LINEAR)
    state = method.advance(
        method.start(LAYOUT, 1), Accumulated(np.array([4, 8, 0], dtype=np.float32))
    )
    sent = Pairs(np.array([2], dtype=np.uint32), np.array([10], dtype=np.float32))
    assert method.aggregate(state, answers(3, [(0, 1.0, sent)])).accumulator.tolist() == [3, 6, 5]
    assert method.aggregate(state, answers(3, [])).accumulator.tolist() == [4, 8, 0]
    assert method.from_base
    change = method.change(state, state.step)
    assert change.scale == -method.learning_rate and change.terms[0].basis.seed == state.pool
    assert state.pool == derive(1, Domain.ROUND_SEED) % (1 << 32)


@pytest.mark.long
def test_fedkseed_steps_from_the_base_are_its_steps_with_the_plans_accumulator_in_them():
    """Local weights after some rounds: w0 - eta sum_j A_j z_j, whether summed up or changed step by
    step.

    In 16 bits only what is summed up has its bits: each step is rounded otherwise.
    """
    found = []
    for small_steps, dtype in itertools.product(
        ("nearest", "from-base"), (torch.float32, torch.bfloat16)
    ):
        method = FedKSeed(
            **QUICK, candidates=8, steps=6, small_steps=small_steps, population=2, schedule=LINEAR
        )
        space = ParameterSpace(model(dtype))
        space.keep_base()
        state = method.start(space.layout, 3)
        before = Accumulated(np.linspace(-2, 2, 8, dtype=np.float32))
        state = method.advance(state, before)
        space.apply(method.change(state, before))
        client = LocalClient(space, OBJECTIVE, data(5, dtype)[0][0], 3, 3, 0)
        sent = method.train(state, plan(method, state, 3), client)
        own = before.accumulator.copy()
        # half the rate in round 3, a population of 2
        np.add.at(own, sent.indices, 0.5 * sent.scalars / 2)
        rebuilt = ParameterSpace(model(dtype))
        rebuilt.keep_base()
        rebuilt.apply(method.change(state, Accumulated(own)))
        if dtype == torch.bfloat16:
            assert (space.digest() == rebuilt.digest()) == (small_steps == "from-base")
            continue
        for a, b in zip(space.parameters, rebuilt.parameters, strict=True):
            torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-5, atol=1e-6)
        found.append(sent)
    np.testing.assert_array_equal(found[0].indices, found[1].indices)
    np.testing.assert_allclose(found[0].scalars, found[1].scalars, atol=1e-2)
    assert len(set(found[0].indices)) < 12  # some more than once


def test_fedkseeds_local_steps_have_the_rounds_rate_and_are_rounded_by_numbers_of_the_clients_own():
    class Noted(LocalClient):
        def apply(self, change):
            noted.append((change.scale, change.rounding))

    noted, method = (
        [],
        FedKSeed(**QUICK, candidates=8, steps=3, small_steps="stochastic", schedule=LINEAR),
    )
    client = Noted(ParameterSpace(model()), OBJECTIVE, data(1)[0][0], 3, 2, 4)
    method.train(state := method.start(LAYOUT, 3), plan(method, state, 2), client)
    rate, seed = 0.75 * method.learning_rate, derive(3, Domain.CLIENT_SEED, 2, 4)
    assert noted == [(-rate, (seed, number)) for number in (1, 2, 3)]


def test_a_clients_training_takes_the_memory_of_its_forward_passes():
    """No gradients and no copy of the weights beside the base's, in bytes of tensors and arrays."""
    layers = [torch.nn.Linear(500, 500) for _ in range(8)]  # a megabyte each
    net = torch.nn.Sequential(*layers, torch.nn.Linear(500, 3))
    space = ParameterSpace(net)
    space.keep_base()
    items = [(torch.ones(500), torch.tensor(i % 3)) for i in range(8)]
    method = FedKSeed(**QUICK, candidates=16, steps=3)
    state = method.start(space.layout, 3)

    for _ in range(2):  # the first time what is loaded once counts, too
        tracemalloc.start()
        with LiveBytes([*net.parameters(), *net.buffers()]) as live:
            client = LocalClient(space, OBJECTIVE, items, 3, 1, 0)
            method.train(state, plan(method, state, 1), client)
            client.put_back()
        peak = live.peak + tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 0.4 * space.layout.dense_bytes


# -- what travels: what is read, how large it is, which candidates are drawn how often
# ---------------------------

POOL = FedKSeed(candidates=4, steps=3)
STATE = POOL.advance(
    POOL.start(LAYOUT, 1), Accumulated(np.array([5.0, 0.0, -2.0, 0.0], dtype=np.float32))
)


def pairs(indices, scalars):
    return Pairs(np.array(indices, dtype=np.uint32), np.array(scalars, dtype=np.float32))


def test_pairs_of_the_pool_are_read_and_others_are_not():
    for good in (pairs([3], [1.0]), pairs([0, 3, 3], [1.0, 2.0, -1e6])):
        assert POOL.decode_update(STATE, 2, good.encode()).encode() == good.encode()
    for bad, text in (
        (pairs([], []), "0 bytes of pairs, but expected 8 to 24"),
        (pairs([0] * 4, [1.0] * 4), "32 bytes of pairs"),
        (pairs([0, 4], [1.0, 1.0]), "candidate 4, but the pool has only 4"),
        (pairs([0], [1.1e6]), "1.1e[+]06|1100000"),
    ):
        with pytest.raises(MessageError, match=text):
            POOL.decode_update(STATE, 2, bad.encode())
    wide = FedKSeed(candidates=4, steps=2, population=2, batch=2)
    assert len(wide.decode_update(STATE, 2, pairs([0] * 4, [1.0] * 4).encode()).scalars) == 4
    assert pairs([0, 1], [-7.0, 2.0]).size(DecodeContext(POOL, STATE, "update", 2)) == 7.0


@pytest.mark.parametrize(
    ("after", "size"), [([5, 3, -2, 0], 3), ([5, 0, -2.5, 0], 1), ([5, 0, -2, 0], 0)]
)
def test_a_step_is_as_large_as_the_most_that_it_adds(after, size):
    assert Accumulated(np.float32(after)).size(DecodeContext(POOL, STATE, "step", 2)) == size


def test_pairs_as_vectors_of_the_pool():
    """Of each candidate the sum.

    Of a vector so many of the largest entries as a client may send, or all of them.
    """
    about = DecodeContext(POOL, STATE, "update", 2)
    assert Pairs.words(about) == 4
    assert pairs([3, 0, 3], [1.0, -2.0, 0.5]).vector(about).tolist() == [-2.0, 0.0, 0.0, 1.5]
    whole = Pairs.from_vector(np.array([0.1, 0.0, -3.0, 2.0]), about)
    assert whole.indices.tolist() == [0, 1, 2, 3] and whole.scalars.tolist() == [
        0.1,
        0.0,
        -3.0,
        2.0,
    ]
    few = pairs([0], [1.0]).with_vector(np.array([-4.0, 1.0, 2.0, -3.0]), about)
    assert few.indices.tolist() == [0, 2, 3] and few.scalars.tolist() == [-4.0, 2.0, -3.0]
    assert few.indices.dtype == np.uint32 and few.scalars.dtype == np.float32
    more = DecodeContext(FedKSeed(candidates=8, steps=2, population=3, batch=3), STATE, "update", 2)
    few = pairs([0], [1.0]).with_vector(np.array([1.0, 9.0, 1.0, 8.0, 7.0, -6.0, 5.0, 0.5]), more)
    assert few.indices.tolist() == [0, 1, 3, 4, 5, 6]  # of equal ones the first
    many = DecodeContext(FedKSeed(candidates=40, steps=15), STATE, "update", 2)
    few = pairs([0], [1.0]).with_vector(np.tile([0.5, -1.0], 20), many)
    assert few.indices.tolist() == list(range(1, 31, 2))


def test_candidates_are_drawn_by_the_plans_probabilities(monkeypatch):
    """By numbers uniform on [0, their sum): what ends at a number begins the next.

    Of a plan of zeros the last.
    """
    numbers = np.array(
        [0, 1 << 62, 1 << 63, 0xBFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 5], dtype=np.uint64
    )
    monkeypatch.setattr(
        fedkseed, "draws", lambda seed, count: numbers[:count] if seed == 7 else None
    )
    method, zeros = FedKSeed(candidates=4, steps=3, population=2, batch=2), np.zeros(4, np.float32)
    assert method.draw(Pool(1, zeros, np.float32([0, 1, 0.5, 0.5])), 7).tolist() == [
        1,
        1,
        2,
        2,
        3,
        1,
    ]
    assert method.draw(Pool(1, zeros, zeros), 7).tolist() == [3] * 6
    assert method.draw(Pool(1, zeros, None), 7).tolist() == [0, 0, 0, 3, 3, 1]


@pytest.mark.parametrize(
    ("sums", "uses", "psi"),
    [
        # means 1, 3, none, 2: 0 to 1; their mean for the unused
        ([2, 9, 0, 4], [2, 3, 0, 2], [0.0, 1.0, 0.5, 0.5]),
        ([5, 0, 1, 9], [1, 0, 1, 3], [1.0, 0.5, 0.0, 0.5]),  # used once is used
        ([5, 0, 0, 0], [1, 0, 0, 0], [0.0] * 4),  # there is nothing to tell them by
        ([6, 3, 9, 0], [2, 1, 3, 0], [0.0] * 4),
        ([0, 0, 0, 0], [0, 0, 0, 0], [0.0] * 4),
        ([1, 2, 3, 5], [1, 1, 1, 1], [0.0, 0.25, 0.5, 1.0]),
        ([1, 2, 0, 2], [2, 2, 0, 2], [0.0, 1.0, 2 / 3, 1.0]),  # a span below 1 is one
    ],
)
def test_probabilities_are_those_of_equation_13(sums, uses, psi):
    floats = np.array(sums, dtype=np.float32)
    found = probabilities(
        Accumulated(np.zeros(4, np.float32), floats, np.array(uses, dtype=np.uint32))
    )
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.exp(psi) / np.exp(psi).sum(), rtol=1e-6)
