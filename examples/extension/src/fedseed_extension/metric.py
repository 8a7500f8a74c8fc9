"""A score of generated answers."""

from collections.abc import Sequence


def first_word(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """How many answers begin with the right word, in percent."""
    found = 0
    for said, rights in zip(predictions, answers, strict=True):
        found += said.split()[:1] in [right.split()[:1] for right in rights]
    return 100.0 * found / len(predictions)
