"""Evaluation on held-out examples: batched and deterministic."""

from collections.abc import Sequence
from math import exp
from typing import Any

import torch

from fedseed.objectives.generation import responses_to
from fedseed.objectives.losses import Objective, Scoring, TextObjective
from fedseed.objectives.prepared import Prepared
from fedseed.tasks import metrics as scoring


@torch.no_grad()
def mean_loss(model: torch.nn.Module, objective: Objective, items: Sequence[Any], batch: int = 32) -> float:
    """Returns the mean loss over all terms (response tokens) of all items."""
    model.eval()
    parts = (items[at : at + batch] for at in range(0, len(items), batch))
    return sum(float(objective.losses(model, part).sum()) for part in parts) / sum(map(objective.weight, items))


def language_metrics(
    model: torch.nn.Module,
    objective: TextObjective,
    prepared: Prepared,
    max_new_tokens: int = 32,
    scores: Sequence[str] = ("rouge_l",),
) -> dict[str, float]:
    """Returns loss, perplexity and scores of greedy responses (names of `fedseed.tasks.metrics.REGISTRY`).

    Args:
        model: a language model.
        objective: makes losses of items.
        prepared: what is evaluated on; at least one example.
        max_new_tokens: of each response.
        scores: which scores.
    """
    loss = mean_loss(model, objective, prepared.items)
    metrics = {"loss": loss, "perplexity": exp(min(loss, 700.0))}
    if scores:
        last = [items[-1] for items in prepared.made]
        responses = responses_to(model, objective, prepared.examples, last, max_new_tokens)
        answers = [e.answers or (e.response,) for e in prepared.examples]
        metrics.update({name: scoring.REGISTRY.get(name)(responses, answers) for name in scores})
    return metrics


def choice_metrics(
    model: torch.nn.Module, objective: Scoring, items: Sequence[Any], batch: int = 32, classes: bool = False
) -> dict[str, float]:
    """Returns loss, and accuracy in percent: how often a right option has the highest score (the first of equal ones).

    Args:
        model: what scores them.
        objective: scores the options.
        items: prepared examples; at least one.
        batch: sequences (options, texts, pictures) in a batch.
        classes: the options are classes: give the mean of their F1, too ("macro_f1").
    """
    model.eval()
    loss, found = 0.0, []
    for at in range(0, len(items), batch):
        part: list[Any] = list(items[at : at + batch])
        with torch.no_grad():
            scores = objective.scores(model, part, batch)
            loss += float(objective.losses_of(scores, part).sum())
        found += [row.index(max(row)) for row in scores.tolist()]
    gold = [item.gold for item in items]
    right = sum(said in (getattr(item, "right", ()) or (item.gold,)) for said, item in zip(found, items, strict=True))
    metrics = {"loss": loss / sum(map(objective.weight, items)), "accuracy": 100.0 * right / len(items)}
    return metrics | ({"macro_f1": scoring.macro_f1(found, gold)} if classes else {})
