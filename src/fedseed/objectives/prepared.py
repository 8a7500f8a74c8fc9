"""Prepares examples once in a run, describes them to the user, and divides them into
micro-batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from fedseed.errors import RecipeError
from fedseed.objectives.losses import Objective, Options
from fedseed.objectives.preferences import Pair
from fedseed.text import listed

SHOWN = 6  # how many clients a note names
REMARKS = {
    "plain": 'are written as plain text ("User: ...", "Assistant: ..."), because the base\'s '
    "tokenizer has no chat template",
    "apart": "are learnt answer by answer, because the chat template rewrites earlier answers",
    "system": (
        "have their system message moved into the first user message, because the chat template "
        "has no place for it"
    ),
    "tools": "have tools that the chat template does not write",
    "undescribed": "call functions without a description (in tools, functions or tool_defs)",
    "others": "mark messages of other roles as to be learnt, but only the assistant's are learnt",
    "flags": "have answers with a field that is true or false and that fedseed does not know: they "
    'are learnt (mark what is not to be learnt with "train" = false)',
    "arguments": "have template arguments (chat_template_kwargs) that the chat template does not "
    "use",
    "rendered": "already begin or end with special tokens, which are not added again",
    "split": "are divided into pieces",
}


@dataclass(frozen=True)
class Prepared:
    """Examples, prepared for training or evaluation."""

    name: str  # name of the set or the client
    examples: list[Any]  # the usable examples
    items_of_each: list[list[Any]]  # the items of each example, usually one
    dropped: int  # number of unusable examples

    @property
    def items(self) -> list[Any]:
        """Return the items of all examples, in their order."""
        return list(chain.from_iterable(self.items_of_each))

    @property
    def cut(self) -> int:
        """Return the number of examples that were cut."""
        return sum(map(_has_cut, self.items_of_each))


def _has_cut(items: Sequence[Any]) -> bool:
    return any(getattr(item, "cut", 0) for item in items)


def prepare(objective: Objective, name: str, examples: Sequence[Any]) -> Prepared:
    """Prepare examples. The objective decides which are usable. `name`: the set's or the client's
    name.

    Raises:
        RecipeError: an example has a token without an embedding in the model.
    """
    items_of_each = objective.items_of_each(examples)
    if objective.rows is not None:
        for example, items in zip(examples, items_of_each, strict=True):
            for item in items:
                _check_rows(objective, item, name, example)
    usable = [example for example, items in zip(examples, items_of_each, strict=True) if items]
    return Prepared(
        name, usable, [items for items in items_of_each if items], items_of_each.count([])
    )


def _check_rows(objective: Any, item: Any, name: str, example: Any) -> None:
    """Raise RecipeError if the model has no embedding for a token of an item."""
    tokens: list[int] = []
    for sequence in getattr(item, "sequences", (item,)):
        tokens += (*getattr(sequence, "ids", ()), *getattr(sequence, "words", ()))
    highest = max(tokens, default=-1)
    if highest < objective.rows:
        return
    text = objective.tokenizer.convert_ids_to_tokens(highest)
    source = getattr(example, "where", "")
    place = f"{name} ({source})" if source else name
    raise RecipeError(
        f"model.base: an example of {place} has the token {text!r} (number {highest:,}), but the "
        f"model has embeddings for only {objective.rows:,} tokens: tokens were added to the "
        "tokenizer and not to the model. Load both in transformers, call "
        "model.resize_token_embeddings(len(tokenizer)), and save both into one folder"
    )


def with_reference(objective: Any, model: Any, prepared: Prepared) -> Prepared:
    """Return examples with the base's values, if their loss needs them.

    Args:
        objective: the objective of the examples.
        model: the base, before any training and without the run's adapter.
        prepared: the examples.
    """
    if not hasattr(objective, "with_reference"):
        return prepared
    items = iter(objective.with_reference(model, prepared.items))
    items_of_each = [list(islice(items, len(old))) for old in prepared.items_of_each]
    return replace(prepared, items_of_each=items_of_each)


def prepare_sets(
    objective: Objective, sets: Mapping[str, Sequence[Any]], limit: str
) -> tuple[dict[str, Prepared], list[str]]:
    """Prepare evaluation sets, which are named by the prefix of their metrics.

    Returns:
        The prepared sets, and notes about examples that were left out or cut.

    Raises:
        ValueError: no example of a set is usable.
    """
    prepared: dict[str, Prepared] = {}
    for prefix, examples in sets.items():
        name = f'the evaluation set "{prefix.rstrip("_")}"' if prefix else "the evaluation set"
        prepared[prefix] = prepare(objective, name, examples)
        if not prepared[prefix].examples:
            raise ValueError(
                f"none of the {len(examples):,} examples of {name} is usable (over {limit})"
            )
    lines: list[str] = []
    for one in prepared.values():
        lines += describe_left_out(one, limit)
    return prepared, lines


def describe_left_out(prepared: Prepared, limit: str) -> list[str]:
    """Return notes about held-out examples that were left out or cut because of `limit`."""
    of_all = f"of {len(prepared.examples) + prepared.dropped:,} examples of {prepared.name}"
    counts = ((prepared.dropped, "left out"), (prepared.cut, "cut"))
    return [f"{n:,} {of_all} {change} (over {limit})" for n, change in counts if n]


def describe_idle(prepared: Sequence[Prepared]) -> tuple[str, ...]:
    """Return a note about clients without a usable example; empty if there are none."""
    names = [client.name for client in prepared if not client.items_of_each]
    if not names:
        return ()
    if len(names) == 1:
        verb = "has no usable example and sends"
    else:
        verb = "have no usable example and send"
    return (f"{len(names):,} of {len(prepared):,} clients {verb} nothing: {listed(names, SHOWN)}",)


def describe_changes(prepared: Sequence[Prepared], limit: str) -> tuple[str, ...]:
    """Return notes about clients' examples that were left out or cut (over `limit`), or changed."""
    lines = []
    for change, counts in (
        ("left out", [one.dropped for one in prepared]),
        ("cut", [one.cut for one in prepared]),
    ):
        parts = [f"{one.name} {n:,}" for one, n in zip(prepared, counts, strict=True) if n]
        owners = f"; by client: {listed(parts, SHOWN)}" if len(prepared) > 1 else ""
        if parts:
            lines.append(
                f"{sum(counts):,} of the clients' examples {change} (over {limit}){owners}"
            )
    for remark, text in REMARKS.items():
        examples = chain.from_iterable(one.items_of_each for one in prepared)
        times = sum(_has_remark(items, remark) for items in examples)
        if times:
            lines.append(f"{times:,} of the clients' examples {text}")
    return tuple(lines)


def _has_remark(items: Sequence[Any], remark: str) -> bool:
    """Return whether any item of an example has a remark, a key of `REMARKS`."""
    return any(remark in getattr(item, "remarks", ()) for item in items)


def sequences_of(item: Any) -> Sequence[Any]:
    """Return the sequences that go through the model for an item: the item itself, the scored
    options of a choice, or both answers of a preference.
    """
    if isinstance(item, Pair):
        return item.sequences
    if not isinstance(item, Options):
        return (item,)
    if item.teacher_forcing:
        return (item.sequences[item.gold],)
    return item.sequences


def micro_batches(
    items: Sequence[Any], batch: int, tokens: int | None = None
) -> Iterator[Sequence[Any]]:
    """Yield the micro-batches of a step's examples, in order.

    Args:
        items: prepared examples.
        batch: examples in a micro-batch, if `tokens` is None.
        tokens: the most tokens in a micro-batch, including padding: rows times the longest row. A
            longer example is a micro-batch by itself.

    Raises:
        RecipeError: the examples have no tokens.
    """
    if tokens is None:
        for position in range(0, len(items), batch):
            yield items[position : position + batch]
        return
    # the batch's rows, and the lengths of its longest row in an encoder and in a decoder
    begin, size = 0, (0, 0, 0)
    for position, item in enumerate(items):
        sides = [_sides(one) for one in sequences_of(item)]
        alone = len(sides), max(first for first, _ in sides), max(second for _, second in sides)
        if not sum(alone[1:]):
            raise RecipeError(
                f"method.training.batch_tokens = {tokens}: these examples have no tokens; remove "
                "this key and set method.training.batch"
            )
        size = size[0] + alone[0], max(size[1], alone[1]), max(size[2], alone[2])
        if size[0] * (size[1] + size[2]) > tokens and position > begin:
            yield items[begin:position]
            begin, size = position, alone
    yield items[begin:]


def _sides(sequence: Any) -> tuple[int, int]:
    """Return how many tokens of a sequence an encoder reads, and how many a decoder reads.

    For other models, all tokens count as the encoder's.
    """
    length = len(getattr(sequence, "ids", ()))
    encoded = sequence.response_start if getattr(sequence, "encoded", False) else length
    return encoded, length - encoded
