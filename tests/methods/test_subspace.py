"""Training in shared random subspaces: a round beside a plain computation, bits, bytes, orbits."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn.functional import cross_entropy

from fedseed import Federation, Orbit, Subspace
from fedseed.errors import MessageError
from fedseed.federation.messages import Message
from fedseed.methods.payload import DecodeContext
from fedseed.methods.quantised import dequantise, level_count, quantise
from fedseed.methods.subspace import CodedEntries, FloatEntries
from fedseed.objectives.losses import Supervised
from fedseed.randomness.stream import Domain, words
from fedseed.training.settings import LocalTraining
from fedseed.weights.layout import Layout, TensorEntry
from support.problem import Problem
from support.rounds import answers

OBJECTIVE = Supervised(lambda out, y: cross_entropy(out.float(), y, reduction="none"))
RANK, STEPS, RATE = 2, 6, 0.05
TRAINING = LocalTraining(
    optimizer="sgd", learning_rate=RATE, momentum=0.5, steps=STEPS, batch=8, accumulation=1
)
# one matrix with more columns than rows, and one with more rows than columns
WIDE, TALL = (6, 10), (8, 6)


def model():
    torch.manual_seed(5)
    first, second = torch.nn.Linear(10, 6, bias=False), torch.nn.Linear(6, 8, bias=False)
    return torch.nn.Sequential(first, torch.nn.Tanh(), second)


def client_data():
    """Eight examples for each of two clients: every local step is over all of them."""
    generator = torch.Generator().manual_seed(2)
    teacher = torch.randn(10, 8, generator=generator)
    rows = [[torch.randn(10, generator=generator) for _ in range(8)] for _ in range(2)]
    return [[(row, (row @ teacher).argmax()) for row in mine] for mine in rows]


def signs_of(seed, row, start, count):
    """Signs of a row of P, from the words of the stream: a set bit is -1."""
    blocks = words(seed, Domain.SUBSPACE, row, start // 128, -(-(start + count) // 128))
    bits = np.unpackbits(blocks.reshape(-1).astype("<u4").view(np.uint8), bitorder="little")
    first = start % 128
    return 1 - 2 * bits[first : first + count].astype(np.float64)


def projections(seed, count):
    """P_1, ..., P_K of both matrices, shape (r, longer side) each, in double precision."""
    found = []
    for start, longer in ((0, 10), (60, 8)):
        rows = [signs_of(seed, row, start, longer) for row in range(RANK * count)]
        found.append(np.array(rows).reshape(count, RANK, longer) / np.sqrt(RANK))
    return found


def train_plainly(data, seed, count):
    """B_k of both matrices after local training: autograd through W + sum_k B_k P_k in doubles."""
    wide, tall = (layer.weight.detach().double() for layer in (model()[0], model()[2]))
    p_wide, p_tall = (torch.from_numpy(p) for p in projections(seed, count))
    b_wide = torch.zeros(count, 6, RANK, dtype=torch.float64, requires_grad=True)
    b_tall = torch.zeros(count, 6, RANK, dtype=torch.float64, requires_grad=True)
    velocities = [torch.zeros_like(b_wide), torch.zeros_like(b_tall)]
    seen = [torch.zeros(count, dtype=torch.bool) for _ in range(2)]
    x = torch.stack([row for row, _ in data]).double()
    y = torch.stack([label for _, label in data])
    for step in range(STEPS):
        k = step // -(-STEPS // count) % count
        w = wide + sum(b_wide[i] @ p_wide[i] for i in range(count))
        v = tall + sum((b_tall[i] @ p_tall[i]).T for i in range(count))
        loss = cross_entropy(torch.tanh(x @ w.T) @ v.T, y)
        gradients = torch.autograd.grad(loss, [b_wide, b_tall])
        with torch.no_grad():
            for b, gradient, velocity, begun in zip(
                (b_wide, b_tall), gradients, velocities, seen, strict=True
            ):
                velocity[k] = 0.5 * velocity[k] + gradient[k] if begun[k] else gradient[k]
                begun[k] = True
                b[k] -= RATE * velocity[k]
    # as they are sent: (shorter side, K r)
    return [b.detach().permute(1, 0, 2).reshape(6, -1).numpy() for b in (b_wide, b_tall)]


def run_round(method, folder):
    """One round of two clients: (orbit, the state before it, the step's part, updates' bytes)."""
    run = Federation(model(), client_data(), method, OBJECTIVE, rounds=1, seed=11, out=folder)
    sent = []
    for client in run.coordinator.open(1):
        answer = run.worker.train(run.coordinator.plan(client), client, run.items[client])
        sent.append(Message.decode(answer.message).payload)
    Federation(model(), client_data(), method, OBJECTIVE, rounds=1, seed=11, out=folder).run()
    orbit = Orbit.open(folder / "model.orbit")
    state = orbit.header.start()
    (record,) = orbit.records
    (part,) = method.decode_step(state, record.payload).parts
    return orbit, state, part, sent


def brain(value):
    """A number rounded to the nearest bfloat16, by torch."""
    return torch.tensor(value, dtype=torch.float32).bfloat16()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("up", [32, 1])
def test_a_round_is_that_of_a_plain_computation(up, count, tmp_path, without_pictures):
    """Two matrices, two clients; floats to 1e-6, and what is sent in bits bit for bit."""
    method = Subspace(
        rank=RANK,
        subspaces=count,
        up_bits=up,
        down_bits=32,
        training=TRAINING,
        global_rate=0.8,
    )
    orbit, state, part, sent = run_round(method, tmp_path / "run")
    seed = method.subspace_seed(state, 1)
    assert part.seed == seed
    half = 6 * RANK * count
    assert state.group_sizes.tolist() == [half, half]
    mean = np.zeros(2 * half)
    for data, payload in zip(client_data(), sent, strict=True):
        values = np.concatenate([b.ravel() for b in train_plainly(data, seed, count)])
        if up == 32:
            received = method.decode_update(state, 1, payload).entries
            np.testing.assert_allclose(received, values, rtol=0, atol=1e-6)
        else:
            magnitudes = brain([np.abs(group).mean() for group in np.split(values, 2)])
            expected = seed.to_bytes(8, "little")
            expected += magnitudes.view(torch.int16).numpy().astype("<i2").tobytes()
            expected += np.packbits(values >= 0, bitorder="little").tobytes()
            assert payload == expected
            spread = np.repeat(magnitudes.double().numpy(), half)
            values = np.where(values >= 0, spread, -spread)
        mean += values / 2
    np.testing.assert_allclose(part.entries, mean, rtol=0, atol=1e-6)

    # W <- W + eta_g sum_k B_k P_k
    tuned = model()
    orbit.replay(tuned)
    b_wide, b_tall = (b.reshape(6, count, RANK) for b in np.split(part.entries.astype(float), 2))
    p_wide, p_tall = projections(seed, count)
    for layer, change in (
        (0, sum(b_wide[:, k] @ p_wide[k] for k in range(count))),
        (2, sum((b_tall[:, k] @ p_tall[k]).T for k in range(count))),
    ):
        expected = model()[layer].weight.detach().double().numpy() + 0.8 * change
        np.testing.assert_allclose(tuned[layer].weight.detach().numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("magnitudes", ["matrix", "row"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_messages_have_the_bytes_that_are_counted(bits, magnitudes, tmp_path, without_pictures):
    method = Subspace(
        rank=RANK, up_bits=bits, down_bits=bits, magnitudes=magnitudes, training=TRAINING
    )
    _, state, part, sent = run_round(method, tmp_path / "run")
    groups = {"matrix": 2, "row": 12}[magnitudes]
    expected = 8 + 2 * groups + -(-12 * RANK * bits // 8)
    assert [len(payload) for payload in sent] == [expected] * 2
    assert method.update_bytes(state) == expected == len(part.encode())
    update = method.decode_update(state, 1, sent[0])
    assert update.encode() == sent[0]


# -- bits


VALUES = arrays(np.float32, st.integers(3, 40), elements=st.floats(-1e6, 1e6, width=32))


@given(VALUES, st.sampled_from([1, 2, 4, 8]), st.integers(0, 2**64 - 1))
def test_no_number_is_moved_by_more_than_a_level(values, bits, seed):
    sizes = np.array([2, len(values) - 2])
    magnitudes, codes = quantise(values, sizes, bits, seed)
    back = dequantise(magnitudes, codes, sizes, bits)
    assert back.dtype == np.float32 and codes.max() < 2**bits
    spread = np.repeat(magnitudes, sizes)
    if bits == 1:
        assert ((back >= 0) == (values >= 0))[spread > 0].all()
        assert np.array_equal(np.abs(back), spread)
    else:
        assert (np.abs(values) <= spread).all()
        assert (np.abs(back - values) <= spread / level_count(bits) * 1.0001).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounding_is_right_on_average(bits):
    values, sizes = np.array([0.3, -0.11, 0.02, 1.0], dtype=np.float32), np.array([4])
    mean = np.mean(
        [dequantise(*quantise(values, sizes, bits, seed), sizes, bits) for seed in range(4000)],
        axis=0,
    )
    level = 1 / level_count(bits)
    np.testing.assert_allclose(mean, values, atol=4 * level / np.sqrt(4000) + 1e-6)


def test_zeros_stay_zeros():
    values, sizes = np.zeros(5, dtype=np.float32), np.array([5])
    for bits in (1, 2, 4, 8):
        assert not dequantise(*quantise(values, sizes, bits, 1), sizes, bits).any()


# -- what is refused


LAYOUT = Layout((TensorEntry("w", (6, 10), "float32"),), (0, 60))


def payload(method, seed=None, magnitude=0.5):
    state = method.start(LAYOUT, 1)
    seed = method.subspace_seed(state, 1) if seed is None else seed
    made = CodedEntries.coded(seed, np.full(6 * RANK, magnitude, np.float32), state, 1, 0)
    return method, state, bytearray(made.encode())


def test_updates_that_no_client_can_have_made_are_refused():
    method, state, data = payload(Subspace(rank=RANK))
    assert method.decode_update(state, 1, bytes(data)).codes.width == 1
    with pytest.raises(MessageError, match="the round's seed is"):
        method.decode_update(state, 2, bytes(data))
    data[9] |= 0x80
    with pytest.raises(MessageError, match="magnitude 0 is negative"):
        method.decode_update(state, 1, bytes(data))
    data[8:10] = (0x7F80).to_bytes(2, "little")
    with pytest.raises(MessageError, match="numbers must be finite"):
        method.decode_update(state, 1, bytes(data))
    with pytest.raises(MessageError, match="too short"):
        method.decode_update(state, 1, bytes(payload(method)[2][:-1]))
    four = Subspace(rank=RANK, up_bits=4)
    _, state, _ = payload(four)
    bad = method.subspace_seed(state, 1).to_bytes(8, "little") + bytes(2) + b"\xff" * 6
    with pytest.raises(MessageError, match="code 0 is 15, but at most 14 is possible"):
        four.decode_update(state, 1, bad)


def test_a_budget_sets_the_largest_rank_that_fits():
    layout = Layout(
        (TensorEntry("a", (64, 256), "float32"), TensorEntry("b", (512, 64), "float32")),
        (0, 64 * 256 + 512 * 64),
    )
    state = Subspace(bytes=400).start(layout, 1)
    assert state.rank == 24 and Subspace(bytes=400).update_bytes(state) <= 400
    assert Subspace(bytes="0.4kB").start(layout, 1).rank == 24
    assert Subspace(bytes=400, up_bits=4).start(layout, 1).rank == 6
    with pytest.raises(ValueError, match=r"bytes = 20: an update of rank 1 takes 28 bytes here"):
        Subspace(bytes=20).start(layout, 1)
    with pytest.raises(ValueError, match=r"all weights that train take 6156 bytes in 1 bit"):
        Subspace(bytes="1MB").start(layout, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"feedback": True}, "set refresh = 0"),
        ({"feedback": True, "refresh": 0, "up_bits": 32}, "nothing is lost"),
        ({"rank": "full", "subspaces": 2}, "there are no subspaces"),
        ({"bytes": 1000, "rank": 4}, "bytes determines the rank"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Subspace(**settings)


# -- whole runs


def problem_run(tmp_path, rounds=6, **settings):
    problem = Problem()
    training = LocalTraining(
        optimizer="adamw", learning_rate=0.02, steps=5, batch=8, accumulation=1
    )
    method = Subspace(**{"rank": 6, "training": training, **settings})
    return problem.federation(method, rounds=rounds, out=tmp_path / "run"), problem


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"up_bits": 4, "down_bits": 8},
        {"up_bits": 32, "down_bits": 32, "subspaces": 2},
        {"refresh": 0, "feedback": True},
        {"refresh": 3, "magnitudes": "row"},
        {"rank": "full", "targets": "all"},
    ],
    ids=str,
)
def test_it_learns_and_its_orbit_is_the_model(settings, tmp_path, without_pictures):
    run, problem = problem_run(tmp_path, **settings)
    summary = run.run().summary
    assert summary["final"]["loss"] < summary["baseline"]["loss"] - 0.2
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    fresh = problem.model()
    assert orbit.replay(fresh) == summary["weights_digest"]
    assert [p.requires_grad for p in fresh.parameters()].count(True) == (
        4 if settings.get("targets") == "all" else 2
    )


def test_clients_leave_the_weights_as_they_are_and_make_no_gradient_of_them(tmp_path):
    run, _ = problem_run(tmp_path)
    space = run.worker.space
    before = space.digest()
    run.run()
    assert all(p.grad is None for p in space.parameters)
    assert space.digest() != before


def test_new_subspaces_come_after_so_many_rounds():
    state = Subspace(refresh=3).start(LAYOUT, 1)
    seeds = [Subspace(refresh=3).subspace_seed(state, number) for number in range(1, 8)]
    assert seeds[0] == seeds[1] == seeds[2] != seeds[3] == seeds[5] != seeds[6]
    assert len({Subspace(refresh=0).subspace_seed(state, number) for number in (1, 2, 9)}) == 1


def test_a_round_that_nobody_answers_changes_nothing():
    method = Subspace(rank=RANK)
    state = method.start(LAYOUT, 1)
    step = method.aggregate(state, answers(1, []))
    assert step.encode() == b"" and method.advance(state, step) is state
    assert not method.change(state, method.decode_step(state, b"")).terms


def test_floats_add_up_for_secure_sums_and_bits_say_why_not():
    assert Subspace(up_bits=32).needs_each is None
    assert "set up_bits = 32" in Subspace().needs_each
    about = DecodeContext(
        Subspace(up_bits=32, rank=RANK), Subspace(rank=RANK).start(LAYOUT, 1), "update", 1
    )
    vector = np.linspace(-1, 1, 6 * RANK)
    summed = FloatEntries.from_vector(vector, about)
    assert np.array_equal(summed.vector(about), vector.astype(np.float32))
