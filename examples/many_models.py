"""One base in memory, many models: each is a file of kilobytes, and a swap from one to another is
exact.
"""

import time

import torch

import fedseed
from fedseed.models.loading import load_model

# three models, each tuned on sentences of its own
for number, word in enumerate(("bird", "star", "boat")):
    model, tokenizer = load_model("small")
    batch = tokenizer(
        [f"Count: {n} times one {word} is {n} {word}s" for n in range(2, 10)], return_tensors="pt"
    )
    feedsign = fedseed.FeedSign(learning_rate=1e-3)  # a bit a step
    with fedseed.ZOOptimizer(
        model, feedsign, seed=number, base="small", orbit=f"{word}.orbit"
    ) as optimizer:
        for _ in range(50):
            optimizer.step(
                lambda batch=batch, model=model: model(**batch, labels=batch["input_ids"]).loss
            )

swapper = fedseed.Swapper("small", {word: f"{word}.orbit" for word in ("bird", "star", "boat")})
for word in ("bird", "star", "boat", "bird"):
    began = time.perf_counter()
    model = swapper.to(word)  # `swapper.to(None)` is the base again
    text = swapper.tokenizer("Count: 3 times one", return_tensors="pt")
    written = swapper.tokenizer.decode(
        model.generate(**text, max_new_tokens=6)[0], skip_special_tokens=True
    )
    print(f"{word}: {1e3 * (time.perf_counter() - began):.0f} ms, {written!r}")
alone = fedseed.from_orbit("bird.orbit")  # the same as a model of its own
assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), model.parameters(), strict=True))
