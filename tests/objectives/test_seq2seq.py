"""Encoder-decoders: losses and answers are what transformers computes, on tiny random T5 and BART
models.
"""

import pytest
import torch

from fedseed.models.loading import load_model
from fedseed.objectives.evaluation import choice_metrics, mean_loss, measure
from fedseed.objectives.generation import generate
from fedseed.objectives.losses import Choices
from fedseed.objectives.prepared import prepare
from fedseed.objectives.seq2seq import Seq2SeqChoices, Seq2SeqLM
from fedseed.objectives.settings import EvaluationSettings
from fedseed.tasks.data import Choice, Example
from support.text_bases import write

EXAMPLES = [
    Example("the film was great", "positive"),
    Example("a fine story and not at all bad", " good and great "),
    Example("terrible", "so bad"),
]
CHOICES = [
    Choice("the film was great", (" positive", " very negative"), 0),
    Choice("a bad story", (" positive", " very negative"), 1),
]


@pytest.fixture(scope="module", params=["t5", "bart"])
def base(request, tmp_path_factory):
    return load_model(str(write(tmp_path_factory.mktemp("seq2seq") / request.param, request.param)))


def by_hand(model, tokenizer, prompt, response):
    """transformers' own loss of one example, times its terms."""
    inputs = tokenizer(prompt, return_tensors="pt")
    labels = torch.tensor([tokenizer(response)["input_ids"]])
    with torch.no_grad():
        loss = model(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=labels
        ).loss
    return float(loss) * labels.shape[1]


def test_losses_are_transformers_in_any_batch(base):
    model, tokenizer = base
    objective = Seq2SeqLM(tokenizer)
    items = objective.prepare(EXAMPLES)
    expected = [by_hand(model, tokenizer, e.prompt, e.response.strip()) for e in EXAMPLES]
    with torch.no_grad():
        assert objective.losses(model, items).tolist() == pytest.approx(expected, rel=1e-5)
        for item, loss in zip(items, expected, strict=True):
            assert float(objective.losses(model, [item])) == pytest.approx(loss, rel=1e-5)
    terms = sum(objective.weight(item) for item in items)
    assert terms == sum(len(tokenizer(e.response)["input_ids"]) for e in EXAMPLES)
    assert mean_loss(model, objective, items, batch=2) == pytest.approx(
        sum(expected) / terms, rel=1e-5
    )


def test_a_prefix_stands_before_prompts_and_long_examples_are_dropped(base):
    tokenizer = base[1]
    plain, prefixed = Seq2SeqLM(tokenizer), Seq2SeqLM(tokenizer, prefix="Label : ")
    both = [
        plain.prepare([Example("Label : so bad", "good")])[0],
        prefixed.prepare([Example("so bad", "good")])[0],
    ]
    assert both[0] == both[1]
    short = Seq2SeqLM(tokenizer, max_length=6)
    kept = short.items_of_each([*EXAMPLES, Example("bad", "a very very very very great film")])
    assert list(map(len, kept)).count(0) == 2 == len(kept) - 2  # too long: a prompt, a response


def test_answers_are_those_of_one_prompt_at_a_time(base):
    model, tokenizer = base
    objective = Seq2SeqLM(tokenizer)
    prompts = [e.prompt for e in EXAMPLES]
    said = generate(model, objective, prompts, 6, batch=2)
    for prompt, text in zip(prompts, said, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        alone = model.generate(input_ids=ids, max_new_tokens=6, do_sample=False, num_beams=1)
        assert text == tokenizer.decode(alone[0], skip_special_tokens=True)
    wanted = EvaluationSettings(max_new_tokens=6, metrics=["exact_match"])
    metrics = measure(model, objective, prepare(objective, "", EXAMPLES), ("rouge_l",), wanted)
    assert set(metrics) == {"loss", "perplexity", "rouge_l", "exact_match"}
    taught = [Example(p, text) for p, text in zip(prompts, said, strict=True) if text]
    found = measure(model, objective, prepare(objective, "", taught), ("rouge_l",), wanted)
    assert taught and found["rouge_l"] == pytest.approx(100)


def test_options_are_scored_by_the_decoder(base):
    model, tokenizer = base
    objective = Seq2SeqChoices(tokenizer)
    items = objective.prepare(CHOICES)
    with torch.no_grad():
        scores = objective.scores(model, items)
    for row, choice in zip(scores, CHOICES, strict=True):
        for score, option in zip(row, choice.options, strict=True):
            terms = len(tokenizer(option.strip())["input_ids"])
            expected = -by_hand(model, tokenizer, choice.prompt, option.strip()) / terms
            assert float(score) == pytest.approx(expected, rel=1e-5)
    right = sum(int(row.argmax()) == c.gold for row, c in zip(scores, CHOICES, strict=True))
    found = choice_metrics(model, objective, items)
    assert found["accuracy"] == pytest.approx(50 * right) and isinstance(objective, Choices)
    short = Seq2SeqChoices(tokenizer, max_length=4)
    assert [] in short.items_of_each(CHOICES)
