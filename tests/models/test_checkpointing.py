"""Activation checkpointing: the same gradients to the bit, for less memory.

Refused where it can't be.
"""

import copy

import pytest
import torch

from fedseed import Basis, ParameterSpace
from fedseed.errors import RecipeError
from fedseed.models.loading import checkpoint_activations
from fedseed.objectives.losses import CausalLM, Tokens
from fedseed.training.client import LocalClient
from fedseed.training.settings import LocalTraining
from support.text_bases import Ids, random_model

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
MODELS = {
    "opt": {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    "llama": {**SIZES, "intermediate_size": 64, "tie_word_embeddings": True},
}
ITEMS = [Tokens(tuple((7 * i + j) % 99 for j in range(20 + i)), 4) for i in range(8)]


def both(name, dropout=0.0):
    """A model as it is, and the same with checkpoints."""
    plain = random_model(
        name, **MODELS[name], **{"dropout" if name == "opt" else "attention_dropout": dropout}
    ).eval()
    checkpointed = copy.deepcopy(plain)
    checkpoint_activations(checkpointed)
    return plain, checkpointed


def kept_for_backward(model):
    """Bytes that autograd keeps of a forward pass, but for the weights."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(t):
        if t.untyped_storage().data_ptr() not in own:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = CausalLM(Ids()).losses(model, ITEMS).sum()
    del loss
    return sum(kept.values())


def streamed(client, training):
    return client.project_gradients(training, Basis("hadamard", 3, size=16), [16])[0].tobytes()


@pytest.mark.parametrize("train", [LocalClient.first_order, streamed])
@pytest.mark.parametrize("name", MODELS)
def test_training_ends_at_the_same_bits(name, train):
    """Streaming changes weights while backward goes on: a layer is done anew before its own weights
    change.
    """
    training = LocalTraining(
        learning_rate=0.1, steps=3, batch=2, accumulation=1 if train is streamed else 2
    )
    ends = []
    for model in both(name, 0.3):
        client = LocalClient(ParameterSpace(model), CausalLM(Ids()), ITEMS, 1, 2, 3)
        ends.append((train(client, training), client.weights(), client.cost.losses))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", MODELS)
def test_less_is_kept_and_evaluation_is_as_ever(name):
    plain, checkpointed = both(name)
    assert kept_for_backward(checkpointed) < kept_for_backward(plain) / 2
    with torch.no_grad():
        losses = [CausalLM(Ids()).losses(model.eval(), ITEMS) for model in (plain, checkpointed)]
    assert torch.equal(*losses) and not losses[1].requires_grad


def test_a_model_without_layers_to_checkpoint_is_refused():
    with pytest.raises(
        RecipeError, match=r'activation_checkpointing = true: model.base = "x" is a Linear, which'
    ):
        checkpoint_activations(torch.nn.Linear(2, 2), "x")
