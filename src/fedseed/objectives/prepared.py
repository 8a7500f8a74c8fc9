"""Examples made ready, once a run, what a person is told about them, and how they are cut into
micro-batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedseed.errors import RecipeError
from fedseed.objectives.losses import Objective, Options
from fedseed.objectives.preferences import Pair
from fedseed.text import listed

SHOWN = 6  # clients that are named
REMARKS = {
    "plain": 'are written plainly ("User: ...", "Assistant: ..."): the base\'s tokenizer has no '
    "chat template",
    "apart": "are one for each answer of a chat: the chat template rewrites earlier answers",
    "system": "have their system message in the first user's: the chat template has no place "
    "for it",
    "tools": "have tools that the chat template leaves out",
    "undescribed": "call functions that nothing beside the messages describes (tools, functions or "
    "tool_defs)",
    "others": "have messages of others than the assistant that are marked to be learnt: only the "
    "assistant's are",
    "arguments": "have template arguments (chat_template_kwargs) that the chat template does not "
    "use",
    "rendered": "begin or end with special tokens already, which are not put there once more",
    "split": "are pieces of longer texts",
}


@dataclass(frozen=True)
class Prepared:
    """Examples, ready to be learnt or measured."""

    name: str  # whose they are
    examples: list[Any]  # those that can be used
    made: list[list[Any]]  # what each of them became, one item mostly
    dropped: int  # how many can't be used

    @property
    def items(self) -> list[Any]:
        """Returns the items of all examples, in their order."""
        return [item for items in self.made for item in items]

    @property
    def cut(self) -> int:
        """Return the number of examples that were cut."""
        return sum(any(getattr(item, "cut", 0) for item in items) for items in self.made)


def prepare(objective: Objective, name: str, examples: Sequence[Any]) -> Prepared:
    """Makes examples ready.

    The objective decides which can be used, and `name` says whose they are.

    Raises:
        RecipeError: an example has a token that the model has no embedding for.
    """
    made = objective.each(examples)
    if objective.rows is not None:
        for example, items in zip(examples, made, strict=True):
            for item in items:
                _check_rows(objective, item, name, example)
    usable = [example for example, items in zip(examples, made, strict=True) if items]
    return Prepared(name, usable, [items for items in made if items], made.count([]))


def _check_rows(objective: Any, item: Any, name: str, example: Any) -> None:
    """Raises RecipeError if a token of an item is beyond the model's embedding."""
    tokens = [
        token
        for one in getattr(item, "sequences", (item,))
        for token in (*getattr(one, "ids", ()), *getattr(one, "words", ()))
    ]
    highest = max(tokens, default=-1)
    if highest < objective.rows:
        return
    text = objective.tokenizer.convert_ids_to_tokens(highest)
    where = getattr(example, "where", "")
    place = f"{name} ({where})" if where else name
    raise RecipeError(
        f"model.base: an example of {place} has the token {text!r} (number {highest:,}), the model "
        f"embeddings for {objective.rows:,} tokens: tokens were added to its tokenizer alone. Load "
        "both in transformers, call model.resize_token_embeddings(len(tokenizer)), and save both "
        "into one folder"
    )


def with_reference(objective: Any, model: Any, prepared: Prepared) -> Prepared:
    """Return examples with what their loss needs of the base, where it needs anything.

    Args:
        objective: makes losses of them.
        model: the base, before anything was trained and without an adapter of the run.
        prepared: the examples.
    """
    if not hasattr(objective, "with_reference"):
        return prepared
    items = iter(objective.with_reference(model, prepared.items))
    return replace(prepared, made=[[next(items) for _ in own] for own in prepared.made])


def prepare_sets(
    objective: Objective, sets: Mapping[str, Sequence[Any]], limit: str
) -> tuple[dict[str, Prepared], list[str]]:
    """Makes evaluation sets ready, by prefix of the metric's name.

    Returns lines about what was left out or cut, too.

    Raises:
        ValueError: nothing is left of a set.
    """
    found: dict[str, Prepared] = {}
    for prefix, examples in sets.items():
        name = f'the evaluation set "{prefix.rstrip("_")}"' if prefix else "the evaluation set"
        found[prefix] = prepare(objective, name, examples)
        if not found[prefix].examples:
            raise ValueError(
                f"none of the {len(examples):,} examples of {name} is usable (over {limit})"
            )
    return found, [line for one in found.values() for line in left_out(one, limit)]


def left_out(prepared: Prepared, limit: str) -> list[str]:
    """Returns lines about held-out examples that were left out or cut, as `limit` says."""
    of_all = f"of {len(prepared.examples) + prepared.dropped:,} examples of {prepared.name}"
    told = ((prepared.dropped, "left out"), (prepared.cut, "cut"))
    return [f"{n:,} {of_all} {what} (over {limit})" for n, what in told if n]


def idle(prepared: Sequence[Prepared]) -> tuple[str, ...]:
    """Returns a line about the clients without a usable example, if there are some."""
    names = [client.name for client in prepared if not client.made]
    if not names:
        return ()
    verb = (
        "has no usable example and sends" if len(names) == 1 else "have no usable example and send"
    )
    return (f"{len(names):,} of {len(prepared):,} clients {verb} nothing: {listed(names, SHOWN)}",)


def about(prepared: Sequence[Prepared], limit: str) -> tuple[str, ...]:
    """Returns lines about what was left out of clients' examples or cut (over `limit`), or written
    in another way.
    """
    lines = []
    for what, counts in (
        ("left out", [one.dropped for one in prepared]),
        ("cut", [one.cut for one in prepared]),
    ):
        found = [f"{one.name} {n:,}" for one, n in zip(prepared, counts, strict=True) if n]
        whose = f"; whose: {listed(found, SHOWN)}" if len(prepared) > 1 else ""
        if found:
            lines.append(f"{sum(counts):,} of the clients' examples {what} (over {limit}){whose}")
    for remark, text in REMARKS.items():
        times = sum(
            remark in getattr(item, "remarks", ()) for one in prepared for item in one.items
        )
        if times:
            lines.append(f"{times:,} of the clients' examples {text}")
    return tuple(lines)


def sequences_of(item: Any) -> Sequence[Any]:
    """Return the sequences that go through the model for an example: itself, the options of a
    choice that are scored, or both answers of a preference.
    """
    if isinstance(item, Pair):
        return item.sequences
    if not isinstance(item, Options):
        return (item,)
    return (item.sequences[item.gold],) if item.teacher_forcing else item.sequences


def micro_batches(
    items: Sequence[Any], batch: int, tokens: int | None = None
) -> Iterator[Sequence[Any]]:
    """Cuts the examples of a step, in their order, into what goes through the model at a time.

    Args:
        items: prepared examples.
        batch: how many examples there are at a time, where `tokens` does not decide it.
        tokens: the most tokens at a time, padding included: rows times the longest one. A longer
            example goes alone.

    Raises:
        RecipeError: the examples have no tokens.
    """
    if tokens is None:
        for at in range(0, len(items), batch):
            yield items[at : at + batch]
        return
    # the batch's rows, and its longest row in an encoder and in a decoder
    begin, size = 0, (0, 0, 0)
    for at, item in enumerate(items):
        sides = [_sides(one) for one in sequences_of(item)]
        alone = len(sides), max(first for first, _ in sides), max(second for _, second in sides)
        if not sum(alone[1:]):
            raise RecipeError(
                f"method.training.batch_tokens = {tokens}: these examples have no tokens; leave it "
                "out and set method.training.batch"
            )
        size = size[0] + alone[0], max(size[1], alone[1]), max(size[2], alone[2])
        if size[0] * (size[1] + size[2]) > tokens and at > begin:
            yield items[begin:at]
            begin, size = at, alone
    yield items[begin:]


def _sides(sequence: Any) -> tuple[int, int]:
    """Return the numbers of tokens of a sequence that an encoder and a decoder read.

    A model without these reads all as one.
    """
    length = len(getattr(sequence, "ids", ()))
    encoded = sequence.response_start if getattr(sequence, "encoded", False) else length
    return encoded, length - encoded
