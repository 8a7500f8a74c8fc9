"""Perturbed evaluations: the weights keep their bits, the loss is that of weights really
changed.
"""

import pytest
import torch

from fedseed import Basis, ParameterSpace
from fedseed.errors import FedseedError
from fedseed.randomness.kernels import load
from fedseed.weights import space as spaces
from fedseed.weights.change import Term
from fedseed.weights.perturbation import Perturbation, can_exchange, can_stand_in, in_place_of
from support.text_bases import random_model
from support.tiers import tiered

TEXT = {"vocab_size": 61, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
WIDE = {**TEXT, "intermediate_size": 32}
NARROW = {**WIDE, "num_key_value_heads": 1}
MODELS = {
    "opt": {
        **TEXT,
        "ffn_dim": 32,
        "max_position_embeddings": 32,
        "word_embed_proj_dim": 16,
        "dropout": 0.0,
    },
    "llama": {**WIDE, "tie_word_embeddings": True},
    "gpt2": {"vocab_size": 61, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32},
    "gemma": {**NARROW, "head_dim": 8},
    "mistral": {**NARROW, "sliding_window": 4},
    "roberta": {**WIDE, "max_position_embeddings": 40},
    "vit": {**WIDE, "image_size": 16, "patch_size": 8, "num_labels": 3},
    "resnet": {
        "embedding_size": 8,
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "layer_type": "basic",
        "num_labels": 3,
    },
    "t5": {"vocab_size": 61, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
}
KINDS = {
    "roberta": "MaskedLM",
    "vit": "ImageClassification",
    "resnet": "ImageClassification",
    "t5": "Seq2SeqLM",
}
SIDES = {"vit": 16, "resnet": 32}  # of their images


@pytest.fixture(autouse=True)
def by_functions(request, monkeypatch):
    """The models here are tiny: let functions be asked nevertheless, as of larger ones."""
    if "tiny" not in request.node.name:
        monkeypatch.setattr(spaces, "can_stand_in", lambda *_: False)


class Shared(torch.nn.Module):
    """One parameter used by two modules, another reached for by a sibling, attention that bypasses
    its projection.
    """

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


def model_of(name):
    return random_model(name, f"AutoModelFor{KINDS.get(name, 'CausalLM')}", **MODELS[name])


def build(name):
    """A model, and what makes outputs of it."""
    g = torch.Generator().manual_seed(1)
    if name == "shared":
        torch.manual_seed(0)
        x = torch.randn(2, 5, 8, generator=g)
        return Shared(), lambda m: m(x.to(m.scale.dtype))
    if name in SIDES:
        x = torch.randn(2, 3, SIDES[name], SIDES[name], generator=g)
        return model_of(name), lambda m: m(x.to(m.dtype)).logits
    ids = torch.randint(0, 61, (2, 9), generator=g)
    return model_of(name), lambda m: m(input_ids=ids).logits


NAMES = ["opt", "llama", "gpt2", "roberta", "vit", "resnet", "shared"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@tiered({"name": NAMES, "dtype": DTYPES})
def test_outputs_are_those_of_weights_really_changed(name, dtype):
    model, forward = build(name)
    model.to(dtype).eval()
    space = ParameterSpace(model, blocks="tensor")
    basis = Basis("normal", 5)
    saved, before = space.snapshot(), space.digest()
    assert can_exchange(model)
    with torch.no_grad():
        plain = forward(model)
        for scale in (-0.05, 0.05):
            with space.perturbed(basis, 3, scale):
                inside = forward(model)
            assert space.digest() == before
        space.add(basis, [1.0], 0.05, first=3)
        changed = forward(model)
        space.restore(saved)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype] * float(
        changed.abs().max()
    )
    torch.testing.assert_close(inside, changed, rtol=0, atol=tolerance)
    assert float((inside - plain).abs().max()) > 5 * tolerance  # the perturbation bites


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_models_fall_back_to_a_copy():
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    scripted = torch.jit.trace(plain, torch.randn(2, 4))
    x = torch.randn(2, 4)
    assert not can_exchange(scripted)
    assert not can_exchange(torch.compile(torch.nn.Linear(2, 2)))  # compiled when it is first used
    space, twin = ParameterSpace(scripted), ParameterSpace(plain)
    before = space.digest()
    with torch.no_grad(), space.perturbed(Basis("normal"), 0, 0.5):
        inside = scripted(x)
    assert space.digest() == before
    twin.add(Basis("normal"), [1.0], 0.5)
    with torch.no_grad():
        torch.testing.assert_close(inside, plain(x))


class Casting(torch.nn.Module):
    """A router that its own forward pass casts, as that of Switch Transformers does."""

    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(128, 100)

    def forward(self, x):
        self.router = self.router.to(torch.float32)
        return self.router(x)


@pytest.mark.parametrize("tracked", [False, True])
def test_a_module_that_its_forward_casts_keeps_its_weights(tracked):
    torch.manual_seed(0)
    model, x, basis = Casting(), torch.randn(3, 128), Basis("normal", 5)
    space = ParameterSpace(model)
    saved, before = space.snapshot(), space.digest()
    with torch.set_grad_enabled(tracked), space.perturbed(basis, 3, 0.05):
        inside = [model(x).detach() for _ in range(2)]
    assert space.digest() == before
    space.add(basis, [1.0], 0.05, first=3)
    with torch.no_grad():
        changed = model(x)
    space.restore(saved)
    assert all(torch.equal(one, changed) for one in inside)
    with torch.no_grad():
        assert not torch.equal(changed, model(x))


@pytest.mark.parametrize(
    ("stored", "assigned", "named"),
    [
        (torch.bfloat16, lambda data: data.float(), "cast, from torch.bfloat16 to torch.float32"),
        (torch.float32, lambda data: data.clamp(max=0.0), r"other values .* of shape \(100, 128\)"),
    ],
)
def test_a_forward_that_assigns_other_weights_is_an_error(stored, assigned, named):
    class Assigning(Casting):
        def forward(self, x):
            self.router.weight.data = assigned(self.router.weight)
            return self.router(x)

    model = Assigning().to(stored)
    space = ParameterSpace(model)
    before = space.digest()
    with (
        torch.no_grad(),
        pytest.raises(FedseedError, match=named),
        space.perturbed(Basis("normal", 5), 3, 0.05),
    ):
        model(torch.randn(3, 128))
    assert space.digest() == before


class Wide(torch.nn.Module):
    """Large matrices that share a weight, used with and without a bias, and one whose width is no
    multiple of 16.
    """

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(256, 1100)
        self.odd = torch.nn.Linear(1100, 1000)
        self.tied = torch.nn.Linear(256, 1100, bias=False)
        self.tied.weight = self.up.weight

    def forward(self, x):
        return self.odd(torch.tanh(self.up(x)) + self.tied(x))


def products_counted(monkeypatch):
    """A list that gets the number of inputs of each product that a kernel makes without a copy."""
    inside = []
    original = load("cpu").product
    if original is None:
        pytest.skip("no fused multiply-add on this processor")

    def product(x, *rest):
        inside.append(len(x))
        return original(x, *rest)

    monkeypatch.setattr(load("cpu"), "product", product)
    return inside


@pytest.mark.parametrize(
    ("blocks", "expected"), [("one", [24, 24]), (2, [24, 24]), (7, []), ("tensor", [24, 24])]
)
def test_products_with_large_matrices_make_no_copy(blocks, expected, monkeypatch):
    """Unless the width is no multiple of 16, or the matrix lies in two blocks.

    The outcome is the same.
    """
    inside = products_counted(monkeypatch)
    torch.manual_seed(0)
    model = Wide().eval()
    x = torch.randn(2, 12, 256)
    space = ParameterSpace(model, blocks=blocks)
    before = space.digest()
    with torch.no_grad():
        plain = model(x)
        with space.perturbed(Basis("rademacher", 5), 3, 0.05):
            found = model(x)
        assert space.digest() == before
        assert inside == expected
        space.add(Basis("rademacher", 5), [1.0], 0.05, first=3)
        changed = model(x)
    torch.testing.assert_close(found, changed, rtol=0, atol=2e-5 * float(changed.abs().max()))
    assert float((changed - plain).abs().max()) > 0.1


def test_under_autocast_and_in_16_bits_a_product_is_of_a_copy(monkeypatch):
    inside, basis = products_counted(monkeypatch), Basis("hadamard", 5)
    model, half = Wide().eval(), Wide().bfloat16().eval()
    with torch.no_grad():
        with ParameterSpace(model).perturbed(basis, 3, 0.05), torch.autocast("cpu"):
            assert model.up(torch.randn(24, 256)).dtype == torch.bfloat16
        with ParameterSpace(half).perturbed(basis, 3, 0.05):
            assert half(torch.randn(24, 256, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert inside == []


def places(model):
    return [(p.data_ptr(), p.detach().clone()) for p in model.parameters()]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("opt", torch.float32), ("llama", torch.bfloat16), ("resnet", torch.float32)],
)
def test_copies_in_place_of_a_tiny_models_weights_give_the_same_bits(name, dtype, monkeypatch):
    model, forward = build(name)
    model.to(dtype).eval()
    space = ParameterSpace(model, blocks=3)
    before, outputs = places(model), []
    with torch.no_grad():
        for alone in (False, True):
            monkeypatch.setattr(spaces, "can_stand_in", lambda *_, alone=alone: alone)
            for kind in ("normal", "lowrank"):
                with space.perturbed(Basis(kind, 5), 3, 0.05):
                    outputs.append(forward(model))
                    # what is tested, is what happens
                    assert (places(model)[0][0] != before[0][0]) is alone
        outputs.append(forward(model))
    assert torch.equal(outputs[0], outputs[2]) and torch.equal(outputs[1], outputs[3])
    assert not torch.equal(outputs[0], outputs[4])
    for (place, values), (now, value) in zip(before, places(model), strict=True):
        assert place == now and torch.equal(values, value)


def test_weights_are_their_own_again_when_a_tiny_model_fails():
    model, _ = build("opt")
    space = ParameterSpace(model)
    before = places(model)
    perturbation = Perturbation(
        space.vector, Term(Basis("rademacher", 5), torch.ones(1).numpy(), 0), 0.1
    )
    with torch.no_grad(), pytest.raises(ZeroDivisionError), in_place_of(perturbation):
        assert all(a != b for (a, _), (b, _) in zip(before, places(model), strict=True))
        raise ZeroDivisionError
    assert all(
        a == b and torch.equal(v, w) for (a, v), (b, w) in zip(before, places(model), strict=True)
    )


def test_copies_stand_in_for_a_tiny_models_weights_only_where_nothing_remembers_them():
    model, _ = build("opt")
    vector = ParameterSpace(model).vector
    assert not can_stand_in(model, vector)  # gradients may be wanted
    with torch.no_grad():
        assert can_stand_in(model, vector)
        with torch.autocast("cpu", torch.bfloat16):  # keeps what it has cast, by tensor
            assert not can_stand_in(model, vector)
