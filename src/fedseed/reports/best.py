"""Which round of a run was the best one, by each metric that it measured."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

LOWER = ("loss", "perplexity")  # metrics whose names end so are better when they are lower; all others, higher


def best_rounds(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The best round by each metric, the first of equal ones; the base is round 0.

    Args:
        metrics: lines of metrics, round 0 first: what it measured counts.

    Returns:
        {"round": ..., "value": ...} by the metric's name.
    """
    found = {}
    for name in [name for name, value in metrics[0].items() if isinstance(value, float)] if metrics else []:
        sign = 1.0 if name.endswith(LOWER) else -1.0
        measured = [(line["round"], line[name]) for line in metrics if isinstance(line.get(name), float)]
        ordered = [(sign * value, number, value) for number, value in measured if not isnan(value)]
        if ordered:
            _, number, value = min(ordered, key=lambda one: one[:2])
            found[name] = {"round": number, "value": value}
    return found
