"""FedSGD whose gradients are added up in the memory of one gradient, in a simulation."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import Federation, FedSGD
from fedseed.aggregation import Mean, Median
from fedseed.errors import MessageError, RecipeError
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.coordinator.summed import SummedCoordinator
from fedseed.methods.fedsgd import Gradient
from fedseed.objectives.losses import Supervised
from fedseed.tasks.data import ClientData
from support.memory import LiveBytes
from support.problem import Problem

FEDSGD_SUMMED = ["method={name = 'fedsgd', summed = true}"]


def weights(federation):
    return torch.cat([p.detach().reshape(-1) for p in federation.worker.space.parameters])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weighting": "examples", "batch": 2},
        {"weighting": "equal", "micro_batch": 1},
        {"server": "momentum"},
    ],
)
def test_the_step_is_that_of_separate_gradients(problem, settings):
    runs = [
        problem.federation(FedSGD(learning_rate=0.5, summed=summed, **settings), per_round=5)
        for summed in (False, True)
    ]
    separate, summed = (run.run() for run in runs)
    assert isinstance(runs[1].coordinator, SummedCoordinator)
    torch.testing.assert_close(weights(runs[1]), weights(runs[0]), rtol=1e-5, atol=1e-7)
    for name in ("payload_bytes_up", "payload_bytes_down", "skipped"):
        assert summed.summary[name] == separate.summary[name]
    assert all(p.grad is None for p in runs[1].worker.space.parameters)


def test_in_16_bits_the_sum_is_rounded_after_each_pass():
    """Separate gradients are rounded once each, and added up in double precision."""
    problem, found = Problem(torch.bfloat16), []
    for summed in (False, True):
        federation = problem.federation(FedSGD(learning_rate=0.5, summed=summed), per_round=5)
        federation.gather(1)
        coordinator = federation.coordinator
        found.append(
            np.concatenate(list(coordinator.state.combine(coordinator.weighted_answers())))
        )
    separate, summed_up = found
    assert not np.array_equal(separate, summed_up)
    # an addition of each client's and each micro-batch's gradient rounds by 2^-9 of the sum
    passes = sum(-(-len(own) // 8) for own in problem.clients)
    bound = passes * 2**-9 * np.abs(separate).max()
    assert 0 < np.abs(separate - summed_up).max() < bound


def test_a_client_without_a_finite_loss_is_left_out_of_the_sum(problem):
    problem.clients[3] = [(x * float("nan"), y) for x, y in problem.clients[3]]
    problem.clients[1] = []
    runs = [
        problem.federation(FedSGD(learning_rate=0.5, summed=summed), per_round=5)
        for summed in (False, True)
    ]
    separate, summed = (run.run().summary for run in runs)
    assert summed["skipped"] == separate["skipped"] == 12
    torch.testing.assert_close(weights(runs[1]), weights(runs[0]), rtol=1e-5, atol=1e-7)


def test_eight_clients_hold_one_gradient():
    """In bytes of tensors and arrays: the gradients of one pass, and what has been added up."""

    def peak(clients, summed):
        layers = [torch.nn.Linear(500, 500) for _ in range(8)]  # a megabyte each
        net = torch.nn.Sequential(*layers, torch.nn.Linear(500, 3))
        data = [
            ClientData(f"c{number}", [(torch.ones(500) * number, torch.tensor(number % 3))] * 2)
            for number in range(clients)
        ]
        federation = Federation(
            net, data, FedSGD(summed=summed), Supervised(partial(cross_entropy, reduction="none"))
        )
        for _ in range(2):  # the first time what is loaded once counts, too
            tracemalloc.start()
            with LiveBytes([*net.parameters(), *net.buffers()]) as live:
                federation.gather(1)
            traced = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return (live.peak + traced) / federation.worker.space.layout.dense_bytes

    one, eight = peak(1, True), peak(8, True)
    # The sum, a layer's own gradient, and small things. A second gradient would add 1; what Python
    # has not collected yet adds up to a tenth.
    assert one < 1.3 and eight == pytest.approx(one, abs=0.2)
    assert peak(8, False) > 8


def test_a_sum_that_is_not_finite_is_no_step(problem):
    federation = problem.federation(FedSGD(summed=True), per_round=5)
    coordinator, layout = federation.coordinator, federation.worker.space.layout
    clients = coordinator.open(1)
    plans = [coordinator.plan(client) for client in clients]
    answers, total = federation.worker.sum_gradients(
        plans, clients, federation.items, coordinator.weigh
    )
    assert np.isfinite(np.frombuffer(total, "<f4")).all()
    coordinator.take_sum(memoryview(np.full(layout.size, np.inf, np.float32)).cast("B"))
    for client, answer in zip(clients, answers, strict=True):
        coordinator.receive(answer.message, client)
    before = coordinator.weights
    coordinator.close()
    assert "NaN or infinite" in coordinator.untaken and coordinator.weights == before


def test_what_needs_single_gradients_is_refused(problem, tmp_path):
    summed = FedSGD(summed=True)
    with pytest.raises(RecipeError, match="needs each"):
        problem.federation(summed, per_round=5, aggregation=Median())
    with pytest.raises(RecipeError, match="attack"):
        problem.federation(summed, per_round=5, attack="sign-flip", attackers=[0])
    with pytest.raises(RecipeError, match="--workers"):
        Federation.from_file("digits-feedsign", FEDSGD_SUMMED, workers=2)
    layout = problem.federation(FedSGD()).worker.space.layout
    with pytest.raises(ValueError, match="one process"):
        Coordinator(summed, layout, 1, [1], 1, Mean())
    coordinator = SummedCoordinator(summed, layout, 1, [1], 1)
    coordinator.open(1)
    with pytest.raises(MessageError, match="4"):
        coordinator.receive(update_of(summed, Gradient(1, b"\0" * layout.dense_bytes)), 0)
    with pytest.raises(MessageError, match="no terms"):
        coordinator.receive(update_of(summed, Gradient(0, b"")), 0)


def update_of(method, payload):
    from fedseed.federation.messages import Message, MessageKind

    return Message(MessageKind.UPDATE, method.code, 1, 0, payload.encode()).encode()
