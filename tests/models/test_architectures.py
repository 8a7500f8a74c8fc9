"""Any causal language model of transformers trains, without code of its own: a round through a recipe."""

import pytest

from fedseed import Orbit
from fedseed.models.loading import load_model
from fedseed.runs.assembly import build
from fedseed.runs.recipe import read_recipe
from support.text_bases import save
from support.tiers import mark

pytestmark = pytest.mark.usefixtures("without_pictures")

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 128}
WIDE = {**SIZES, "intermediate_size": 24}
HEADS = {"num_key_value_heads": 1, "head_dim": 8}
CONFIGS = {
    "opt": {**SIZES, "ffn_dim": 24, "word_embed_proj_dim": 16},
    "llama": WIDE,
    "qwen2": {**WIDE, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128},
    "mistral": {**WIDE, "num_key_value_heads": 1, "sliding_window": 8},
    "gemma2": {**WIDE, **HEADS, "query_pre_attn_scalar": 8},
}
SETTINGS = (
    "rounds=1", "task.clients=3", "task.examples=4", "task.evaluation=1", "task.unseen=0", "federation.per_round=2",
    "method.directions=20", "method.training.steps=2", "method.training.learning_rate=0.01",
    "evaluation.max_new_tokens=4",
)  # fmt: skip


# one of them is quick; the others are long
@pytest.fixture(scope="module", params=mark(CONFIGS, lambda name: name != next(iter(CONFIGS)), "long"))
def folder(request, small, tmp_path_factory):
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": small[1].pad_token_id}
    folder = tmp_path_factory.mktemp(request.param) / "base"
    return save(folder, small[1], request.param, "AutoModelForCausalLM", {**CONFIGS[request.param], **ids})


def test_a_round_trains_and_replays(folder, tmp_path):
    recipe = read_recipe("quickstart-ferret", (*SETTINGS, f"model.base={folder}"))
    summary = build(recipe, out=tmp_path / "run").run().summary
    assert summary["skipped"] == 0
    assert set(summary["final"]) == {"loss", "perplexity", "rouge_l"}
    assert summary["final"]["loss"] != summary["baseline"]["loss"]
    model, _ = load_model(str(folder))
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert orbit.replay(model) == summary["weights_digest"] != orbit.header.base_digest
