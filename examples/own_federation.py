"""Three clients whose data are Python lists (or columns of a `datasets.Dataset`) tune a model of your own together."""

import fedseed
from fedseed.models.loading import load_model  # or AutoModelForCausalLM and AutoTokenizer, as ever
from fedseed.objectives.losses import CausalLM
from fedseed.tasks.data import Example

model, tokenizer = load_model("small")


def sentences(word):
    """What a client has: any prompts and responses."""
    return [Example(f"Count: {n} times one {word} is", f" {n} {word}s") for n in range(2, 10)]


federation = fedseed.Federation(
    model,
    [sentences(word) for word in ("bird", "star", "boat")],
    fedseed.Ferret(bytes="28kB", training={"learning_rate": 0.1, "steps": 8, "batch": 4, "accumulation": 1}),
    CausalLM(tokenizer),
    rounds=4,
    evaluation={"": sentences("tree")},
)
result = federation.run()
print(f"loss {result.summary['baseline']['loss']:.3f} -> {result.summary['final']['loss']:.3f}")
