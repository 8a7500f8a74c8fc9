#!/usr/bin/env bash
# transformers 5.24.0 with bitsandbytes 0.50.2, torch 2.13.0 (CPU), accelerate 1.15.0; found in November 2026.
#
# A model that is quantised while it is loaded can be saved. The folder so written loads, and computes the same; but that
# model can't be saved again: save_pretrained raises a NotImplementedError without any text. So whoever loads a published
# 4-bit or 8-bit checkpoint, tunes a norm or a head and saves the whole model has no model. (torchao's int8 weights end in
# the same way.) With save_original_format=False it can be saved, and loads again with equal logits.
#
# Output seen:
#   nf4: saved; loaded: logits equal; saved again: NotImplementedError(''); with save_original_format=False: logits equal
#   int8: saved; loaded: logits equal; saved again: NotImplementedError(''); with save_original_format=False: logits equal
#
# Ends with 1 if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 bitsandbytes==0.50.2 accelerate==1.15.0
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import sys

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(vocab_size=128, hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4)
LlamaForCausalLM(config).save_pretrained("plain")
IDS = torch.arange(3, 20)[None]
KINDS = {
    "nf4": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32),
    "int8": BitsAndBytesConfig(load_in_8bit=True),
}


def logits(model):
    with torch.no_grad():
        return model.train()(IDS).logits  # no dropout: training mode computes the same, on any processor


def again(name, model, **options):
    """Save a model, load it, and say whether it computes the same."""
    model.save_pretrained(name, **options)
    loaded = AutoModelForCausalLM.from_pretrained(name)
    return loaded, "logits equal" if torch.equal(logits(loaded), logits(model)) else "other logits"


seen = []
for kind, how in KINDS.items():
    model = AutoModelForCausalLM.from_pretrained("plain", quantization_config=how, dtype=torch.float32)
    loaded, equal = again(kind, model)
    line = f"{kind}: saved; loaded: {equal}; saved again: "
    try:
        loaded.save_pretrained(f"{kind}-again")
        line += "no error"
    except Exception as error:
        line += f"{type(error).__name__}({str(error)!r})"
    line += f"; with save_original_format=False: {again(f'{kind}-other', loaded, save_original_format=False)[1]}"
    seen.append(line)
    print(line)
wanted = "saved; loaded: logits equal; saved again: NotImplementedError(''); with save_original_format=False: logits equal"
sys.exit(any(line != f"{kind}: {wanted}" for kind, line in zip(KINDS, seen)))
PYTHON
