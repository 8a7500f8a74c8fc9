"""Why a sum is not opened."""

from fedseed.errors import MessageError


class TooFewError(Exception):
    """Fewer than the threshold are left, or somebody's secrets are not to be had: this attempt tells nothing."""


class OpenedBeforeError(MessageError):
    """A round was opened with other survivors: the difference of two sums is a sum of few.

    Args:
        round: the round.
        survivors: whose vectors were in its sum.
    """

    def __init__(self, round: int, survivors: tuple[int, ...]) -> None:
        super().__init__(f"round {round} was opened before, with other survivors: two sums tell their difference")
        self.survivors = survivors
