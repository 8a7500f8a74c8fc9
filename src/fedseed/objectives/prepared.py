"""Examples made ready, once a run, and what a person is told about them, with whose they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedseed.objectives.losses import Objective
from fedseed.text import listed

SHOWN = 6  # clients that are named
REMARKS = {
    "plain": 'are written plainly ("User: ...", "Assistant: ..."): the base\'s tokenizer has no chat template',
    "apart": "are one for each answer of a chat: the chat template rewrites earlier answers",
    "system": "have their system message in the first user's: the chat template has no place for it",
    "tools": "have tools that the chat template leaves out",
    "split": "are pieces of longer texts",
}


@dataclass(frozen=True)
class Prepared:
    """Examples, ready to be learnt or measured.

    Args:
        name: whose they are.
        examples: those that can be used.
        made: what each of them became, one item mostly.
        dropped: how many can't be used.
    """

    name: str
    examples: list[Any]
    made: list[list[Any]]
    dropped: int

    @property
    def items(self) -> list[Any]:
        """Returns the items of all examples, in their order."""
        return [item for items in self.made for item in items]

    @property
    def cut(self) -> int:
        """Returns how many of the examples were cut."""
        return sum(any(getattr(item, "cut", 0) for item in items) for items in self.made)


def prepare(objective: Objective, name: str, examples: Sequence[Any]) -> Prepared:
    """Makes examples ready.

    Args:
        objective: decides which can be used.
        name: whose they are.
        examples: any number.
    """
    made = objective.each(examples)
    usable = [example for example, items in zip(examples, made, strict=True) if items]
    return Prepared(name, usable, [items for items in made if items], made.count([]))


def prepare_sets(
    objective: Objective, sets: Mapping[str, Sequence[Any]], limit: str
) -> tuple[dict[str, Prepared], list[str]]:
    """Makes evaluation sets ready, by prefix of the metric's name; returns lines about what was left out or cut, too.

    Raises:
        ValueError: nothing is left of a set.
    """
    found: dict[str, Prepared] = {}
    for prefix, examples in sets.items():
        name = f'the evaluation set "{prefix.rstrip("_")}"' if prefix else "the evaluation set"
        found[prefix] = prepare(objective, name, examples)
        if not found[prefix].examples:
            raise ValueError(f"none of the {len(examples):,} examples of {name} is usable (over {limit})")
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
    verb = "has no usable example and sends" if len(names) == 1 else "have no usable example and send"
    return (f"{len(names):,} of {len(prepared):,} clients {verb} nothing: {listed(names, SHOWN)}",)


def about(prepared: Sequence[Prepared], limit: str) -> tuple[str, ...]:
    """Returns lines about what was left out of the clients' examples, cut, or written in another way than asked for.

    Args:
        prepared: the clients' examples.
        limit: what makes an example too long, for a person.
    """
    lines = []
    for what, counts in (("left out", [one.dropped for one in prepared]), ("cut", [one.cut for one in prepared])):
        found = [f"{one.name} {n:,}" for one, n in zip(prepared, counts, strict=True) if n]
        whose = f"; whose: {listed(found, SHOWN)}" if len(prepared) > 1 else ""
        if found:
            lines.append(f"{sum(counts):,} of the clients' examples {what} (over {limit}){whose}")
    for remark, text in REMARKS.items():
        times = sum(remark in getattr(item, "remarks", ()) for one in prepared for item in one.items)
        if times:
            lines.append(f"{times:,} of the clients' examples {text}")
    return tuple(lines)
