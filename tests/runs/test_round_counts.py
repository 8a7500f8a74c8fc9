"""What a round of whole weights does besides its steps, counted: copies, digests, encodings."""

from collections import Counter

import pytest
import torch

from fedseed import FedAvg, Federation, Ferret
from fedseed.federation.messages import Message
from fedseed.methods.payload import Tensors
from fedseed.objectives.losses import Supervised
from fedseed.weights.space import ParameterSpace

ROUNDS = 3
TRAINING = {"optimizer": "sgd", "learning_rate": 0.1, "steps": 1, "batch": 4, "accumulation": 1}
METHODS = {
    "fedavg": FedAvg(training=TRAINING),
    "ferret": Ferret(directions=8, scalars="bit", training=TRAINING),
}
# of a round with n clients: what is counted, and how often
EXPECTED = {
    "fedavg": lambda n: {
        "encode": n + 1,  # a plan for all, each update; the step stays in the process
        # each plan by its client, each update by the coordinator, a plan to see which round it is;
        # nobody reads a step's frame
        "decode": 2 * n + 1,
        "read whole weights": n + 2,  # each update, the step by both sides
        "snapshot": n,
        "restore": n,
        "dense": n,
        "digest": 1,
    },
    "ferret": lambda n: {
        "encode": n + 1,
        "decode": 2 * n + 1,
        "read whole weights": 0,
        "snapshot": n,
        "restore": n,
        "dense": 0,
        "digest": 1,
    },
}
COUNTED = {
    (Message, "encode"): "encode",
    (Tensors, "read_value"): "read whole weights",
    (ParameterSpace, "snapshot"): "snapshot",
    (ParameterSpace, "restore"): "restore",
    (ParameterSpace, "dense"): "dense",
    (ParameterSpace, "digest"): "digest",
}


def federation(name: str, clients: int, rounds: int) -> Federation:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    data = [[(torch.randn(6), torch.tensor(i % 3)) for i in range(8)] for _ in range(clients)]
    loss = Supervised(torch.nn.CrossEntropyLoss(reduction="none"))
    return Federation(model, data, METHODS[name], loss, rounds, seed=1, progress=False)


def counted_run(name: str, clients: int, rounds: int, monkeypatch) -> Counter[str]:
    """How often a run does each of what is counted."""
    counts: Counter[str] = Counter()

    def counting(plain, what):
        def counted(*given, **named):
            counts[what] += 1
            return plain(*given, **named)

        return counted

    made = federation(name, clients, rounds)
    with monkeypatch.context() as patched:
        for (kind, attribute), what in COUNTED.items():
            patched.setattr(kind, attribute, counting(getattr(kind, attribute), what))
        # `decode` calls it, too
        view = counting(Message.decode_view, "decode")
        patched.setattr(Message, "decode_view", staticmethod(view))
        made.run()
    return counts


@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("name", METHODS)
def test_a_round_copies_reads_and_hashes_no_more_than_it_must(name, clients, monkeypatch):
    first = counted_run(name, clients, 1, monkeypatch)
    more = counted_run(name, clients, 1 + ROUNDS, monkeypatch)
    wanted = EXPECTED[name](clients)
    assert {what: (more[what] - first[what]) / ROUNDS for what in wanted} == wanted
