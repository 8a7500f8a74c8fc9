"""Secure sums: the coordinator learns the sum of the clients' vectors, and of no single one
anything.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: "Practical Secure
Aggregation for Privacy-Preserving Machine Learning", CCS 2017. docs/secure-sums.md says what it
protects against, and what not.

    y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)    in whole numbers modulo
    2^bits

    fixed       vectors as whole numbers        shamir    secrets cut into shares
    keys        agreement, encryption, masks    messages  what is said, as bytes
    client      one client's side               summing   the coordinator's

Nothing here knows rounds' content, transports or methods: bytes come in, bytes go out.
"""

from fedseed.errors import MessageError


class TooFewError(Exception):
    """Fewer than the threshold are left, or somebody's secrets are not to be had: this attempt
    tells nothing.
    """


class LostError(Exception):
    """Shares were asked for, and the sum can't be had: the round is not opened again."""


class OpenedBeforeError(MessageError):
    """A client has opened this round or a later one: the difference of two sums may be a sum of
    one.
    """
