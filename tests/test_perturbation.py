"""Perturbed evaluations: the weights keep their bits, the loss is that of weights really changed."""

import os

import pytest
import torch
import transformers as tf

from fedseed import Basis, ParameterSpace
from fedseed.perturbation import can_exchange

TEXT = {"vocab_size": 61, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16}


def text_model(name):
    if name == "opt":
        config = tf.OPTConfig(**TEXT, ffn_dim=32, max_position_embeddings=32, word_embed_proj_dim=16, dropout=0.0)
        return tf.OPTForCausalLM(config)
    if name == "llama":
        return tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT, intermediate_size=32, tie_word_embeddings=True))
    if name == "gpt2":
        return tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=61, n_embd=16, n_layer=1, n_head=2, n_positions=32))
    if name == "qwen2":
        return tf.Qwen2ForCausalLM(tf.Qwen2Config(**TEXT, intermediate_size=32, num_key_value_heads=1))
    config = tf.RobertaConfig(**TEXT, intermediate_size=32, max_position_embeddings=40)
    return tf.RobertaForMaskedLM(config)


class Shared(torch.nn.Module):
    """One parameter used by two modules, another reached for by a sibling, attention that bypasses its projection."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 8)
        self.b = torch.nn.Linear(8, 8)
        self.b.weight = self.a.weight
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.scale = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        x = self.b(torch.tanh(self.a(x))) * self.scale
        x = x @ self.a.weight.T + self.attention(x, x, x, need_weights=False)[0]
        return x + torch.cat([self.scale.data, self.b.bias]).mean()


def build(name):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    if name == "vit":
        config = tf.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
                              image_size=16, patch_size=8, num_labels=3)  # fmt: skip
        x = torch.randn(2, 3, 16, 16, generator=g)
        return tf.ViTForImageClassification(config), lambda m: m(x.to(m.dtype)).logits
    if name == "resnet":
        config = tf.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3
        )
        x = torch.randn(2, 3, 32, 32, generator=g)
        return tf.ResNetForImageClassification(config), lambda m: m(x.to(m.dtype)).logits
    if name == "shared":
        x = torch.randn(2, 5, 8, generator=g)
        return Shared(), lambda m: m(x.to(m.scale.dtype))
    ids = torch.randint(0, 61, (2, 9), generator=g)
    return text_model(name), lambda m: m(input_ids=ids).logits


NAMES = ["opt", "llama", "gpt2", "qwen2", "roberta", "vit", "resnet", "shared"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_a_thousand_perturbed_evaluations_change_no_bit(name, dtype):
    """For the larger models a hundred, but for FEDSEED_SLOW=1: four minutes more."""
    model, forward = build(name)
    model.to(dtype).eval()
    space = ParameterSpace(model, blocks=3)
    assert can_exchange(model)
    count = 1000 if os.environ.get("FEDSEED_SLOW") == "1" or name in ("opt", "shared") else 100
    basis = Basis("rademacher", 5)
    before = space.digest()
    with torch.no_grad():
        plain = forward(model)
        for k in range(count):
            with space.perturbed(basis, k, 1e-2 if k % 2 else -1e-2):
                forward(model)
        assert space.digest() == before
        torch.testing.assert_close(forward(model), plain)  # a busy machine may add up in another order


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_those_of_weights_really_changed(name, dtype):
    model, forward = build(name)
    model.to(dtype).eval()
    space = ParameterSpace(model, blocks="tensor")
    basis = Basis("normal", 5)
    saved = space.snapshot()
    with torch.no_grad():
        plain = forward(model)
        with space.perturbed(basis, 3, 0.05):
            inside = forward(model)
        space.add(basis, [1.0], 0.05, first=3)
        changed = forward(model)
        space.restore(saved)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype] * float(changed.abs().max())
    torch.testing.assert_close(inside, changed, rtol=0, atol=tolerance)
    assert float((inside - plain).abs().max()) > 5 * tolerance  # the perturbation bites


def test_every_parameter_is_exchanged():
    """Perturbing one tensor alone changes the output, for each tensor of the model that reaches for others'."""
    model, forward = build("shared")
    with torch.no_grad():
        plain = forward(model)
        for chosen in model.parameters():
            for p in model.parameters():
                p.requires_grad_(p is chosen)
            with ParameterSpace(model).perturbed(Basis("normal"), 0, 0.5):
                assert not torch.equal(forward(model), plain)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_models_fall_back_to_a_copy():
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    scripted = torch.jit.trace(plain, torch.randn(2, 4))
    x = torch.randn(2, 4)
    assert not can_exchange(scripted)
    space, twin = ParameterSpace(scripted), ParameterSpace(plain)
    before = space.digest()
    with torch.no_grad(), space.perturbed(Basis("normal"), 0, 0.5):
        inside = scripted(x)
    assert space.digest() == before
    twin.add(Basis("normal"), [1.0], 0.5)
    with torch.no_grad():
        torch.testing.assert_close(inside, plain(x))


def test_gradients_through_a_perturbed_model_reach_nothing():
    """Zeroth-order training needs no gradient: inside, the copies are constants."""
    model, forward = build("llama")
    with ParameterSpace(model).perturbed(Basis("normal"), 0, 0.1):
        out = forward(model)
    assert out.requires_grad is False or all(p.grad is None for p in model.parameters())
