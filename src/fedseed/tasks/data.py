"""What a task hands to a federation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Example:
    """A prompt, ready to be tokenised, and the response that carries the loss."""

    prompt: str
    response: str


@dataclass(frozen=True)
class Choice:
    """A prompt and the texts that may follow it, of which one is right.

    Args:
        prompt: ready to be tokenised.
        options: what may follow, as it is written after the prompt (usually with a space first).
        gold: the number of the right option.

    Raises:
        ValueError: `gold` is the number of no option.
    """

    prompt: str
    options: tuple[str, ...]
    gold: int

    def __post_init__(self) -> None:
        if not 0 <= self.gold < len(self.options):
            raise ValueError(f"gold = {self.gold}: there are {len(self.options)} options, numbered from 0")


@dataclass(frozen=True)
class ClientData:
    """One data holder: its name and its training examples."""

    name: str
    examples: Sequence[Any]


@dataclass(frozen=True)
class TaskData:
    """Everything a run needs of its data.

    Args:
        clients: the data holders.
        evaluation: sets that a run reports on, by prefix of the metric's name ("" for the main one).
        validation: for choosing settings; no run reports on it together with `evaluation`.
        notes: what was left out and how much is left, a line each; shown when a run starts.
    """

    clients: Sequence[ClientData]
    evaluation: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    validation: Sequence[Any] = ()
    notes: tuple[str, ...] = ()
