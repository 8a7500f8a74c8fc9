"""Any causal language model of transformers trains, without code of its own: a round through a recipe."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Qwen2Config,
)

from fedseed import Orbit
from fedseed.models.loading import load_model
from fedseed.runs.assembly import build
from fedseed.runs.recipe import read_recipe
from support.tiers import mark

pytestmark = pytest.mark.usefixtures("without_pictures")

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 128}
WIDE = {**SIZES, "intermediate_size": 24}
HEADS = {"num_key_value_heads": 1, "head_dim": 8}
CONFIGS = {
    "opt": lambda **ids: OPTConfig(**SIZES, **ids, ffn_dim=24, word_embed_proj_dim=16),
    "llama": lambda **ids: LlamaConfig(**WIDE, **ids),
    "qwen2": lambda **ids: Qwen2Config(**WIDE, **ids, num_key_value_heads=1, tie_word_embeddings=True),
    "gpt2": lambda **ids: GPT2Config(**ids, n_embd=16, n_layer=1, n_head=2, n_positions=128),
    "mistral": lambda **ids: MistralConfig(**WIDE, **ids, num_key_value_heads=1, sliding_window=8),
    "gemma2": lambda **ids: Gemma2Config(**WIDE, **ids, **HEADS, query_pre_attn_scalar=8),
}
SETTINGS = (
    "rounds=1", "task.clients=3", "task.examples=4", "task.evaluation=1", "task.unseen=0", "federation.per_round=2",
    "method.directions=20", "method.training.steps=2", "method.training.learning_rate=0.01",
    "evaluation.max_new_tokens=4",
)  # fmt: skip


# one of them is quick; the others are long
@pytest.fixture(scope="module", params=mark(CONFIGS, lambda name: name != next(iter(CONFIGS)), "long"))
def folder(request, small, tmp_path_factory):
    tokenizer = small[1]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp(request.param) / "base"
    AutoModelForCausalLM.from_config(CONFIGS[request.param](**ids)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_round_trains_and_replays(folder, tmp_path):
    recipe = read_recipe("quickstart-ferret", (*SETTINGS, f"model.base={folder}"))
    summary = build(recipe, out=tmp_path / "run").run().summary
    assert summary["skipped"] == 0
    assert set(summary["final"]) == {"loss", "perplexity", "rouge_l"}
    assert summary["final"]["loss"] != summary["baseline"]["loss"]
    model, _ = load_model(str(folder))
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert orbit.replay(model) == summary["weights_digest"] != orbit.header.base_digest
