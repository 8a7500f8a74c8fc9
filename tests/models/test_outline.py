"""Bases by their configuration alone, how attention is computed, and bases of random weights."""

from pathlib import Path

import pytest
import torch

from fedseed.models.loading import has_weights, load_model, locate, outline


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
        torch.testing.assert_close(model(ids).logits, load_model("small")[0](ids).logits, rtol=1e-4, atol=1e-4)
