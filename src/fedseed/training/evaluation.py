"""Evaluation on held-out examples: batched and deterministic."""

from collections.abc import Sequence
from math import exp
from typing import Any

import torch

from fedseed.tasks.data import Choice, Example
from fedseed.tasks.metrics import rouge_l
from fedseed.training.objectives import CausalLM, Choices, Objective


@torch.no_grad()
def mean_loss(model: torch.nn.Module, objective: Objective, items: Sequence[Any], batch: int = 32) -> float:
    """The mean loss over all terms (response tokens) of all items."""
    model.eval()
    total = 0.0
    for at in range(0, len(items), batch):
        total += float(objective.losses(model, items[at : at + batch]).sum())
    return total / sum(objective.weight(item) for item in items)


@torch.no_grad()
def generate(
    model: Any, objective: CausalLM, prompts: Sequence[str], max_new_tokens: int, batch: int = 64
) -> list[str]:
    """Greedy responses, in the order of the prompts. Prompts are padded on the left and batched by length."""
    model.eval()
    tokenizer = objective.tokenizer
    device = next(model.parameters()).device
    encoded = [objective.prompt_ids(prompt) for prompt in prompts]
    order = sorted(range(len(prompts)), key=lambda i: (len(encoded[i]), i))
    texts = [""] * len(prompts)
    for at in range(0, len(order), batch):
        rows = order[at : at + batch]
        longest = max(len(encoded[i]) for i in rows)
        ids = torch.full((len(rows), longest), objective.pad, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, i in enumerate(rows):
            ids[row, longest - len(encoded[i]) :] = torch.tensor(encoded[i])
            mask[row, longest - len(encoded[i]) :] = 1
        output = model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            pad_token_id=objective.pad,
            eos_token_id=tokenizer.eos_token_id,
        )
        for i, tokens in zip(rows, output[:, longest:].tolist(), strict=True):
            texts[i] = tokenizer.decode(tokens, skip_special_tokens=True)
    return texts


def language_metrics(
    model: torch.nn.Module,
    objective: CausalLM,
    examples: Sequence[Example],
    max_new_tokens: int = 32,
    rouge: bool = True,
) -> dict[str, float]:
    """Loss, perplexity and (if `rouge`) Rouge-L of greedy responses."""
    loss = mean_loss(model, objective, objective.prepare(examples))
    metrics = {"loss": loss, "perplexity": exp(min(loss, 700.0))}
    if rouge:
        responses = generate(model, objective, [e.prompt for e in examples], max_new_tokens)
        metrics["rouge_l"] = rouge_l(responses, [e.response for e in examples])
    return metrics


@torch.no_grad()
def choice_metrics(
    model: torch.nn.Module, objective: Choices, examples: Sequence[Choice], batch: int = 32
) -> dict[str, float]:
    """Loss, and accuracy in percent: how often the right option has the highest score (the first of equal ones).

    Raises:
        ValueError: no example is usable.
    """
    model.eval()
    items = objective.prepare(examples)
    if not items:
        raise ValueError(
            f"none of {len(examples)} examples is usable: all are longer than {objective.max_length} tokens"
        )
    loss, right = 0.0, 0
    for at in range(0, len(items), batch):
        part = items[at : at + batch]
        scores = objective.scores(model, part)
        loss += float(objective.losses_of(scores, part).sum())
        right += sum(row.index(max(row)) == item.gold for row, item in zip(scores.tolist(), part, strict=True))
    return {"loss": loss / len(items), "accuracy": 100.0 * right / len(items)}
