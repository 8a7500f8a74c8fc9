"""Choosing among options, on small random models of two architectures."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM

from fedseed.objectives.evaluation import choice_metrics
from fedseed.objectives.losses import Choices
from fedseed.tasks.data import Choice

EXAMPLES = [
    Choice("a fine film It was", (" terrible", " great"), 1),
    Choice("no It was", (" terrible", " great"), 0),
    Choice("the longest of the prompts , with many words in it . It was", (" great", " not that bad", " bad"), 2),
    Choice("Say yes:", (" yes", " no , never"), 0),
]


@pytest.fixture(params=["opt", "llama"])
def model(request, small):
    torch.manual_seed(0)
    tokenizer = small[1]
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id}
    if request.param == "opt":
        config = OPTConfig(
            **sizes, **ids, ffn_dim=64, max_position_embeddings=128, word_embed_proj_dim=32, init_std=0.5
        )
        return OPTForCausalLM(config).eval()
    return LlamaForCausalLM(LlamaConfig(**sizes, **ids, intermediate_size=64, initializer_range=0.5)).eval()


def mean_log_p(model, tokenizer, prompt, option):
    """The definition, one sequence alone, without padding."""
    before = [tokenizer.bos_token_id, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    after = tokenizer(option, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([before + after])).logits[0].float()
    log_p = logits.log_softmax(-1)
    return sum(float(log_p[len(before) + i - 1, token]) for i, token in enumerate(after)) / len(after)


def test_scores_are_the_options_mean_token_log_probabilities(model, small):
    objective = Choices(small[1])
    with torch.no_grad():
        scores = objective.scores(model, objective.prepare(EXAMPLES))
    assert scores.shape == (4, 3) and scores.dtype == torch.float32
    for row, example in zip(scores, EXAMPLES, strict=True):
        expected = [mean_log_p(model, small[1], example.prompt, option) for option in example.options]
        assert row[: len(expected)].tolist() == pytest.approx(expected, rel=1e-4)
        assert all(value == -torch.inf for value in row[len(expected) :])


def test_gradients_of_a_batch_are_those_of_its_items(model, small):
    objective = Choices(small[1])
    items = objective.prepare(EXAMPLES)  # items with two and with three options

    def gradient(batches_of_items):
        model.zero_grad()
        for batch in batches_of_items:
            objective.losses(model, batch).sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    whole, parts = gradient([items]), gradient([[item] for item in items])
    assert torch.isfinite(whole).all() and whole.norm() > 0
    assert torch.nn.functional.cosine_similarity(whole, parts, dim=0) > 0.9999


def test_items(small):
    tokenizer = small[1]
    objective = Choices(tokenizer, max_length=12)
    (item,) = objective.prepare(EXAMPLES[1:3])  # the second is too long
    assert objective.dropped == 1 and objective.weight(item) == 1 and item.gold == 0
    for sequence, option in zip(item.sequences, EXAMPLES[1].options, strict=True):
        assert sequence.ids[0] == tokenizer.bos_token_id
        assert tokenizer.decode(sequence.ids[sequence.response_start :]).strip() == option.strip()
        assert tokenizer.eos_token_id not in sequence.ids[1:]  # nothing stands after an option
    with pytest.raises(ValueError, match="option '' has no token"):
        objective.prepare([Choice("x", ("", "a"), 0)])
    with pytest.raises(ValueError, match="none of 1 examples is usable"):
        choice_metrics(torch.nn.Linear(1, 1), objective, EXAMPLES[2:3])
