"""What a privacy mechanism is to those who only report on it."""

from typing import Any, ClassVar, Protocol

WITHHELD = "nothing to send"  # why a client of a private run sends nothing: the reason would depend on its data


class Mechanism(Protocol):
    """Makes steps private.

    `counted` and `spent` take what the coordinator has counted itself: nothing that a client says goes into an account.

    Attributes:
        by_turns: what is counted: the turns of the client that was asked most often, where who is asked follows from
            seed and round alone; else all steps.
    """

    by_turns: ClassVar[bool] = False

    @property
    def affordable(self) -> int | None:
        """The largest count within the budget; None: there is no budget."""
        return None

    def counted(self, rounds: int) -> dict[str, Any]:
        """Privacy spent in so many rounds or turns, for `status`: answered in no time."""
        ...

    def spent(self, rounds: int) -> dict[str, Any]:
        """The same and what a tighter account finds, for `summary.json`."""
        ...
