"""c_i: how much each client of a round counts."""

from collections.abc import Sequence
from typing import Literal

Weighting = Literal["equal", "examples"]


def client_weights(
    weighting: Literal["equal", "examples", "terms"], examples: Sequence[int], terms: Sequence[int]
) -> list[float]:
    """The weights of those that answered; they add up to 1.

    Args:
        weighting: "equal", or in proportion to "examples" or to the "terms" of the loss.
        examples: how many training examples each client says it has.
        terms: how many terms (response tokens, or examples) the loss of each client's update is a mean of; only looked
            at for "terms".
    """
    counts = {"equal": [1] * len(examples), "examples": examples, "terms": terms}[weighting]
    total = sum(counts)
    return [count / total for count in counts]
