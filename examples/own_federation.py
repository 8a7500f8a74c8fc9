"""Three clients whose data are lists of rows (or a `datasets.Dataset` each) tune a model of your
own together.
"""

import fedseed
from fedseed.models.loading import load_model  # or AutoModelForCausalLM and AutoTokenizer, as ever

model, tokenizer = load_model("small")


def sentences(word):
    """What a client has: rows with "prompt" and "completion", with "messages", with "text" and
    "label", or texts.
    """
    return [
        {"prompt": f"Count: {n} times one {word} is", "completion": f" {n} {word}s"}
        for n in range(2, 10)
    ]


federation = fedseed.Federation(
    model,
    datasets=[sentences(word) for word in ("bird", "star", "boat")],
    method=fedseed.Ferret(
        bytes="28kB", training={"learning_rate": 0.1, "steps": 8, "batch": 4, "accumulation": 1}
    ),
    tokenizer=tokenizer,
    rounds=4,
    evaluation=sentences("tree"),
)
result = federation.run()
print(f"loss {result.summary['baseline']['loss']:.3f} -> {result.summary['final']['loss']:.3f}")
