import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import Basis, ParameterSpace
from fedseed.methods.ferret import Ferret
from fedseed.objectives.losses import CausalLM, Supervised
from fedseed.objectives.tokens import Tokens
from fedseed.training.client import LocalClient
from fedseed.training.settings import OPTIMIZERS, LocalTraining
from fedseed.weights.change import Add, Rebuild, Term
from fedseed.weights.projection import change_norms
from support.memory import LiveBytes
from support.text_bases import Ids, random_model

OBJECTIVE = Supervised(lambda out, y: cross_entropy(out, y, reduction="none"))


def items(count=24):
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(6, generator=g), torch.tensor(i % 3)) for i in range(count)]


def model(dropout=0.0):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Dropout(dropout), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    )


def train(training, net=None, seed=1, round=2, number=3, data=None):
    space = ParameterSpace(net if net is not None else model())
    client = LocalClient(space, OBJECTIVE, items() if data is None else data, seed, round, number)
    client.first_order(training)
    return client


def change(client):
    """w_start - w_end as one vector; the weights are put back."""
    found = client.difference()
    client.put_back()
    return found


@pytest.mark.parametrize("other", [{"seed": 9}, {"round": 9}, {"number": 9}])
def test_data_order_depends_on_seed_round_and_client(other):
    training = LocalTraining(learning_rate=0.1, steps=3, batch=2)
    same = [change(train(training)) for _ in range(2)]
    assert (same[0] == same[1]).all()
    assert (change(train(training, **other)) != same[0]).any()


@pytest.mark.parametrize(
    ("dropout", "dtype"), [(0.0, "float32"), (0.5, "float32"), (0.5, "bfloat16")]
)
def test_global_generator_neither_matters_nor_is_touched(dropout, dtype):
    training = LocalTraining(learning_rate=0.1, steps=3, batch=2, small_steps="stochastic")
    net = model(dropout).to(getattr(torch, dtype))
    data = [(x.to(getattr(torch, dtype)), y) for x, y in items()]
    state = {k: v.clone() for k, v in net.state_dict().items()}
    deltas = []
    for seed in (11, 12):
        net.load_state_dict(state)
        torch.manual_seed(seed)
        expected = torch.rand(1)
        torch.manual_seed(seed)
        deltas.append(change(train(training, net, data=data)))
        assert torch.equal(torch.rand(1), expected)
    assert (deltas[0] == deltas[1]).all()


def test_accumulation_is_one_large_batch():
    """Micro-batches of 1, 4 and 12 give the same update to float rounding."""
    deltas = []
    for batch in (1, 4, 12):
        client = train(
            LocalTraining(learning_rate=0.5, steps=4, batch=batch, accumulation=12 // batch)
        )
        deltas.append(change(client))
        assert client.cost.backward_passes == 4 * 12 // batch
        np.testing.assert_allclose(deltas[0], deltas[-1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_local_training_is_the_torch_optimisers(name):
    training = LocalTraining(
        optimizer=name, learning_rate=0.01, steps=5, batch=8, accumulation=1, weight_decay=0.01
    )
    net = model()
    client = train(training, net)
    plain, fresh = model(), model()
    optimizer = getattr(torch.optim, OPTIMIZERS[name])(
        plain.parameters(), lr=0.01, weight_decay=0.01
    )
    for chosen in itertools.islice(client.batches(8), 5):
        optimizer.zero_grad()
        x, y = torch.stack([a for a, _ in chosen]), torch.stack([b for _, b in chosen])
        cross_entropy(plain(x), y).backward()
        optimizer.step()
    for a, b in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    client.put_back()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), fresh.parameters(), strict=True))


def test_epochs_and_clipping():
    client = train(LocalTraining(learning_rate=0.1, epochs=2, batch=5, accumulation=1))
    assert len(client.cost.losses) == 10  # 48 examples in batches of 5
    clipped = train(LocalTraining(learning_rate=1.0, steps=1, batch=24, accumulation=1, clip=1e-3))
    assert float((change(clipped) ** 2).sum()) ** 0.5 == pytest.approx(1e-3, rel=1e-3)


TRAINING = LocalTraining(learning_rate=0.5, steps=2, batch=4, accumulation=1)
ONE = [Term(Basis("normal", 1), [0.5])]
ACTIONS = {
    "add": lambda client: client.apply(Add(ONE)),
    "rebuild": lambda client: client.apply(Rebuild(ONE, 0.3)),
    "first-order": lambda client: client.first_order(TRAINING),
    "streaming": lambda client: client.project_gradients(TRAINING, Basis("normal", 2), [3]),
}


@pytest.mark.parametrize("based", [False, True])
@pytest.mark.parametrize("names", list(itertools.product(ACTIONS, repeat=2)), ids="-then-".join)
def test_whatever_a_method_does_to_the_weights_is_undone(names, based):
    """One after the other, from weights that were rebuilt from a base or not: weights and buffers
    of the beginning.
    """
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    space = ParameterSpace(net)
    space.keep_base()
    space.apply(Rebuild(ONE, 0.1) if based else Add(ONE, 0.1))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    client = LocalClient(space, OBJECTIVE, items(), 1, 2, 3)
    for name in names:
        ACTIONS[name](client)
    # what it changed since the beginning, not since the second time
    if names[-1] == "first-order" == names[0]:
        saved = [before[entry.name] for entry in space.layout.tensors]
        norms = client.change_norms()
        assert norms == pytest.approx(change_norms(space.vector, saved)) and norms[0] > 0
    assert not torch.equal(net[0].weight, before["0.weight"])
    client.put_back()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


# -- `training.batch_tokens`: the same gradient, examples in the same order, less memory
# -------------------------------


SIZES = {
    "vocab_size": 499,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "ffn_dim": 64,
    "word_embed_proj_dim": 32,
    "max_position_embeddings": 64,
    "dropout": 0.0,
}
LENGTHS = (40, 3, 12, 5, 33, 8, 3, 21, 4, 6, 17, 9)


class Noting(CausalLM):
    """Notes what goes through the model at a time."""

    def __init__(self):
        super().__init__(Ids())
        self.seen = []

    def losses(self, model, items):
        self.seen.append([len(item.ids) for item in items])
        return super().losses(model, items)


def trained(**settings):
    """A client after two steps: what it is now, what it has noted, its peak in bytes."""
    model = random_model("opt", **SIZES)
    items = [
        Tokens(tuple(2 + (7 * i + j) % 490 for j in range(n)), 1) for i, n in enumerate(LENGTHS)
    ]
    objective = Noting()
    client = LocalClient(ParameterSpace(model), objective, items, 1, 2, 0)
    live = LiveBytes([*model.parameters(), *model.buffers()])
    with live:
        client.first_order(LocalTraining(learning_rate=0.5, steps=2, **settings))
    return client, objective.seen, live.peak


@pytest.fixture(scope="module")
def whole():
    return trained(batch=12, accumulation=1)


@pytest.mark.parametrize(
    "settings", [{"batch": 12, "accumulation": 1}, {"batch": 1, "accumulation": 12}]
)
def test_the_gradient_is_that_of_one_batch(whole, settings):
    client, seen, peak = trained(batch_tokens=100, **settings)
    one, at_once, most = whole
    # in the same order
    assert [n for part in seen for n in part] == [n for part in at_once for n in part]
    assert all(len(part) * max(part) <= 100 for part in seen)
    assert client.cost.backward_passes == len(seen) > 2 and one.cost.backward_passes == 2
    for a, b in zip(client.space.parameters, one.space.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert client.cost.losses == pytest.approx(one.cost.losses, rel=1e-5)
    assert peak < 0.6 * most


def test_what_it_does_not_go_with_is_named():
    with pytest.raises(ValueError, match=r"streaming needs no training\.batch_tokens"):
        Ferret(
            streaming=True,
            allocation="size",
            training=LocalTraining(accumulation=1, batch_tokens=64),
        )
