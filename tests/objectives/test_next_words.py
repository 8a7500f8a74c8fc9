"""One pass over the prompt says what a pass for each option says."""

import pytest
import torch

from fedseed.models.loading import load_model
from fedseed.objectives.losses import Choices
from fedseed.objectives.masked import NextWords
from fedseed.tasks.data import Choice
from fedseed.tasks.words import WordsTask
from fedseed.weights.digest import base_digest

EXAMPLES = WordsTask(examples=10, validation=10, evaluation=16).load().evaluation[""]


@pytest.fixture(scope="module")
def words():
    return load_model("words")


def test_the_base_is_the_one_that_was_made(words):
    model, tokenizer = words
    assert base_digest(model) == "d91f30d44e397a02ed555a044fb58b36"
    assert len(tokenizer) == 147 and tokenizer.unk_token_id not in tokenizer(EXAMPLES[0].prompt)["input_ids"]


def test_the_losses_are_those_of_a_choice_whatever_else_is_in_the_batch(words):
    model, tokenizer = words
    one, each = NextWords(tokenizer), Choices(tokenizer)
    items = one.prepare(EXAMPLES)
    apart = each.prepare([Choice(e.prompt, e.options, e.gold) for e in EXAMPLES])
    with torch.no_grad():
        losses = one.losses(model, items)
        assert torch.allclose(losses, each.losses(model, apart), atol=1e-5)
        alone = torch.cat([one.losses(model, [item]) for item in items])
        assert torch.allclose(losses, alone, atol=1e-5)
        scores = one.scores(model, items)
    assert {int(row.isinf().sum()) for row in scores} == {0, 2}  # two options of four are not there
