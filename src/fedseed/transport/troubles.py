"""What keeps a connection from working, said once for as long as it lasts."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

PATIENCE_SECONDS = 5.0  # an interruption that is shorter needs nobody's attention


@dataclass
class Trouble:
    """One kind of trouble while it lasts."""

    began: float  # when it was first seen
    said: set[str] = field(default_factory=set)  # beginnings of what was said of it


@dataclass
class Troubles:
    """Says what a connection waits for, and when it goes on.

    Args:
        say: shows a line to a person.
    """

    say: Callable[[str], None]
    _open: dict[str, Trouble] = field(default_factory=dict)  # by kind

    def report(self, kind: str, reason: str, patience: float = PATIENCE_SECONDS) -> None:
        """Take notice of a trouble; say it once it has lasted.

        Args:
            kind: what does not work: `end` names the same.
            reason: what is wrong and what to do. What follows its first semicolon may change.
            patience: seconds that it must have lasted.
        """
        now = time.monotonic()
        trouble = self._open.setdefault(kind, Trouble(now))
        beginning = reason.partition(";")[0]
        if now >= trouble.began + patience and beginning not in trouble.said:
            trouble.said.add(beginning)
            self.say(f"waiting: {reason}")

    def end(self, kind: str, text: str) -> None:
        """Take notice that it works again; said if the trouble was."""
        trouble = self._open.pop(kind, None)
        if trouble is not None and trouble.said:
            self.say(text)
