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
    """

    clients: Sequence[ClientData]
    evaluation: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    validation: Sequence[Any] = ()
