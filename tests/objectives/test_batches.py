"""Micro-batches of so many tokens: in order, full, and padding counts."""

import random
from itertools import pairwise

import pytest
import torch

from fedseed.errors import RecipeError
from fedseed.objectives.losses import Options
from fedseed.objectives.masked import Blank
from fedseed.objectives.prepared import micro_batches
from fedseed.objectives.tokens import Tokens


def text(length):
    return Tokens((7,) * length, 1)


def padded(batch):
    return len(batch) * max(len(item.ids) for item in batch)


@pytest.mark.parametrize("seed", range(6))
def test_parts_are_in_order_and_none_would_take_one_more(seed):
    rng = random.Random(seed)
    items = [text(rng.randint(2, 60)) for _ in range(rng.randint(1, 40))]
    tokens = rng.randint(1, 200)
    parts = [list(part) for part in micro_batches(items, rng.randint(1, 9), tokens)]
    assert [item for part in parts for item in part] == items
    assert all(padded(part) <= tokens or len(part) == 1 for part in parts)
    for part, after in pairwise(parts):
        assert padded([*part, after[0]]) > tokens


def test_options_and_both_sides_of_a_pair_are_counted():
    choice = Options((text(10), text(4), text(6)), 1, (1,), False)
    # only the right option goes through the model
    taught = Options(choice.sequences, 1, (1,), True)
    assert list(map(len, micro_batches([choice] * 4, 9, 60))) == [2, 2]  # 3 rows of 10 each
    assert list(map(len, micro_batches([taught] * 4, 9, 8))) == [2, 2]  # a row of 4 each
    pairs = [Tokens((1,) * 12, 10, encoded=True), Tokens((1,) * 9, 4, encoded=True)]
    assert list(map(len, micro_batches(pairs, 9, 30))) == [2]  # two rows of 10 and 5
    assert list(map(len, micro_batches(pairs, 9, 29))) == [1, 1]
    blanks = [Blank((1,) * 8, 2, (3, 4), 0)] * 3
    assert list(map(len, micro_batches(blanks, 9, 16))) == [2, 1]


def test_examples_without_tokens_are_refused():
    with pytest.raises(
        RecipeError, match=r"method\.training\.batch_tokens = 9: these examples have no tokens"
    ):
        list(micro_batches([(torch.zeros(2), 1)], 4, 9))
