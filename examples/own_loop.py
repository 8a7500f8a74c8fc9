"""A loop of your own, without gradients: forward passes tune all parameters, the tuned model is a
file of kilobytes.
"""

from functools import partial

import torch

import fedseed
from fedseed.models.loading import load_model  # or AutoModelForCausalLM and AutoTokenizer, as ever

model, tokenizer = load_model("small")
texts = [
    f"Count: {n} times one {what} is {n} {what}s"
    for n in range(2, 10)
    for what in ("bird", "star", "boat")
]
batches = [tokenizer(texts[i::4], return_tensors="pt", padding=True) for i in range(4)]


def loss(batch):
    """The model's loss on a batch; what stands behind a text's end does not count."""
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return model(**batch, labels=labels).loss


with fedseed.ZOOptimizer(
    model, learning_rate=1e-4, base="small", orbit="counting.orbit"
) as optimizer:
    for step in range(201):
        found = optimizer.step(partial(loss, batches[step % 4]))
        if step % 50 == 0:
            print(f"step {step:3}: loss {found:.3f}")

again = fedseed.from_orbit("counting.orbit")  # anybody who has the base: the same bits
assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
