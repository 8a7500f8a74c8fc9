"""Troubles of a connection, each shown once while it lasts."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

PATIENCE_SECONDS = 5.0  # shorter interruptions are not shown


@dataclass
class Trouble:
    """One kind of trouble while it lasts."""

    began: float  # when it was first reported
    shown_texts: set[str] = field(default_factory=set)  # starts of the texts that were shown


@dataclass
class Troubles:
    """Shows why a connection waits, and when it continues.

    Args:
        say: shows a line to people.
    """

    say: Callable[[str], None]
    _open: dict[str, Trouble] = field(default_factory=dict)  # by kind

    def report(self, kind: str, reason: str, patience: float = PATIENCE_SECONDS) -> None:
        """Report a trouble; it is shown once it has lasted.

        Args:
            kind: the kind of trouble, as for `end`.
            reason: the problem and the remedy. Text after its first semicolon may change.
            patience: seconds before it is shown.
        """
        current_time = time.monotonic()
        trouble = self._open.setdefault(kind, Trouble(current_time))
        beginning = reason.partition(";")[0]
        if current_time >= trouble.began + patience and beginning not in trouble.shown_texts:
            trouble.shown_texts.add(beginning)
            self.say(f"waiting: {reason}")

    def end(self, kind: str, text: str) -> None:
        """End a trouble; show `text` if the trouble was shown."""
        trouble = self._open.pop(kind, None)
        if trouble is not None and trouble.shown_texts:
            self.say(text)
