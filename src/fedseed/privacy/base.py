"""What a privacy mechanism is to those who only report on it."""

from typing import Protocol

WITHHELD = "nothing to send"  # why a client of a private run sends nothing: the reason would depend on its data


class Mechanism(Protocol):
    """Makes steps private.

    Both functions take the number of steps that were released, which is the coordinator's own count: nothing that a
    client says goes into an account.
    """

    def counted(self, rounds: int) -> dict[str, float]:
        """Privacy spent in so many rounds by plain composition, for `status`: answered in no time."""
        ...

    def spent(self, rounds: int) -> dict[str, float]:
        """The same and what a tighter account finds, for `summary.json`."""
        ...
