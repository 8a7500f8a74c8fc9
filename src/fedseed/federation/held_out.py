"""Figures of clients that each evaluate on what they hold out of their own data, and their mean. Free of torch.

A client's figures are its metrics by name, and how many examples they are of: "held_out", and "validation" for metrics
that begin with "validation_". The mean weighs each client by that number.
"""

from collections.abc import Mapping

from fedseed.federation.control import COUNTS, HELD_OUT, VALIDATION


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
