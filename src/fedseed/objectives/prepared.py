"""Clients' examples made ready, and what a person is told about them: once a run, with whose they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedseed.objectives.losses import Objective
from fedseed.tasks.data import ClientData
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
    """A client's examples, ready to be learnt.

    Args:
        name: the client.
        items: what its examples became.
        dropped: how many of them can't be used.
    """

    name: str
    items: list[Any]
    dropped: int

    @property
    def cut(self) -> int:
        """Returns how many of its items were cut."""
        return sum(getattr(item, "cut", 0) > 0 for item in self.items)


def prepare_clients(objective: Objective, clients: Sequence[ClientData]) -> list[Prepared]:
    """Makes all clients' examples ready."""
    made = []
    for client in clients:
        before = objective.dropped
        made.append(Prepared(client.name, objective.prepare(client.examples), objective.dropped - before))
    return made


def idle(prepared: Sequence[Prepared]) -> tuple[str, ...]:
    """Returns a line about the clients without a usable example, if there are some."""
    names = [client.name for client in prepared if not client.items]
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
