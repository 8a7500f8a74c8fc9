"""Corrupts the examples that simulated Byzantine clients learn from (`kind = "labels"`).

What such clients *send* is corrupted in `fedseed.attacks.updates`. Either way they keep to the protocol: their messages
can't be told from honest ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedseed.randomness import Domain, permutation
from fedseed.tasks.data import Choice, ClientData, Cloze, Example, Picture


def flip_labels(client: ClientData, seed: int, number: int, classes: int = 0) -> ClientData:
    """Returns the client's examples, each with the response (or target) of another example.

    In a `Choice` or `Cloze` the next option becomes the right one, in a `Picture` the next class, because another
    example often has the same one.

    Args:
        client: an honest client of `Example`s, `Choice`s, `Cloze`s, `Picture`s or (input, target) pairs.
        seed: the run's seed.
        number: the client's number.
        classes: how many classes of `Picture`s there are.
    """
    order = permutation(seed, Domain.ATTACK, len(client.examples), number)
    # a cycle through a random order: no example keeps its own response
    giver = {int(order[i]): int(order[i - 1]) for i in range(len(order))}
    return ClientData(
        client.name, [_with_target(client.examples, i, giver[i], classes) for i in range(len(client.examples))]
    )


def _with_target(examples: Sequence[Any], own: int, other: int, classes: int) -> Any:
    mine, given = examples[own], examples[other]
    if isinstance(mine, Example):
        return mine.answered_as(given)
    if isinstance(mine, Choice):
        return replace(mine, gold=(mine.gold + 1) % len(mine.options), right=())
    if isinstance(mine, Cloze):
        return replace(mine, gold=(mine.gold + 1) % len(mine.words))
    if isinstance(mine, Picture):
        return replace(mine, label=(mine.label + 1) % classes)
    return mine[0], given[1]
