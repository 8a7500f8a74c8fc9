"""Label words at a mask, on a small random RoBERTa whose tokenizer is of RoBERTa's kind."""

import pytest
import torch

from fedseed.models.loading import load_model
from fedseed.objectives.losses import Choices
from fedseed.objectives.masked import MaskedLM, NextWords
from fedseed.objectives.tokens import longest_input
from fedseed.tasks.data import MASK, Choice, Cloze
from fedseed.tasks.words import WordsTask
from fedseed.weights.digest import base_digest

TWO = (" terrible", " great")
THREE = (" Yes", " Maybe", " No")
EXAMPLES = [
    Cloze(f"a fine film It was {MASK}.", TWO, 1),
    Cloze(f"no It was {MASK}.", TWO, 0),
    Cloze(
        f"A man is here with very many other people in the yard? {MASK}, somebody is there",
        THREE,
        2,
    ),
    Cloze(f"{MASK}: What ?", THREE, 0),
]


@pytest.fixture(scope="module")
def base(masked_base):
    return load_model(str(masked_base), architecture="masked")


def by_hand(base, example):
    """The definition, one text alone: the words' logits at the mask."""
    model, tokenizer = base
    ids = torch.tensor([tokenizer(example.text.replace(MASK, "<mask>"))["input_ids"]])
    at = int((ids[0] == tokenizer.mask_token_id).nonzero())
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, at].float()
    words = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in example.words]
    assert all(len(word) == 1 for word in words)
    return [float(logits[word[0]]) for word in words]


def test_scores_are_the_words_logits_at_the_mask(base):
    objective = MaskedLM(base[1])
    items = objective.prepare(EXAMPLES)
    with torch.no_grad():
        scores = objective.scores(base[0], items)
    assert scores.shape == (4, 3) and scores.dtype == torch.float32
    for row, item, example in zip(scores, items, EXAMPLES, strict=True):
        expected = by_hand(base, example)
        assert row[: len(expected)].tolist() == pytest.approx(expected, abs=1e-4)
        assert all(value == -torch.inf for value in row[len(expected) :])
        # the sequence is the tokenizer's own, with its special tokens
        assert item.ids[0] == base[1].cls_token_id and item.ids[-1] == base[1].sep_token_id
        assert item.ids[item.mask] == base[1].mask_token_id
        loss = torch.logsumexp(torch.tensor(expected), 0) - expected[example.gold]
        assert float(objective.losses(base[0], [item])) == pytest.approx(float(loss), abs=1e-4)


def test_a_label_word_is_one_token(base):
    for words, problem in (
        (
            (" dreadful", " great"),
            r"the label word ' dreadful' is not one token of the model's tokenizer: \[",
        ),
        ((" great", " great"), "are not different tokens"),
        # without its space a word is another one
        (("great", " bad"), "the label word 'great' is not one token"),
    ):
        with pytest.raises(ValueError, match=problem):
            MaskedLM(base[1]).prepare([Cloze(f"It was {MASK}.", words, 0)])


def test_positions_begin_after_the_padding_index(base):
    """RoBERTa's 130 positions are room for 128 tokens: one more and it would fail."""
    model, tokenizer = base
    assert longest_input(model) == 128
    texts = [Cloze(f"{'a ' * words}{MASK}", TWO, 0) for words in range(200)]
    objective = MaskedLM(tokenizer, max_length=1000)
    with pytest.raises((IndexError, RuntimeError)), torch.no_grad():
        objective.losses(model, objective.prepare(texts[-1:]))
    longest = MaskedLM(tokenizer, max_length=128).prepare(texts)[-1]
    assert len(longest.ids) > 120
    with torch.no_grad():
        assert torch.isfinite(objective.losses(model, [longest])).all()


# -- words after a prompt: one pass says what a pass for each option says
# ---------------------------------------------

REVIEWS = WordsTask(examples=10, validation=10, evaluation=16).load().evaluation[""]


@pytest.fixture(scope="module")
def words():
    return load_model("words")


def test_the_base_is_the_one_that_was_made(words):
    model, tokenizer = words
    assert base_digest(model) == "d91f30d44e397a02ed555a044fb58b36"
    assert (
        len(tokenizer) == 147
        and tokenizer.unk_token_id not in tokenizer(REVIEWS[0].prompt)["input_ids"]
    )


def test_the_losses_are_those_of_a_choice_whatever_else_is_in_the_batch(words):
    model, tokenizer = words
    one, each = NextWords(tokenizer), Choices(tokenizer)
    items = one.prepare(REVIEWS)
    apart = each.prepare([Choice(e.prompt, e.options, e.gold) for e in REVIEWS])
    with torch.no_grad():
        losses = one.losses(model, items)
        assert torch.allclose(losses, each.losses(model, apart), atol=1e-5)
        alone = torch.cat([one.losses(model, [item]) for item in items])
        assert torch.allclose(losses, alone, atol=1e-5)
        scores = one.scores(model, items)
    assert {int(row.isinf().sum()) for row in scores} == {0, 2}  # two options of four are not there
