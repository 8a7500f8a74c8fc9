"""Cuts the examples of a step into what goes through a model at a time: so many examples, or so many tokens."""

from collections.abc import Iterator, Sequence
from typing import Any

from fedseed.errors import RecipeError
from fedseed.objectives.losses import Options


def sequences_of(item: Any) -> Sequence[Any]:
    """Returns what goes through the model for an example: itself, or the options of a choice that are scored."""
    if not isinstance(item, Options):
        return (item,)
    return (item.sequences[item.gold],) if item.teacher_forcing else item.sequences


def micro_batches(items: Sequence[Any], batch: int, tokens: int | None = None) -> Iterator[Sequence[Any]]:
    """Cuts the examples of a step, in their order, into what goes through the model at a time.

    Args:
        items: prepared examples.
        batch: how many examples there are at a time, where `tokens` does not decide it.
        tokens: the most tokens at a time, padding included: rows times the longest one. A longer example goes alone.

    Raises:
        RecipeError: the examples have no tokens.
    """
    if tokens is None:
        for at in range(0, len(items), batch):
            yield items[at : at + batch]
        return
    begin, size = 0, (0, 0, 0)  # the batch's rows, and its longest row in an encoder and in a decoder
    for at, item in enumerate(items):
        sides = [_sides(one) for one in sequences_of(item)]
        alone = len(sides), max(first for first, _ in sides), max(second for _, second in sides)
        if not sum(alone[1:]):
            raise RecipeError(
                f"method.training.batch_tokens = {tokens}: these examples have no tokens; leave it out and set "
                "method.training.batch"
            )
        size = size[0] + alone[0], max(size[1], alone[1]), max(size[2], alone[2])
        if size[0] * (size[1] + size[2]) > tokens and at > begin:
            yield items[begin:at]
            begin, size = at, alone
    yield items[begin:]


def _sides(sequence: Any) -> tuple[int, int]:
    """Returns how many tokens of a sequence an encoder reads, and a decoder; a model without these reads all as one."""
    length = len(getattr(sequence, "ids", ()))
    encoded = sequence.response_start if getattr(sequence, "encoded", False) else length
    return encoded, length - encoded
