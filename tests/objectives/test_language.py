"""Objective and evaluation of language models, on the project's small base."""

import pytest
import torch

from fedseed.objectives.evaluation import generate, language_metrics
from fedseed.objectives.losses import CausalLM
from fedseed.tasks.data import Example
from fedseed.tasks.instructions import InstructionsTask


@pytest.fixture(scope="module")
def examples():
    return InstructionsTask(clients=5, examples=1, evaluation=1, unseen=0, validation=1).load().evaluation[""]


def test_only_response_tokens_and_the_end_carry_loss(small):
    _model, tokenizer = small
    objective = CausalLM(tokenizer)
    items = objective.prepare([Example("### Response:\n", "seven"), Example("Say it\n", "it")])
    ids, mask, labels = objective.collate(items, torch.device("cpu"))
    for row, item in enumerate(items):
        assert ids[row, 0] == tokenizer.bos_token_id
        kept = labels[row] != -100
        assert kept.sum() == objective.weight(item) == len(item.ids) - item.response_start
        text = tokenizer.decode(ids[row][kept], skip_special_tokens=True)
        assert text == ("seven", "it")[row]
        assert ids[row][kept][-1] == tokenizer.eos_token_id
        assert mask[row].sum() == len(item.ids)


def test_long_examples_are_dropped_and_counted(small):
    objective = CausalLM(small[1], max_length=12)
    assert len(objective.prepare([Example("a", "b"), Example("a b c d e f g h i j", "k")])) == 1
    assert objective.dropped == 1


def test_the_base_has_learnt_its_format_and_has_room(small, examples):
    """It answers (ends by itself) and is far from perfect on families it never saw as instructions."""
    model, tokenizer = small
    objective = CausalLM(tokenizer)
    metrics = language_metrics(model, objective, examples, max_new_tokens=24)
    assert 0.5 < metrics["loss"] < 6
    assert 3 < metrics["rouge_l"] < 70
    texts = generate(model, objective, [e.prompt for e in examples], 24)
    assert sum(0 < len(t.split()) < 20 for t in texts) >= len(texts) / 2
