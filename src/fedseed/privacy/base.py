"""What a privacy mechanism is to those who only report on it."""

from typing import Protocol


class Mechanism(Protocol):
    """Makes steps private."""

    def spent(self, rounds: int) -> dict[str, float]:
        """Privacy spent in so many rounds, for `summary.json`."""
        ...
