"""Models that compute with W + B P: the losses and gradients of weights that are really moved."""

import copy

import numpy as np
import pytest
import torch
import transformers

from fedseed import ParameterSpace
from fedseed.training.factored import FactoredModel
from fedseed.weights.change import AddFactors
from fedseed.weights.subspace import RandomSubspace, matrices_of

RANK, COUNT = 4, 2
SMALL = {"vocab_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**SMALL, "hidden_size": 64, "intermediate_size": 88, "num_key_value_heads": 2}


def tied_llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True)
    )


def gpt2():
    """Its linear layers have their inputs in rows, and its embedding is its output layer."""
    config = transformers.GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=4,
        vocab_size=100,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=1,
    )
    return transformers.GPT2LMHeadModel(config)


def mixtral():
    """A layer's experts lie in one tensor of three dimensions."""
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**LLAMA, num_local_experts=3))


def t5():
    """An encoder-decoder whose encoder and decoder share an embedding."""
    config = transformers.T5Config(
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        vocab_size=100,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def bert():
    return transformers.BertForMaskedLM(
        transformers.BertConfig(**SMALL, hidden_size=32, intermediate_size=64)
    )


def loss_of(model, ids):
    return model(input_ids=ids, labels=ids).loss


@pytest.mark.parametrize("make", [tied_llama, gpt2, mixtral, t5, bert])
def test_losses_and_gradients_are_those_of_moved_weights(make):
    torch.manual_seed(0)
    model = make().eval()
    space = ParameterSpace(model)
    subspace = RandomSubspace(3, RANK, COUNT)
    factored = FactoredModel(space, subspace)
    draw = np.random.default_rng(0)
    for part in factored.parameters:
        values = draw.standard_normal(tuple(part.shape)).astype(np.float32) * 0.02
        part.data.copy_(torch.from_numpy(values))
    ids = torch.randint(2, 100, (2, 16))
    before = space.digest()
    with factored.installed():
        inside = loss_of(model, ids)
        inside.backward()
    assert space.digest() == before
    assert all(p.grad is None for p in model.parameters())
    with torch.no_grad():
        assert abs(float(loss_of(model, ids)) - float(inside.detach())) > 1e-4

    space.apply(AddFactors(subspace, factored.values()))
    moved = loss_of(model, ids)
    moved.backward()
    assert float(moved.detach()) == pytest.approx(float(inside.detach()), abs=2e-6)
    # dB = G P^T, where G is the gradient of the weight itself
    for parameter, factor in zip(space.parameters, factored.factors, strict=True):
        for k, part in enumerate(factor.trained):
            expected = expected_gradient(parameter, factor, k)
            found = torch.zeros_like(part) if part.grad is None else part.grad
            largest = expected.abs().max().clamp_min(1e-6)
            assert (found - expected).abs().max() <= 2e-5 * largest


def expected_gradient(parameter, factor, k):
    if parameter.grad is None:
        return torch.zeros_like(factor.trained[k])
    gradient = parameter.grad
    if factor.matrices is None:
        return gradient
    seen = matrices_of(tuple(parameter.shape))
    gradient = gradient.reshape(seen.stack, seen.rows, seen.columns)
    if seen.rows > seen.columns:
        gradient = gradient.transpose(1, 2)
    signs = factor.signs[:, k * RANK : (k + 1) * RANK]
    return gradient @ signs.transpose(1, 2) / RANK**0.5


def test_layers_that_are_computed_once_more_see_the_factors():
    """Activation checkpointing runs a layer's forward pass again in the backward pass."""
    torch.manual_seed(0)
    model = tied_llama().train()
    ids = torch.randint(2, 100, (2, 16))
    gradients = []
    for checkpointed in (False, True):
        mine = copy.deepcopy(model)
        if checkpointed:
            mine.gradient_checkpointing_enable({"use_reentrant": False})
        factored = FactoredModel(ParameterSpace(mine), RandomSubspace(3, RANK))
        for part in factored.parameters:
            part.data.fill_(0.01)
        with factored.installed():
            loss_of(mine, ids).backward()
        gradients.append([part.grad.clone() for part in factored.parameters])
    for plain, again in zip(*gradients, strict=True):
        assert torch.allclose(plain, again, rtol=1e-4, atol=1e-7)


def test_one_subspace_is_trained_at_a_time():
    torch.manual_seed(0)
    model = bert()
    factored = FactoredModel(ParameterSpace(model), RandomSubspace(3, RANK, COUNT))
    ids = torch.randint(2, 100, (2, 16))
    factored.train_only(1)
    with factored.installed():
        loss_of(model, ids).backward()
    for factor in factored.factors:
        if factor.matrices is not None:
            first, second = factor.trained
            assert first.grad is None and second.grad is not None


def test_what_is_kept_for_the_backward_pass_is_as_narrow_as_the_rank():
    """Of a layer with more inputs than outputs x P^T is kept, not x."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(512, 256, bias=False)
    factored = FactoredModel(ParameterSpace(layer), RandomSubspace(3, RANK))
    kept = []

    def keep(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    x = torch.randn(7, 512)
    with factored.installed(), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        layer(x).sum()
    assert (7, RANK) in kept
    assert (7, 512) not in kept and (256, 512) not in kept


def test_recurrent_layers_are_refused():
    model = torch.nn.ModuleDict({"memory": torch.nn.LSTM(8, 8)})
    factored = FactoredModel(ParameterSpace(model), RandomSubspace(3, RANK))
    refused = pytest.raises(ValueError, match=r"LSTM keeps its weights elsewhere.*method\.targets")
    with refused, factored.installed():
        pass
    assert isinstance(model["memory"].weight_ih_l0, torch.nn.Parameter)
