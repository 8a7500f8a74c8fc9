"""Figures of clients that each evaluate on what they hold out of their own data, and their mean. Free of torch.

A client's figures are its metrics by name, and how many examples they are of: "held_out", and "validation" for metrics
that begin with "validation_". The mean weighs each client by that number.
"""

from collections.abc import Mapping
from typing import Any

from fedseed.errors import MessageError
from fedseed.federation.report import MOST_EXAMPLES, MOST_METRICS, metric_name, real, short
from fedseed.text import shown

HELD_OUT = "held_out"
VALIDATION = "validation"
COUNTS = (HELD_OUT, VALIDATION)

Figures = dict[str, float]


def averaged(by_client: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The clients' metrics, each weighed by the number of examples that it is of.

    Args:
        by_client: figures by client, in the order in which they are added up.

    Returns:
        Metrics by name; those of which a client has an example.
    """
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    for figures in by_client.values():
        for name, value in figures.items():
            weight = figures.get(VALIDATION if name.startswith(f"{VALIDATION}_") else HELD_OUT, 0)
            if name not in COUNTS and weight:
                sums[name] = sums.get(name, 0.0) + weight * value
                weights[name] = weights.get(name, 0.0) + weight
    return {name: total / weights[name] for name, total in sums.items()}


def read_figures(data: Any) -> Figures:
    """A client's figures as it reports them.

    Raises:
        MessageError: not numbers by name, too many, or a number of examples that can't be.
    """
    if not isinstance(data, dict) or len(data) > MOST_METRICS:
        raise MessageError("figures that are no table of numbers")
    figures: Figures = {}
    for name, value in data.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise MessageError(f"figures: '{shown(name, 20)}' is no number")
        if name in COUNTS:
            if not (0 <= value <= MOST_EXAMPLES and value == int(value)):
                raise MessageError(f"figures: {short(value) if isinstance(value, int) else value} examples")
            figures[name] = int(value)
        else:
            figures[metric_name(name)] = real(value, f"figures: {shown(name, 20)}")
    if HELD_OUT not in figures:
        raise MessageError("figures without a number of examples")
    return figures
