"""`training.batch_tokens`: the same gradient, examples in the same order, less memory."""

import pytest
import torch

from fedseed import ParameterSpace
from fedseed.methods.ferret import Ferret
from fedseed.objectives.losses import CausalLM
from fedseed.objectives.tokens import Tokens
from fedseed.training.client import LocalClient
from fedseed.training.settings import LocalTraining
from support.memory import LiveBytes
from support.text_bases import Ids, random_model

SIZES = {"vocab_size": 499, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64,
         "word_embed_proj_dim": 32, "max_position_embeddings": 64, "dropout": 0.0}  # fmt: skip
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
    items = [Tokens(tuple(2 + (7 * i + j) % 490 for j in range(n)), 1) for i, n in enumerate(LENGTHS)]
    objective = Noting()
    client = LocalClient(ParameterSpace(model), objective, items, 1, 2, 0)
    live = LiveBytes([*model.parameters(), *model.buffers()])
    with live:
        client.first_order(LocalTraining(learning_rate=0.5, steps=2, **settings))
    return client, objective.seen, live.peak


@pytest.fixture(scope="module")
def whole():
    return trained(batch=12, accumulation=1)


@pytest.mark.parametrize("settings", [{"batch": 12, "accumulation": 1}, {"batch": 1, "accumulation": 12}])
def test_the_gradient_is_that_of_one_batch(whole, settings):
    client, seen, peak = trained(batch_tokens=100, **settings)
    one, at_once, most = whole
    assert [n for part in seen for n in part] == [n for part in at_once for n in part]  # in the same order
    assert all(len(part) * max(part) <= 100 for part in seen)
    assert client.cost.backward_passes == len(seen) > 2 and one.cost.backward_passes == 2
    for a, b in zip(client.space.parameters, one.space.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert client.cost.losses == pytest.approx(one.cost.losses, rel=1e-5)
    assert peak < 0.6 * most


def test_what_it_does_not_go_with_is_named():
    with pytest.raises(ValueError, match=r"streaming needs no training\.batch_tokens"):
        Ferret(streaming=True, allocation="size", training=LocalTraining(accumulation=1, batch_tokens=64))
