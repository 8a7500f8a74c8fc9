"""c_i: how much each client of a round counts."""

from collections.abc import Sequence
from typing import Literal

Weighting = Literal["equal", "examples"]


def client_weights(
    weighting: Literal["equal", "examples", "terms"], examples: Sequence[int], terms: Sequence[int]
) -> list[float]:
    """The weights of those that answered; they add up to 1. Where all claims are 0 they are equal.

    Args:
        weighting: "equal", or in proportion to "examples" or to the "terms" of the loss.
        examples: how many training examples each client says it has.
        terms: how many terms (response tokens, or examples) the loss of each client's update is a mean of; only looked
            at for "terms".
    """
    return shares(claims(weighting, examples, terms))


def shares(counts: Sequence[int]) -> list[float]:
    """What each has of the sum of all; the same where all are 0."""
    total = sum(counts)
    return [count / total if total else 1 / len(counts) for count in counts]


def claims(
    weighting: Literal["equal", "examples", "terms"], examples: Sequence[int], terms: Sequence[int]
) -> Sequence[int]:
    """What clients say that their weights are in proportion to; 1 each where they weigh the same."""
    return {"equal": [1] * len(examples), "examples": examples, "terms": terms}[weighting]
