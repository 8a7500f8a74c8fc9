"""Loading by kind: what is no model for the task, or not whole, is refused in words."""

import io
import json
from pathlib import Path

import pytest
import torch

from fedseed import Federation
from fedseed.errors import RecipeError
from fedseed.models.architectures import architecture_of
from fedseed.models.loading import has_weights, load_model, locate, outline
from support.published_bases import TEXT, write_base
from support.text_bases import random_model

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 32,
}
TEXTS = {**SIZES, "vocab_size": 1488, "max_position_embeddings": 66}
OPT = "opt", "AutoModelForCausalLM", {**TEXTS, "ffn_dim": 32, "word_embed_proj_dim": 32}
VIT = "vit", "AutoModelForImageClassification", {**SIZES, "image_size": 8, "patch_size": 4}
T5 = (
    "t5",
    "AutoModelForSeq2SeqLM",
    {"vocab_size": 99, "d_model": 16, "num_layers": 1, "d_ff": 16, "num_heads": 2},
)
CASES = {
    "a masked model for text to continue": (
        None,
        "causal",
        "the model is RobertaForMaskedLM, .*continues text",
    ),
    "a causal model for masks": (OPT, "masked", "is OPTForCausalLM, .*masked language model"),
    "an image model": (VIT, "causal", "is ViTForImageClassification, .*text"),
    "an encoder-decoder": (T5, "causal", "the task needs a language model"),
    "a body without a head": (
        ("roberta", "AutoModel", TEXTS),
        "masked",
        r"do not have all weights .* \(missing: lm_head",
    ),
}


@pytest.fixture
def saved(tmp_path, small):
    def save(kind, auto, sizes):
        random_model(kind, auto, **sizes).save_pretrained(tmp_path / "model")
        small[1].save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


@pytest.mark.parametrize("case", CASES)
def test_models_of_another_kind_are_refused(case, saved, masked_base):
    model, architecture, message = CASES[case]
    folder = str(masked_base) if model is None else saved(*model)
    with pytest.raises(RecipeError, match=message) as caught:
        load_model(folder, architecture=architecture)
    assert "\n" not in str(caught.value) and f'model.base = "{folder}"' in str(caught.value)


def test_a_tokenizer_of_sentencepiece_is_read(tmp_path):
    """OpenLLaMA as the hub has it: a .bin, and sentencepiece's tokenizer.model in place of
    tokenizer.json.
    """
    sentencepiece, made = pytest.importorskip("sentencepiece"), io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in TEXT.split("\n") if line] * 20),
        model_writer=made,
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        minloglevel=2,
    )
    folder = write_base("openlm-research/open_llama_3b", tmp_path / "llama")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(made.getvalue())
    _, tokenizer = load_model(str(folder))
    ids = tokenizer("Write a zebra é", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == "Write a zebra é" and tokenizer.eos_token_id == 2


def test_damaged_folders(saved, tmp_path):
    folder = saved(*OPT)
    config = (tmp_path / "model" / "config.json").read_text()
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()
    for name, content in (
        ("config.json", b"{"),
        ("config.json", b"{}"),
        ("config.json", json.dumps({**json.loads(config), "hidden_size": 64}).encode()),
        ("model.safetensors", weights[: len(weights) // 2]),
        ("model.safetensors", None),
    ):
        path = tmp_path / "model" / name
        whole = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(
            RecipeError,
            match=(r"no model can be loaded from the folder|requires .* belongs to another model"),
        ) as caught:
            load_model(folder, architecture="causal")
        assert "\n" not in str(caught.value)
        path.write_bytes(whole)
    load_model(folder, architecture="causal")  # whole again


CODE = """
from transformers import OPTForCausalLM

class OwnModel(OPTForCausalLM):
    ran = True
"""


@pytest.mark.long
def test_code_of_its_own_runs_only_if_the_recipe_says_so(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache")
    )
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    folder = saved(*OPT)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "modeling_own.py").write_text(CODE)
    with pytest.raises(
        RecipeError, match=r"its own code \(modeling_own.py\).*model.trust_remote_code = true"
    ):
        load_model(folder, architecture="causal")
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_own.OwnModel"}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        RecipeError, match=r"its own code \(auto_map in config.json, modeling_own.py\)"
    ):
        load_model(folder, architecture="causal")
    (tmp_path / "recipe.toml").write_text(
        f'rounds = 1\n[model]\nbase = "{folder}"\n[method]\nname = "ferret"\n[task]\nevaluation = '
        "1\n"
    )
    with pytest.raises(RecipeError, match="trust_remote_code"):
        Federation.from_file(tmp_path / "recipe.toml")
    assert load_model(folder, trust_remote_code=True, architecture="causal")[0].ran


@pytest.mark.parametrize(
    ("config", "classifies", "expected"),
    [
        ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}, False, "seq2seq"),
        ({"architectures": ["BartForCausalLM"], "model_type": "bart"}, False, "causal"),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, False, "masked"),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, True, "classification"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, True, "classification"),
        ({"architectures": ["ViTModel"], "model_type": "vit"}, True, "image"),
        (
            {
                "architectures": ["PerceiverForImageClassificationLearned"],
                "model_type": "perceiver",
            },
            True,
            "image",
        ),
        ({}, False, "causal"),
    ],
)
def test_what_a_configuration_says_it_is(config, classifies, expected):
    assert architecture_of(config, classifies) == expected


# -- by their configuration alone, and how attention is computed
# ------------------------------------------------------


def shapes(model):
    return {name: (tuple(p.shape), p.dtype) for name, p in model.named_parameters()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_outline_has_the_models_tensors(dtype):
    model, drawn = load_model("small", dtype)[0], outline("small", dtype)
    assert shapes(drawn) == shapes(model)
    assert type(drawn) is type(model) and not drawn.training
    assert drawn.lm_head.weight is drawn.get_input_embeddings().weight  # tied


def test_a_configuration_alone_is_enough(tmp_path):
    (tmp_path / "config.json").write_text((Path(locate("small")) / "config.json").read_text())
    assert shapes(outline(str(tmp_path))) == shapes(outline("small"))
    assert not has_weights(str(tmp_path)) and has_weights("small") and has_weights("some/name")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_is_what_the_recipe_says(attention):
    model, tokenizer = load_model("small", attention=attention)
    assert model.config._attn_implementation == attention
    ids = torch.tensor([tokenizer("The king has a red house.")["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(
            model(ids).logits, load_model("small")[0](ids).logits, rtol=1e-4, atol=1e-4
        )
