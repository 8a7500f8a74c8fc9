"""The loss of a uniform guess: a model that gives every word or class the same probability."""

from math import log
from typing import Any

from fedseed.objectives.losses import Objective, Scoring, TextObjective


def guess_loss(objective: Objective, model: Any, item: Any) -> float | None:
    """Return the loss of a uniform guess.

    Args:
        objective: computes losses of items.
        model: the tuned model; it is not run.
        item: a prepared example, or None.

    Returns:
        The natural logarithm of the number of words, or of the item's options. None if this number
        is not known, as for a user's own loss function or for rewards.
    """
    if isinstance(objective, Scoring):
        count = _count_options(objective, model, item)
    elif isinstance(objective, TextObjective):
        count = _count_words(model)
    else:
        count = None
    if count:
        return log(count)
    return None


def _count_options(objective: Scoring, model: Any, item: Any) -> int | None:
    if getattr(item, "teacher_forcing", False):
        return _count_words(model)
    for name in ("sequences", "words"):
        if hasattr(item, name):
            return len(getattr(item, name))
    return getattr(getattr(model, "config", None), "num_labels", None)


def _count_words(model: Any) -> int | None:
    settings: Any = getattr(model, "config", None)
    if hasattr(settings, "get_text_config"):
        settings = settings.get_text_config()
    return getattr(settings, "vocab_size", None)
