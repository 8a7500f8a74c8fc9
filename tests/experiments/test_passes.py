"""Passes that compute nothing take what real passes take: every tensor that operations make is counted in both."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, OPTConfig

from fedseed import ParameterSpace
from fedseed.experiments.passes import LiveBytes, Passes, chosen
from fedseed.models.checkpointing import checkpoint_activations
from fedseed.objectives.batches import length_of
from fedseed.objectives.losses import Blank, CausalLM, Options, Tokens
from fedseed.training.client import LocalClient
from fedseed.training.settings import OPTIMIZERS, LocalTraining
from support.tiers import mark

SIZES = {"vocab_size": 999, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
OPT = OPTConfig(**SIZES, ffn_dim=128, word_embed_proj_dim=64, max_position_embeddings=64)
LLAMA = LlamaConfig(**SIZES, intermediate_size=128, num_key_value_heads=2)
ITEMS = [Tokens(tuple(range(40)), 10)] * 3


class Ids:
    eos_token_id = pad_token_id = 1
    bos_token_id = None


OBJECTIVE = CausalLM(Ids())


class Counted(LiveBytes):
    """The same count of real tensors: nothing stands in for anything."""

    def _instead(self, operation, args):
        return super()._instead("", args)


def opt(dtype=torch.float32):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(OPT, dtype=dtype)


def llama(dtype=torch.float32):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(LLAMA, dtype=dtype)


def real(model, act):
    live = Counted([*model.parameters(), *model.buffers()], 0)
    with live:
        act()
    return live.peak


def test_live_bytes_are_those_of_tensors_that_are_alive():
    known = torch.zeros(1000)
    live = Counted([known], 0)
    with live:
        a = torch.zeros(100)
        view = a[:10].view(2, 5)
        known.add_(1.0)
        b = a + 1
        assert live.now == 800
        del a
        assert live.now == 800  # the view has it
        del view
        assert live.now == 400 and live.peak == 800
        b = b * 2
        assert live.now == 400 and live.peak == 800
    assert isinstance(b, torch.Tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [opt, llama])
def test_a_forward_pass(make, dtype):
    model = make(dtype).eval()

    @torch.no_grad()
    def act():
        OBJECTIVE.losses(model, ITEMS)

    expected = real(model, act)
    assert Passes(make(dtype), "one").forward(OBJECTIVE, ITEMS) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", mark(["sgd", "adamw"], lambda name: name == "sgd"))
@pytest.mark.parametrize("make", mark([opt, llama], lambda make: make is llama))
def test_local_training(make, name, checkpointed):
    def made():
        model = make()
        if checkpointed:
            checkpoint_activations(model)
        return model

    training = LocalTraining(optimizer=name, learning_rate=1e-3, steps=2, batch=3, accumulation=1)
    model = made()
    client = LocalClient(ParameterSpace(model), OBJECTIVE, ITEMS, 1, 1, 0)
    expected = real(model, lambda: client.first_order(training))
    assert Passes(made(), "one").first_order(OBJECTIVE, ITEMS, training) == pytest.approx(expected, rel=0.05)


def test_gradients_and_streams_take_less_than_training():
    passes = Passes(opt(), "one")
    training = LocalTraining(learning_rate=1e-3, steps=2, batch=3, accumulation=1)
    forward = passes.forward(OBJECTIVE, ITEMS)
    streaming = passes.streaming(OBJECTIVE, ITEMS, training)
    gradient = passes.gradient(OBJECTIVE, ITEMS, more=False)
    whole = passes.first_order(OBJECTIVE, ITEMS, training)
    assert forward < min(streaming, gradient) and max(streaming, gradient) < whole
    assert whole - gradient == pytest.approx(passes.trained, rel=0.02)  # the start copy
    assert passes.weights == passes.trained == sum(p.numel() * 4 for p in opt().parameters())


@pytest.mark.parametrize("name", mark(OPTIMIZERS, lambda name: name not in ("sgd", "adamw")))
def test_every_optimiser_is_followed(name):
    training = LocalTraining(optimizer=name, learning_rate=1e-3, steps=5, batch=2, accumulation=4, clip=1.0)
    assert Passes(opt(), "one").first_order(OBJECTIVE, ITEMS[:2], training) > 0


def test_examples_have_lengths_and_chosen_positions():
    options = Options((Tokens((1,) * 9, 4), Tokens((1,) * 7, 4)), 0, (0,), False)
    assert length_of(options) == 9 and chosen([options]) == 8
    assert length_of(Blank((1,) * 5, 2, (3, 4), 0)) == 5 and chosen([Blank((1,) * 5, 2, (3, 4), 0)] * 2) == 2
    assert length_of(ITEMS[0]) == 40 and chosen(ITEMS) == 90
    assert length_of((torch.zeros(2), 1)) == 0
