"""What one example more does to the others of its batch, which are in the same padded pass.

The account is of what a sum moves by because of the example itself. What its length and the batch's
size do to the rounding of others' losses comes on top: it must be far below the clip in every dtype
that is allowed."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import fedseed
from fedseed import Federation, MeZO, ZOFedSGD
from fedseed.errors import RecipeError
from fedseed.federation.client.worker import Worker
from fedseed.models.adapters import LoRA, install
from fedseed.models.loading import load_model
from fedseed.objectives.losses import CausalLM
from fedseed.privacy import PrivacySettings
from fedseed.randomness import Basis
from fedseed.tasks.data import Example
from fedseed.training.client import LocalClient

BASE = str(Path(fedseed.__file__).parent / "base" / "small")
WORDS = "the cat sat on a mat while seven dogs ran over blue hills and slept"
CLIP, SCALE = 0.01, 1e-3
PRIVATE = PrivacySettings(level="example", clip=CLIP, noise=1.0)
ALLOWED = {"float32": {}, "float32, an adapter": {}}
REFUSED = {
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "bfloat16 under an adapter": {"dtype": "bfloat16"},
}


@cache
def base(name):
    model, tokenizer = load_model(BASE, **{**ALLOWED, **REFUSED}[name])
    return (install(model, LoRA(rank=2), 1) if "adapter" in name else model), CausalLM(tokenizer)


def texts(lengths, seed):
    drawn, words = np.random.default_rng(seed), WORDS.split()
    return [
        Example(" ".join(drawn.choice(words, 4)), " ".join(drawn.choice(words, n))) for n in lengths
    ]


def moves(name, batches=4):
    """By how much of the clip the clipped sum of the others' differences moves with one example
    more, each time.
    """
    model, objective = base(name)
    client = LocalClient(Worker(model, MeZO(), objective, 1).space, objective, [], 1, 1, 0)

    def total(items, others):
        plus, minus = (
            client.example_losses(Basis("rademacher", 1), 0, side, items)
            for side in (SCALE, -SCALE)
        )
        return np.clip(np.subtract(plus, minus)[:others], -CLIP, CLIP).sum()

    for seed in range(batches):
        others = 8 if seed % 2 else 40
        items = objective.prepare(texts(np.random.default_rng(seed).integers(1, 12, others), seed))
        before = total(items, others)
        for length in (1, 12, 60):
            yield (
                abs(total([*items, *objective.prepare(texts([length], 99))], others) - before)
                / CLIP
            )


@pytest.mark.parametrize("name", ALLOWED)
def test_one_example_more_moves_the_others_by_next_to_nothing(name):
    model, objective = base(name)
    assert max(moves(name)) < 0.005  # 0.0002 was seen
    Federation(model, [texts([3, 5], 1)], MeZO(batch=2), objective, 1, privacy=PRIVATE)


@pytest.mark.parametrize("name", REFUSED)
def test_it_moves_them_in_few_bits_which_are_refused(name):
    model, objective = base(name)
    assert any(share > 0.02 for share in moves(name))
    with pytest.raises(
        RecipeError, match=r'privacy.level = "example" with (bfloat16|float16) weights'
    ):
        Federation(model, [texts([3, 5], 1)], MeZO(batch=2), objective, 1, privacy=PRIVATE)
    shared, whole = (
        ZOFedSGD(batch=2, seeds="shared"),
        PrivacySettings(level="client", clip=1.0, noise=1.0),
    )
    # whose sums are not of examples
    Federation(model, [texts([3, 5], 1)], shared, objective, 1, privacy=whole)
