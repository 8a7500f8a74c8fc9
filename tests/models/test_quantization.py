"""Quantised bases: what the layers compute, what their digest is of, what trains."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from fedseed import Federation, FeedSign, ParameterSpace, ZOOptimizer
from fedseed.errors import FedseedError, RecipeError
from fedseed.models import adapters
from fedseed.models.adapters import LoRA, install
from fedseed.models.heads import Head
from fedseed.models.loading import (
    checkpoint_activations,
    choose_trainable,
    load_model,
    outline,
)
from fedseed.models.quantization import (
    QUANTIZATION_FILE,
    dequantized,
    describe_quantized,
    is_quantized,
    read_quantization,
    scale_parameters,
)
from fedseed.models.quantized_layers import (
    QuantizedConv1D,
    QuantizedLayer,
    QuantizedLinear,
    dequantize,
    quantize,
    quantize_layers,
)
from fedseed.models.traits import examine, traits_of
from fedseed.recipe.reading import read_recipe
from fedseed.runs.assembly import build
from fedseed.weights.digest import base_digest
from support.text_bases import write

IDS = torch.arange(3, 23).reshape(2, 10)
LIBRARIES = {"nf4": "Linear4bit", "fp4": "Linear4bit", "llm-int8": "Linear8bitLt"}


def needs(quantization):
    library = "torchao" if quantization.startswith("torchao") else "bitsandbytes"
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: the extra quantized has it")


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


# -- layers


def reference(weight, bits):
    """What `quantize` and `dequantize` do together, by NumPy, a group at a time."""
    largest, out = np.float32(2 ** (bits - 1) - 1), np.zeros_like(weight)
    for row, values in enumerate(weight):
        for begin in range(0, len(values), 64):
            group = values[begin : begin + 64]
            scale = np.abs(group).max() / largest
            if scale > 0:
                out[row, begin : begin + 64] = np.rint(group / scale) * scale
    return out


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(3, 128), (5, 200), (4, 64), (2, 7), (1, 1), (6, 65)])
def test_a_matrix_is_codes_times_scales(shape, bits):
    weight = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    weight[0] = 0.0
    codes, scales = quantize(torch.from_numpy(weight), bits)
    found = dequantize(codes, scales, bits, shape[1], torch.float32).numpy()
    np.testing.assert_array_equal(found, reference(weight, bits))
    assert codes.dtype == torch.uint8 and scales.dtype == torch.float32
    if shape[1] % 64 == 0:
        assert codes.numel() == weight.size * bits // 8 and scales.numel() == weight.size // 64


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e30])
def test_numbers_of_any_size_stay_finite(size, bits):
    codes, scales = quantize(torch.tensor([[size, -size, size / 2, 0.0]]), bits)
    found = dequantize(codes, scales, bits, 4, torch.float32)
    assert found.isfinite().all() and (found[0, 3] == 0)
    assert (found[0, 0] >= 0) and (found[0, 0] == -found[0, 1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("base", "quantization", "digest"),
    [
        ("small", "int4", "9102b96c73055590535ade91dc6f2ff4"),
        ("small", "int8", "3f6a8151535b40fcc2006a28e59ff96a"),
        ("words", "int4", "fcc4d9f9cfab44382b04f846abdf09b1"),
        ("words", "int8", "6de9e95a876dcb44f87116fd87c66f9f"),
    ],
)
def test_a_base_has_one_digest_and_computes_with_the_weights_it_shows(
    base, quantization, digest, dtype
):
    model, _ = load_model(base, dtype, quantization=quantization)
    if dtype == "float32":
        assert base_digest(model) == digest  # the same on any machine
    expected = logits(model)
    original = logits(load_model(base, dtype)[0])
    assert not torch.equal(expected, original)
    plain = dequantized(load_model(base, dtype, quantization=quantization)[0])
    assert not is_quantized(plain) and torch.equal(logits(plain), expected)
    assert all(type(p) is torch.nn.Parameter for p in plain.parameters())


@pytest.mark.parametrize("bits", [4, 8])
def test_gpt2s_layers_embeddings_that_are_tied_and_output_layers(bits):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=24, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config).eval()
    embeddings = model.get_input_embeddings().weight.clone()
    quantize_layers(model, bits, ())
    kinds = {type(m) for m in model.modules() if isinstance(m, QuantizedLayer)}
    assert kinds == {QuantizedConv1D}
    assert torch.equal(model.lm_head.weight, embeddings)
    expected = logits(model)
    dequantized(model)
    assert torch.equal(logits(model), expected)


@pytest.mark.parametrize("base", ["llama", "gpt2"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_plain_layers_and_no_weights_are_kept_for_them(base, checkpointing):
    """Autograd would keep a matrix for each layer from the forward to the backward pass."""
    torch.manual_seed(0)
    if base == "gpt2":
        sizes = {"vocab_size": 40, "n_positions": 16, "n_embd": 64, "n_layer": 2, "n_head": 2}
        config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        model = GPT2LMHeadModel(config).eval()
        quantize_layers(model, 4, ())
    else:
        model, _ = load_model("small", quantization="int4")
    model.requires_grad_(False)
    embeddings = model.get_input_embeddings().weight.requires_grad_(True)
    if checkpointing:
        checkpoint_activations(model)
        model.train()
    kept = set()

    def keep(tensor):
        kept.add(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(IDS, labels=IDS).loss
    loss.backward()
    matrices = {
        shape
        for layer in model.modules()
        if isinstance(layer, QuantizedLayer)
        for shape in (tuple(layer.weight.shape), tuple(layer.weight.T.shape))
    }
    assert not kept & matrices
    gradient = embeddings.grad.clone()
    embeddings.grad = None
    dequantized(model)
    model.requires_grad_(False)
    embeddings.requires_grad_(True)
    model(IDS, labels=IDS).loss.backward()
    torch.testing.assert_close(gradient, embeddings.grad, rtol=1e-5, atol=1e-7)


def test_what_is_quantised_takes_less_memory_and_the_outline_says_how_much():
    for quantization, bits in (("int4", 4.5), ("int8", 8.5)):
        model, _ = load_model("small", quantization=quantization)
        layers = [m for m in model.modules() if isinstance(m, QuantizedLinear)]
        held = sum(layer.codes.nbytes + layer.scales.nbytes for layer in layers)
        assert held == pytest.approx(
            sum(layer.weight.numel() for layer in layers) * bits / 8, rel=0.03
        )
        drawn = outline("small", quantization=quantization)
        sizes = [(name, p.shape, p.dtype) for name, p in drawn.named_parameters()]
        assert sizes == [(name, p.shape, p.dtype) for name, p in model.named_parameters()]
    nf4 = outline("small", quantization="nf4")
    assert sum(p.nbytes for p in nf4.parameters()) == sum(
        p.nbytes for p in outline("small", quantization="int4").parameters()
    )


@pytest.mark.parametrize("kind", ["bert", "t5", "bart"])
def test_other_kinds_of_models_and_heads_that_stay_as_they_are(kind, tmp_path):
    folder = str(write(tmp_path / kind, kind))
    head = Head(("a", "b", "c"), 5) if kind == "bert" else None
    architecture = "classification" if head else None
    plain, _ = load_model(folder, architecture=architecture, head=head)
    model, _ = load_model(folder, architecture=architecture, head=head, quantization="int8")
    assert any(isinstance(m, QuantizedLayer) for m in model.modules())
    inputs = {"input_ids": torch.tensor([[3, 4, 5, 6]])}
    if kind != "bert":
        inputs["decoder_input_ids"] = torch.tensor([[0, 4, 5]])
    else:
        for name in ("classifier.weight", "bert.pooler.dense.weight"):
            assert torch.equal(model.get_parameter(name), plain.get_parameter(name))
    with torch.no_grad():
        found, expected = model(**inputs).logits, plain(**inputs).logits
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)


# -- LoRA whose A is fixed


@pytest.mark.parametrize("quantization", [None, "int4"])
def test_a_fixed_a_is_signs_of_the_shared_stream_and_b_alone_trains(quantization):
    def fresh(seed, rank=8):
        settings = LoRA(rank=rank, train="b", targets=["q_proj", "down_proj"])
        return install(load_model("small", quantization=quantization)[0], settings, seed)

    model, again, other = fresh(7), fresh(7), fresh(8)
    space = ParameterSpace(model)
    assert all("lora_B" in entry.name for entry in space.layout.tensors)
    factors = {n: p for n, p in model.named_parameters() if "lora_A" in n}
    assert set(factors) == set(model.fixed_parameters)
    for name, a in factors.items():
        assert torch.equal(a.abs(), torch.full_like(a, 8**-0.5))
        assert torch.equal(a, again.get_parameter(name))
        assert abs(float(a.sign().mean())) < 0.2
        assert not torch.equal(a, other.get_parameter(name))
    assert len({tuple(a.sign().flatten().tolist()[:64]) for a in factors.values()}) == len(factors)
    # what A is counts for the digest of the start, though it does not train
    assert space.digest() == ParameterSpace(other).digest()
    starts = [adapters.start_digest(m, ParameterSpace(m)) for m in (model, again, other)]
    assert starts[0] == starts[1] != starts[2]
    # by patterns it does not train either
    choose_trainable(model, ["*lora_*"])
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        entry.name for entry in space.layout.tensors
    }


def test_a_fixed_a_needs_linear_layers():
    settings = LoRA(train="b", targets=["q_proj", "embed_tokens"])
    with pytest.raises(
        RecipeError, match=(r'adapter.train = "b" .* is not a factor of a linear layer')
    ):
        install(load_model("small")[0], settings, 1)


def test_it_is_not_in_the_headers_of_other_loras():
    from fedseed.orbit.header import chosen_settings

    assert chosen_settings(LoRA(rank=4)) == {"kind": "lora", "rank": 4}
    assert chosen_settings(LoRA(rank=4, train="b")) == {"kind": "lora", "rank": 4, "train": "b"}


# -- what is refused before anything is loaded or trained


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.quantization=int4"], r'quantization = "int4": ferret would tune all .*"scales"'),
        (["model.quantization=nf4"], r'quantization = "nf4": ferret would tune all .* adapter'),
        (["model.trainable=scales"], r"model.quantization is not set; set it to"),
        (
            ["model.quantization=nf4", "model.trainable=scales"],
            r'model.quantization is "nf4"; set it to "int4"',
        ),
        (
            ["model.quantization=int4", "model.trainable=scales", 'model.adapter={kind="lora"}'],
            r"give name patterns for both",
        ),
        (
            ["model.quantization=nf4", 'model.adapter={kind="lora"}', "model.device=map"],
            r'device = "map" with model.quantization = "nf4": set a single device',
        ),
        (["model.quantization=int3"], r"model.quantization"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_the_recipe(settings, message):
    with pytest.raises(RecipeError, match=message):
        read_recipe("quickstart-ferret", settings)


@pytest.mark.parametrize("method", ["ferret", "fedavg", "feedsign", "fedkseed", "zo-fedsgd"])
def test_no_method_tunes_all_of_a_quantised_base(method):
    with pytest.raises(RecipeError, match=rf'"int8": {method} would tune all parameters'):
        read_recipe(
            "quickstart-ferret",
            ["method={}", f"method.name={method}", "model.quantization=int8"],
        )


@pytest.mark.parametrize("quantization", [None, "int4", "nf4", "llm-int8", "torchao-int8"])
def test_a_line_says_how_much_is_quantised(quantization):
    if quantization not in (None, "int4"):
        needs(quantization)
    model, _ = load_model("small", quantization=quantization)
    packed = "1,003,520 of 1,195,392 weights (84%)"
    assert describe_quantized(model) == (
        "" if quantization is None else f"the base is quantised: {packed}"
    )


@pytest.mark.parametrize("quantization", ["int4", "nf4", "llm-int8", "torchao-int8"])
def test_a_look_at_a_quantised_base_finds_nothing_at_rest(quantization):
    """Libraries hide that codes are read; and LLM.int8() rounds a token by those beside it."""
    if quantization != "int4":
        needs(quantization)
    model, _ = load_model("small", quantization=quantization)
    traits = examine(model, [[3, 4, 5], [6, 7, 8, 9, 10, 11]])
    assert traits.at_rest == [] and not traits.equal_lengths and not traits.equal_prompts
    said = [note for note in traits.notes if "rounding a token depends on other tokens" in note]
    assert traits.notes == said and len(said) == (quantization == "llm-int8")


def test_codes_do_not_train():
    model, _ = load_model("small", quantization="int4")
    for patterns in (["*"], ["*q_proj*"], ["*.layers.0.*"]):
        with pytest.raises(RecipeError, match=r"q_proj\.codes is quantised and can't be tuned"):
            choose_trainable(model, patterns)
    choose_trainable(model, ["*norm*", "*.scales"])
    space = ParameterSpace(model)
    assert {e.name.rpartition(".")[2] for e in space.layout.tensors} == {"weight", "scales"}


@pytest.mark.parametrize("quantization", ["int4", "nf4", "llm-int8", "torchao-int8"])
def test_a_programs_quantised_model_is_no_half_either(quantization):
    if quantization != "int4":
        needs(quantization)
    rows = [{"prompt": "a", "completion": "b"}]

    def fresh():
        return load_model("small", quantization=quantization)

    model, tokenizer = fresh()
    method = FeedSign(batch=1)
    with pytest.raises(RecipeError, match=r"the base is quantised: only its [\d,]+ unquantised"):
        Federation(model, [rows], method, tokenizer=tokenizer)
    with pytest.raises(RecipeError, match="the base is quantised: "):
        ZOOptimizer(fresh()[0])
    with pytest.raises(RecipeError, match="the base is quantised: "):
        choose_trainable(fresh()[0], None)
    with pytest.raises(ValueError, match=r"the model is quantised: only [\d,]+ .* adapter"):
        ParameterSpace(fresh()[0])
    # what the architecture freezes is nobody's choice
    model, _ = fresh()
    embeddings = model.get_input_embeddings().weight.requires_grad_(False)
    traits_of(model).at_rest.append(embeddings)
    with pytest.raises(ValueError, match="the model is quantised: "):
        ParameterSpace(model)
    traits_of(model).at_rest.remove(embeddings)
    assert embeddings.numel() not in {e.size for e in ParameterSpace(model).layout.tensors}
    model, tokenizer = fresh()
    federation = Federation(
        model, [rows], method, tokenizer=tokenizer, adapter=LoRA(rank=2), progress=False
    )
    assert federation.run().summary["parameters"] < 20_000


def test_a_model_that_is_not_quantised_as_the_run_says_is_refused():
    model, tokenizer = load_model("small")
    with pytest.raises(RecipeError, match="the model is not quantised this way; load it with"):
        Federation(
            model,
            [[{"prompt": "a", "completion": "b"}]],
            FeedSign(batch=1),
            tokenizer=tokenizer,
            adapter=LoRA(),
            quantization="int4",
        )


def test_an_unknown_kind_of_quantisation_is_refused():
    with pytest.raises(RecipeError, match=r'quantization = "int3": choose one of int4, int8'):
        load_model("small", quantization="int3")


def test_a_base_without_linear_layers_is_refused():
    with pytest.raises(RecipeError, match="without linear layers to quantise"):
        load_model("digits", quantization="int4")
    with pytest.raises(RecipeError, match="has no layers of"):
        scale_parameters(load_model("small")[0], "small")


def test_a_base_that_is_quantised_already_is_not_quantised_again(tmp_path):
    folder = write(tmp_path / "llama", "llama")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RecipeError, match=r'"int4": the files .* are quantised already \(gptq\)'):
        load_model(str(folder), quantization="int4")


@pytest.mark.parametrize("quantization", ["nf4", "torchao-int8"])
def test_a_library_that_is_missing_is_named(quantization, monkeypatch):
    monkeypatch.setattr("fedseed.models.quantized_loading.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=rf'"{quantization}" needs .*quantized'):
        load_model("small", quantization=quantization)


def test_a_damaged_note_beside_an_adapter_is_refused(tmp_path):
    assert read_quantization(tmp_path) is None
    path = tmp_path / QUANTIZATION_FILE
    for text in ("{", "[]", "{}", '{"quantization": "int3"}', '{"quantization": 4}'):
        path.write_text(text)
        with pytest.raises(FedseedError, match="not valid"):
            read_quantization(tmp_path)


# -- libraries' layers


@pytest.mark.parametrize("quantization", ["nf4", "fp4", "llm-int8", "torchao-int8"])
def test_a_librarys_base_has_one_digest_and_computes_the_same_at_any_time(quantization, tmp_path):
    needs(quantization)
    folder = str(write(tmp_path / "llama", "llama"))
    model, _ = load_model(folder, quantization=quantization)
    digest, first = base_digest(model), logits(model)
    if quantization in LIBRARIES:
        assert LIBRARIES[quantization] in {type(m).__name__ for m in model.modules()}
    model.train()(IDS)
    assert torch.equal(logits(model), first)
    assert (
        base_digest(model)
        == digest
        == base_digest(load_model(folder, quantization=quantization)[0])
    )
    assert digest != base_digest(load_model(folder)[0])
    # one weight of a quantised layer is another: the digest is
    with torch.no_grad():
        other = load_model(folder)[0]
        other.model.layers[0].self_attn.q_proj.weight[0, 0] += 1
        other.save_pretrained(tmp_path / "other")
    load_model(folder)[1].save_pretrained(tmp_path / "other")
    assert digest != base_digest(load_model(str(tmp_path / "other"), quantization=quantization)[0])
    installed = install(model, LoRA(rank=2), 1)
    assert adapters.base_digest(installed) == digest
    with pytest.raises(RecipeError, match="--merge: the base's weights are quantised"):
        adapters.merged(installed)


@pytest.mark.parametrize("quantization", ["nf4", "llm-int8", "torchao-int8"])
def test_a_folder_that_is_quantised_already_loads_as_it_is(quantization, tmp_path):
    needs(quantization)
    folder = str(write(tmp_path / "llama", "llama"))
    model, tokenizer = load_model(folder, quantization=quantization)
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    again, _ = load_model(str(tmp_path / "saved"))
    assert is_quantized(again) and torch.equal(logits(again), logits(model))
    assert base_digest(again) == base_digest(model)
    with pytest.raises(RecipeError, match=r"are quantised already \((bitsandbytes|torchao)\)"):
        load_model(str(tmp_path / "saved"), quantization=quantization)
    with pytest.raises(RecipeError, match="the base is quantised: "):
        choose_trainable(again, None)
    # the subspace's own choice would be of what is not quantised
    settings = [f"model.base={json.dumps(str(tmp_path / 'saved'))}", 'method={name="subspace"}']
    checked = read_recipe("quickstart-ferret", settings)
    with pytest.raises(RecipeError, match="the base is quantised: "):
        build(checked)
