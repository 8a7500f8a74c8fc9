"""Why a sum is not opened."""

from fedseed.errors import MessageError


class TooFewError(Exception):
    """Fewer than the threshold are left, or somebody's secrets are not to be had: this attempt tells nothing."""


class LostError(Exception):
    """Shares were asked for, and the sum can't be had: the round is not opened again."""


class OpenedBeforeError(MessageError):
    """A client has opened this round or a later one: the difference of two sums may be a sum of one."""
