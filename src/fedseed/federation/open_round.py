"""What a coordinator knows of a round while it is open."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedseed.methods.content import Content


@dataclass
class RejectedMessage:
    """A message that was not accepted."""

    round: int
    client: int
    reason: str


@dataclass
class Round:
    """One round while it is open."""

    number: int
    clients: Sequence[int]
    attempt: int = 0
    updates: dict[int, Any] = field(default_factory=dict)
    planned: Content = field(default_factory=Content)  # of a plan
    received: dict[int, Content] = field(default_factory=dict)  # of each update that counts
    sizes: dict[int, float] = field(default_factory=dict)  # the same updates', as they say themselves
    said: dict[int, int] = field(default_factory=dict)  # what each that counts claims to weigh, from `screen` on
    outliers: dict[int, str] | None = None  # whose updates were out of all proportion, once that was looked at
