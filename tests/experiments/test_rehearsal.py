"""A rehearsed round asks for what a real one asks for, and its messages have the real ones' bytes."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import FedAvg, FedMeZO, FedSGD, ParameterSpace, Sign, TopK
from fedseed.experiments.rehearsal import NotingClient, rehearse, shrunk
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.worker import Worker
from fedseed.methods.client import Client
from fedseed.objectives.losses import Supervised
from fedseed.training.settings import LocalTraining
from fedseed.weights.change import Add, Entries, Optimize, Rebuild, Replace
from fedseed.weights.layout import Layout, TensorEntry
from support.problem import Problem
from support.zeroth_order import METHODS, QUICK, data, model

OBJECTIVE = Supervised(lambda out, y: cross_entropy(out.float(), y, reduction="none"))
TRAINING = LocalTraining(learning_rate=1e-3, steps=2, batch=2, accumulation=2)
ALL = {
    **{name: method for name, (method, _) in METHODS.items()},
    "ferret": Problem().ferret(),
    "ferret-streaming": Problem().ferret(
        streaming=True, allocation="size", training=TRAINING.model_copy(update={"accumulation": 1})
    ),
    "fedavg": FedAvg(training=TRAINING),
    "fedsgd": FedSGD(batch=4),
    "topk": TopK(share=0.1, training=TRAINING),
    "sign": Sign(every=1, training=TRAINING),
    "fedmezo": FedMeZO(**QUICK, steps=3),
    "fedmezo-tensors": FedMeZO(**QUICK, steps=3, travel="tensors"),
}
ASKED = {
    "mezo": ["loss"], "feedsign": ["loss"], "fedkseed": ["loss", "change"], "fedzo": ["loss", "change"],
    "ferret": ["train"], "ferret-streaming": ["stream"], "fedavg": ["train"], "fedsgd": ["gradient"],
    "fedmezo": ["loss", "change"], "topk": ["train"], "sign": ["train"],
}  # fmt: skip
CHANGES = {"mezo": Add, "mezo-adam": Optimize, "fedkseed": Rebuild, "fedavg": Replace, "ferret": Add, "topk": Entries}


def real_bytes(method, clients):
    """Payload bytes of an update, and of a plan and a step, in a second round."""
    train = data(clients)[0]
    worker = Worker(model(), method, OBJECTIVE, 3)
    coordinator = Coordinator(method, worker.space.layout, 3, [40] * clients, clients)
    coordinator.take_base(worker.space.dense)
    for number in (1, 2):
        picked = coordinator.open(number)
        plans = [coordinator.plan(client) for client in picked]
        answers = worker.train_all(plans, picked, train)
        sent = [(c, a.message) for c, a in zip(picked, answers, strict=True) if a.message is not None]
        for client, message in sent:
            coordinator.receive(message, client)
        step = coordinator.close()
        worker.apply(step)
    return len(sent[0][1]) - FRAME_BYTES, len(plans[0]) + len(step) - 2 * FRAME_BYTES


@pytest.mark.parametrize("name", ALL)
def test_bytes_are_those_of_a_real_round(name):
    method, clients = ALL[name], 1 if name.startswith("mezo") else 3
    layout = ParameterSpace(model(), method.blocks).layout
    found = rehearse(method, layout, clients, clients, None, apart=True)
    up, down = real_bytes(method, clients)
    assert found.bytes_up == up
    if name == "topk":  # a step's entries are those that any client has sent: how many coincide, data decides
        assert up < down and up < found.bytes_down
    else:
        assert found.bytes_down == down
    if name in ASKED:
        assert [asked.what for asked in found.asked] == ASKED[name]
    if name in CHANGES:
        assert isinstance(found.change, CHANGES[name])


def test_whole_weights_in_memory():
    """FedAvg, in multiples of the weights: states of coordinator and worker, answers that wait, the combination."""
    layout = Layout(tuple(TensorEntry(f"w{i}", (1000, 1000), "float32") for i in range(200)), (0, 200_000_000))
    dense = layout.dense_bytes
    found = rehearse(FedAvg(training=TRAINING), layout, 8, 4, None, apart=True)
    assert found.bytes_up == found.bytes_down == dense
    assert found.kept == pytest.approx(2 * dense, rel=0.1)
    assert found.waiting == pytest.approx(5 * dense, rel=0.1)
    assert found.answer == pytest.approx(7 * dense, rel=0.1)  # its weights, and the message
    assert 10 * dense < found.closing < 14 * dense
    joint = rehearse(FedSGD(), layout, 8, 4, None, apart=False)
    assert joint.waiting == pytest.approx(joint.kept, rel=0.01)  # one message for all


def test_seeds_and_scalars_take_nothing():
    layout = Layout((TensorEntry("w", (100_000_000,), "float32"),), (0, 100_000_000))
    for name in ("feedsign", "fedkseed", "ferret"):
        found = rehearse(ALL[name], layout, 5, 5, None, apart=True)
        assert max(found.kept, found.waiting, found.answer, found.closing, found.applying) < 1 << 20


def test_exact_coefficients_are_not_made():
    layout = Layout((TensorEntry("w", (1 << 40,), "float32"),), (0, 1 << 40))
    assert rehearse(Problem().ferret(exact=True), layout, 2, 2, None, apart=True).bytes_up == 8 + 4 + 4 * 300


def test_a_smaller_layout_has_the_proportions():
    layout = Layout((TensorEntry("a", (3000, 100), "float32"), TensorEntry("b", (7,), "bfloat16")), (0, 300_007))
    small, factor = shrunk(layout, 3000)
    assert [e.size for e in small.tensors] == [3000, 1] and small.boundaries == (0, 3001)
    assert factor == layout.dense_bytes / small.dense_bytes
    assert shrunk(layout, 1 << 30)[1] == 1.0


def test_a_noting_client_is_a_client():
    noting = NotingClient(Layout((TensorEntry("w", (4,), "float32"),), (0, 4)), 1, 0)
    promised = [name for name in vars(Client) if not name.startswith("_")]
    assert promised and all(callable(getattr(noting, name)) for name in promised)
    assert torch.frombuffer(bytearray(noting.weights()), dtype=torch.float32).tolist() == [0.0] * 4
