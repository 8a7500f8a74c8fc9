import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import FedSGD
from fedseed.errors import MessageError
from fedseed.federation.client.worker import Worker
from fedseed.federation.messages import Message, MessageKind
from fedseed.methods.fedsgd import Gradient


def union_descent(problem, rounds, rate, clients):
    """Plain gradient descent on all examples of the clients at once."""
    model = problem.model()
    x = torch.stack([x for c in clients for x, _ in problem.clients[c]])
    y = torch.stack([y for c in clients for _, y in problem.clients[c]])
    for _ in range(rounds):
        model.zero_grad()
        cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= rate * p.grad
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def weights(federation):
    return torch.cat([p.detach().reshape(-1) for p in federation.worker.space.parameters])


def test_it_is_centralised_sgd_on_the_union(problem):
    federation = problem.federation(FedSGD(learning_rate=0.5), per_round=5)
    summary = federation.run().summary
    torch.testing.assert_close(
        weights(federation), union_descent(problem, 6, 0.5, range(5)), rtol=1e-4, atol=1e-6
    )
    assert summary["payload_bytes_up"] == 4 + 4 * summary["parameters"]
    assert summary["skipped"] == 0 and summary["final"]["loss"] < summary["baseline"]["loss"]


def test_gradients_by_terms_are_that_of_the_union_for_language(small):
    """The union's mean loss is one over tokens, of which clients have different numbers."""
    from fedseed.objectives.losses import CausalLM
    from fedseed.tasks.data import Example

    model, tokenizer = small
    objective = CausalLM(tokenizer)
    texts = [["one"], ["two and three", "four"], ["five is here, and it is long"]]
    items = [objective.prepare([Example(t, t) for t in own]) for own in texts]
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    method = FedSGD(learning_rate=0.1, micro_batch=1)
    worker = Worker(model, method, objective, 1)
    plans = [Message(MessageKind.PLAN, method.code, 1, c, b"").encode() for c in range(3)]
    payloads = [
        Message.decode(a.message).payload for a in worker.train_all(plans, [0, 1, 2], items)
    ]
    gradients = [method.decode_update(worker.state, 1, payload) for payload in payloads]
    total = sum(g.terms for g in gradients)
    found = sum(
        g.terms / total * np.frombuffer(g.data, "<f4").astype(np.float64) for g in gradients
    )
    union = [item for own in items for item in own]
    (objective.losses(model, union).sum() / sum(map(objective.weight, union))).backward()
    whole = np.concatenate([p.grad.reshape(-1).numpy() for p in model.parameters()])
    model.zero_grad(set_to_none=True)
    np.testing.assert_allclose(found, whole, rtol=1e-3, atol=1e-6)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_a_client_without_a_finite_loss_has_no_part(problem):
    problem.clients[2] = [(x * float("nan"), y) for x, y in problem.clients[2]]
    problem.clients[1] = []
    federation = problem.federation(FedSGD(learning_rate=0.5), per_round=5)
    summary = federation.run().summary
    assert summary["skipped"] == 12
    torch.testing.assert_close(
        weights(federation), union_descent(problem, 6, 0.5, [0, 3, 4]), rtol=1e-4, atol=1e-6
    )
    assert all(p.grad is None for p in federation.worker.space.parameters)


def test_a_gradient_of_nothing_is_refused(problem):
    worker = problem.federation(FedSGD()).worker
    with pytest.raises(MessageError, match="no terms"):
        FedSGD().decode_update(worker.state, 1, Gradient(0, worker.space.dense()).encode())
