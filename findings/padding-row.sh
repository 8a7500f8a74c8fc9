#!/usr/bin/env bash
# transformers 5.24.0 with torch 2.13.0 (CPU); found in November 2026.
#
# Of most models from_pretrained gives the tensors of the file. Funnel (embeddings of all its classes) and Youtu are
# exceptions: whenever they are loaded, the padding token's row of the embeddings becomes zero, though the file has other
# values there and no message says so. Both write to a slice of the weight in _init_weights, and a slice does not have the
# mark that guards loaded tensors. In Youtu the matrix is also that of the outputs, so the padding token's logit changes
# for every text. LLaMA, which the script loads beside them, keeps the row. transformers 4.56.2 keeps Funnel's too.
#
# Output seen:
#   LlamaForCausalLM: row of padding as saved, logits equal
#   FunnelForMaskedLM: row of padding zero, logits differ
#   YoutuForCausalLM: row of padding zero, logits differ
#
# Ends with 1 if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import sys

import torch
from transformers import (
    FunnelConfig,
    FunnelForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    YoutuConfig,
    YoutuForCausalLM,
)

COMMON = dict(vocab_size=64, pad_token_id=0)
LAYERS = dict(COMMON, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
LATENT = dict(kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8)
FUNNEL = dict(COMMON, d_model=32, n_head=2, d_head=16, d_inner=32, block_sizes=[1], num_decoder_layers=1)
MODELS = [
    (LlamaForCausalLM, LlamaConfig(**LAYERS)),
    (FunnelForMaskedLM, FunnelConfig(**FUNNEL)),
    (YoutuForCausalLM, YoutuConfig(**LAYERS, **LATENT, num_key_value_heads=2)),
]
ROW = torch.linspace(-1, 1, 32)
IDS = torch.tensor([[5, 0, 7, 8]])
seen = []
for kind, config in MODELS:
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = ROW
    model.save_pretrained(kind.__name__)
    loaded = kind.from_pretrained(kind.__name__).eval()
    row = loaded.get_input_embeddings().weight[0]
    said = "zero" if not row.any() else "as saved" if torch.equal(row, ROW) else "other"
    with torch.no_grad():
        equal = torch.allclose(loaded(IDS).logits, model(IDS).logits, atol=1e-6)
    seen.append(f"{kind.__name__}: row of padding {said}, logits {'equal' if equal else 'differ'}")
    print(seen[-1])
EXPECTED = [
    "LlamaForCausalLM: row of padding as saved, logits equal",
    "FunnelForMaskedLM: row of padding zero, logits differ",
    "YoutuForCausalLM: row of padding zero, logits differ",
]
sys.exit(seen != EXPECTED)
PYTHON
