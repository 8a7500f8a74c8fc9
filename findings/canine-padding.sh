#!/bin/sh
# transformers 5.24.0 with torch 2.13.0 (CPU), November 2026: logits of CanineForSequenceClassification depend on the longer
# text that shares a padded batch, although attention_mask covers the padding, unless a text's
# length is a multiple of downsampling_rate (4). The convolution that makes a position of four
# tokens drops what is left over at the end of a text alone; beside a longer text it does not. A
# text of fewer than four tokens raises a RuntimeError alone, and gets logits in a batch.
#
# Output seen, of a random model:
#   length 8: the same
#   length 7: other logits
#   length 6: other logits
#   length 5: other logits
#   length 3: RuntimeError alone
# Exits with 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
"$folder/venv/bin/python" - <<'PYTHON' | tee "$folder/seen"
import torch
from transformers import CanineConfig, CanineForSequenceClassification

torch.manual_seed(0)
sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
more = {"intermediate_size": 96, "num_hash_buckets": 256, "max_position_embeddings": 256}
model = CanineForSequenceClassification(CanineConfig(**sizes, **more)).eval()
with torch.no_grad():
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(std=0.12)


def logits(*texts):
    width = max(map(len, texts))
    ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).logits[0]


longer = list(range(40, 64))
for length in (8, 7, 6, 5, 3):
    text = longer[:length]
    try:
        alone = logits(text)
    except RuntimeError as error:
        print(f"length {length}: {type(error).__name__} alone")
        logits(text, longer)
        continue
    apart = float((alone - logits(text, longer)).abs().max())
    print(f"length {length}: {'the same' if apart < 1e-5 else 'other logits'}")
PYTHON
for line in "8: the same" "7: other logits" "6: other logits" "5: other logits" \
    "3: RuntimeError alone"; do
    grep -q "^length $line$" "$folder/seen"
done
