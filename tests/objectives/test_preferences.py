"""DPO's loss and gradient, against plain transformers and NumPy."""

import copy
import math

import numpy as np
import pytest
import torch

from fedseed.errors import RecipeError
from fedseed.objectives.losses import CausalLM
from fedseed.objectives.preferences import Preferences
from fedseed.objectives.prepared import micro_batches, prepare, with_reference
from fedseed.objectives.seq2seq import Seq2SeqLM
from fedseed.tasks.data import Chat, ChatStyle, Example, Preference
from support.chat_bases import chat_tokenizer
from support.text_bases import KINDS, random_model, word_tokenizer

PROMPTS = ("the film was", "a fine story was not", "the story was")
PAIRS = [(" great", " bad and terrible"), (" good and fine", " bad"), (" very good", " at all")]
BETA = 0.3


def tokenizer_of(kind):
    around, names, _, _ = KINDS[kind]
    return word_tokenizer(around, **names)


def moved(model):
    """Return a copy of a model with other weights, as after some training."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return other


@pytest.fixture
def base():
    _, _, _, sizes = KINDS["llama"]
    return random_model("llama", vocab_size=len(tokenizer_of("llama")), **sizes).eval()


@pytest.fixture
def examples():
    return [
        Preference(Example(prompt, chosen), Example(prompt, rejected))
        for prompt, (chosen, rejected) in zip(PROMPTS, PAIRS, strict=True)
    ]


def plain_log_probability(model, tokenizer, prompt, response):
    """Return log p of a response with its end token, by transformers alone."""
    before = tokenizer(prompt)["input_ids"]
    after = [*tokenizer(response, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    logits = model(input_ids=torch.tensor([[*before, *after]])).logits[0].float()
    by_token = torch.log_softmax(logits, dim=-1)
    return sum(by_token[len(before) - 1 + place, token] for place, token in enumerate(after))


def plain_margins(model, reference, tokenizer):
    """Return beta times what the sigmoid of equation 7 is of, a tensor for each pair."""
    found = []
    for prompt, answers in zip(PROMPTS, PAIRS, strict=True):
        log_ratios = [
            plain_log_probability(model, tokenizer, prompt, answer)
            - plain_log_probability(reference, tokenizer, prompt, answer).detach()
            for answer in answers
        ]
        found.append(BETA * (log_ratios[0] - log_ratios[1]))
    return found


def test_losses_are_those_of_plain_transformers(base, examples):
    tokenizer, tuned = tokenizer_of("llama"), moved(base)
    objective = Preferences(CausalLM(tokenizer), BETA)
    items = objective.with_reference(base, objective.prepare(examples))
    found = objective.losses(tuned, items)
    margins = torch.stack(plain_margins(tuned, base, tokenizer)).detach().numpy()
    assert np.ptp(margins) > 0.1  # or it would say little
    np.testing.assert_allclose(found.detach(), np.log1p(np.exp(-margins)), rtol=1e-5)
    alone = [objective.losses(tuned, [item]).item() for item in items]
    np.testing.assert_allclose(alone, found.detach(), rtol=1e-5)
    # of the base itself it is log 2, and nothing is preferred
    np.testing.assert_allclose(objective.losses(base, items).detach(), math.log(2), rtol=1e-6)


def test_gradients_are_those_of_the_formula(base, examples):
    tokenizer, tuned = tokenizer_of("llama"), moved(base)
    other = copy.deepcopy(tuned)
    objective = Preferences(CausalLM(tokenizer), BETA)
    items = objective.with_reference(base, objective.prepare(examples))
    objective.losses(tuned, items).sum().backward()
    margins = torch.stack(plain_margins(other, base, tokenizer))
    torch.log1p(torch.exp(-margins)).sum().backward()
    largest = max(float(one.grad.abs().max()) for one in other.parameters())
    assert largest > 1e-2
    for ours, theirs in zip(tuned.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5 * largest)


def test_a_pair_without_a_reference_is_refused(base, examples):
    objective = Preferences(CausalLM(tokenizer_of("llama")))
    with pytest.raises(RecipeError, match="call with_reference with the base before training"):
        objective.losses(base, objective.prepare(examples))


def test_references_stand_by_their_pairs(base, examples):
    """Also where a pair between others is too long, and where answers go through in parts."""
    long = Preference(Example("the film was " * 20, " good"), Example("the film was", " bad"))
    objective = Preferences(CausalLM(tokenizer_of("llama"), 40))
    mixed = prepare(objective, "n", [examples[0], long, *examples[1:]])
    assert mixed.dropped == 1 and mixed.examples == examples
    objective.batch = 2
    found = with_reference(objective, base, mixed).items
    alone = [objective.with_reference(base, objective.prepare([one]))[0] for one in examples]
    for item, other in zip(found, alone, strict=True):
        assert item.sequences == other.sequences
        assert item.reference == pytest.approx(other.reference, rel=1e-5)
    assert [len(part) for part in micro_batches(found, 4, tokens=20)] == [1, 1, 1]


def test_an_encoder_decoder_prefers_too(examples):
    _, _, name, sizes = KINDS["t5"]
    tokenizer = tokenizer_of("t5")
    model = random_model("t5", name, vocab_size=len(tokenizer), **sizes).eval()
    objective, tuned = Preferences(Seq2SeqLM(tokenizer), BETA), moved(model)
    items = objective.with_reference(model, objective.prepare(examples))
    margins = []
    for prompt, answers in zip(PROMPTS, PAIRS, strict=True):
        source = torch.tensor([tokenizer(prompt)["input_ids"]])
        targets = [torch.tensor([tokenizer(answer.strip())["input_ids"]]) for answer in answers]
        sums = [
            -one(input_ids=source, labels=target).loss.item() * target.numel()
            for one in (tuned, model)
            for target in targets
        ]
        margins.append(BETA * ((sums[0] - sums[2]) - (sums[1] - sums[3])))
    expected = np.log1p(np.exp(-np.array(margins)))
    np.testing.assert_allclose(objective.losses(tuned, items).detach(), expected, rtol=1e-4)


def chat(style, *answers):
    turns = [{"role": "user", "content": "a"}]
    for answer in answers:
        turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": "b"}]
    return Chat("User: a\n\nAssistant:", f" {answers[-1]}", messages=tuple(turns[:-1]), style=style)


def test_all_sequences_of_an_answer_count_or_none():
    """A plainly written chat becomes a sequence for each answer, of which one may be too long."""
    tokenizer = chat_tokenizer("llama")
    style = ChatStyle(writing="plain", loss_on="all")
    pair = Preference(chat(style, "one", "two"), chat(style, "no"))
    objective = Preferences(CausalLM(tokenizer, 1000))
    (item,) = objective.items(pair)
    assert (len(item.sequences), item.chosen_count) == (3, 2)
    longest = max(len(sequence.ids) for sequence in item.sequences)
    shorter = Preferences(CausalLM(tokenizer, longest - 1))
    assert shorter.language.items(pair.chosen)  # a part of it would fit
    assert shorter.items(pair) == []
