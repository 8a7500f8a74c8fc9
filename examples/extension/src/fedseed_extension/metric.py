"""A score of generated answers."""

from collections.abc import Sequence


def first_word(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Return the percentage of answers that begin with the right word.

    Args:
        predictions: the generated texts.
        answers: the right answers to each.
    """
    right = 0
    for text, expected in zip(predictions, answers, strict=True):
        right += text.split()[:1] in [answer.split()[:1] for answer in expected]
    return 100.0 * right / len(predictions)
