"""Evaluates models on held-out examples, in batches and deterministically."""

from collections.abc import Sequence
from math import exp
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from fedseed.objectives.classification import ScoredText, TextScores
from fedseed.objectives.generation import responses_to
from fedseed.objectives.losses import Objective, Scoring, TextObjective
from fedseed.objectives.preferences import Pair, Preferences
from fedseed.objectives.prepared import Prepared, prepare
from fedseed.objectives.rewarded import Rewarded, language_of
from fedseed.objectives.settings import EvaluationSettings
from fedseed.tasks import metrics as scoring


@torch.no_grad()
def mean_loss(
    model: torch.nn.Module, objective: Objective, items: Sequence[Any], batch: int = 32
) -> float:
    """Return the mean loss over all terms (response tokens) of all items."""
    model.eval()
    parts = (items[start : start + batch] for start in range(0, len(items), batch))
    return sum(float(objective.losses(model, part).sum()) for part in parts) / sum(
        map(objective.weight, items)
    )


def measure(
    model: torch.nn.Module,
    objective: Any,
    prepared: Prepared,
    scores: Sequence[str],
    settings: EvaluationSettings,
) -> dict[str, float]:
    """Return a model's metrics, by name.

    For a rewarded objective: the metrics of its language objective and the mean reward.

    Args:
        model: the model.
        objective: the objective for these examples.
        prepared: the examples to evaluate on; at least one.
        scores: the task's metrics of generated answers (names in `fedseed.tasks.metrics.REGISTRY`).
        settings: further metrics, and the length of answers.
    """
    if isinstance(objective, Scoring):
        return choice_metrics(model, objective, prepared.items)
    if isinstance(objective, TextScores):
        return regression_metrics(model, objective, prepared.items)
    if isinstance(objective, Preferences):
        return preference_metrics(model, objective, prepared.items)
    if isinstance(objective, Rewarded):
        # a chat may have several answers, each of which is an item
        language_items = prepare(objective.language, prepared.name, prepared.examples)
        metrics = measure(model, objective.language, language_items, scores, settings)
        return {**metrics, "reward": -mean_loss(model, objective, prepared.items)}
    loss = mean_loss(model, objective, prepared.items)
    metrics = {"loss": loss, "perplexity": exp(min(loss, 700.0))}
    names = dict.fromkeys((*scores, *settings.metrics)) if settings.rouge else ()
    if names:
        last = [items[-1] for items in prepared.items_of_each]
        responses = responses_to(model, objective, prepared.examples, last, settings.max_new_tokens)
        answers = [objective.references_of(example) for example in prepared.examples]
        metrics.update({name: scoring.REGISTRY.get(name)(responses, answers) for name in names})
    return metrics


@torch.no_grad()
def choice_metrics(
    model: torch.nn.Module, objective: Scoring, items: Sequence[Any]
) -> dict[str, float]:
    """Return the loss and the accuracy in percent. The arguments are those of `measure`.

    An answer is right if a right option has the highest score (among equal scores, the first). If
    the options are classes, the result also has their mean F1 ("macro_f1").
    """
    model.eval()
    loss, predictions = 0.0, []
    for start in range(0, len(items), objective.batch):
        part = list(items[start : start + objective.batch])
        scores = objective.scores(model, part, objective.batch)
        loss += float(objective.losses_of(scores, part).sum())
        predictions += [row.index(max(row)) for row in scores.tolist()]
    gold = [item.gold for item in items]
    right = sum(
        prediction in (getattr(item, "right", ()) or (item.gold,))
        for prediction, item in zip(predictions, items, strict=True)
    )
    metrics = {
        "loss": loss / sum(map(objective.weight, items)),
        "accuracy": 100.0 * right / len(items),
    }
    if objective.are_classes:
        metrics["macro_f1"] = scoring.macro_f1(predictions, gold)
    return metrics


@torch.no_grad()
def preference_metrics(
    model: torch.nn.Module, objective: Preferences, items: Sequence[Pair]
) -> dict[str, float]:
    """Return DPO's loss, how often the chosen answer has the higher implicit reward, and the mean
    margin between the rewards.

    Before training all rewards are 0, so none is higher. The arguments are those of `measure`.

    Returns:
        "loss"; "reward_accuracy", in percent; "reward_margin".
    """
    model.eval()
    margins: list[float] = []
    loss = 0.0
    for begin in range(0, len(items), objective.batch):
        part_margins = objective.margins(model, items[begin : begin + objective.batch])
        margins += part_margins.tolist()
        loss -= float(logsigmoid(part_margins).sum())
    return {
        "loss": loss / len(items),
        "reward_accuracy": 100.0 * sum(margin > 0 for margin in margins) / len(items),
        "reward_margin": sum(margins) / len(items),
    }


@torch.no_grad()
def regression_metrics(
    model: torch.nn.Module, objective: TextScores, items: Sequence[ScoredText]
) -> dict[str, float]:
    """Return the mean squared error, and the correlations of predictions and scores.

    If all scores are equal, the correlation is undefined and left out. The arguments are those of
    `measure`.

    Returns:
        "loss"; "pearson" and "spearman", from -1 to 1.
    """
    model.eval()
    loss = 0.0
    predicted: list[float] = []
    for begin in range(0, len(items), objective.batch):
        part = items[begin : begin + objective.batch]
        predictions = objective.predictions(model, part)
        loss += float(objective.losses_of(predictions, part).sum())
        predicted += predictions.tolist()
    metrics = {"loss": loss / len(items)}
    values = [item.value for item in items]
    if len(set(values)) > 1:
        metrics["pearson"] = scoring.pearson(predicted, values)
        metrics["spearman"] = scoring.spearman(predicted, values)
    return metrics


def score_notes(
    objective: Any, prepared: Prepared, scores: Sequence[str], settings: EvaluationSettings
) -> list[str]:
    """Return a note on what Rouge-L counts, if answers have letters beyond a-z.

    Args:
        objective: the objective for the examples.
        prepared: the examples to evaluate on.
        scores: the task's metrics of generated answers.
        settings: settings with further metrics.
    """
    language = language_of(objective)
    is_scored = settings.rouge and "rouge_l" in (*scores, *settings.metrics)
    generates = isinstance(language, TextObjective) and not isinstance(language, Scoring)
    if not is_scored or not generates:
        return []
    answers = [language.references_of(example)[0] for example in prepared.examples]
    share = scoring.share_of_accents(answers)
    if not share:
        return []
    fact = f"{share:.1%} of the words in the answers of {prepared.name} have letters beyond a-z"
    if scoring.keeps_accents(answers):
        return [f"Rouge-L keeps accents: {fact}"]
    return [f"Rouge-L keeps only a-z and 0-9, like rouge-score: {fact}"]
