"""Secure sums: the coordinator learns only the sum of the clients' vectors.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: "Practical Secure
Aggregation for Privacy-Preserving Machine Learning", CCS 2017. docs/secure-sums.md explains which
attacks this prevents and which it does not.

    y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)
                                                          in whole numbers modulo 2^bits

    fixed       vectors as whole numbers        shamir    secrets cut into shares
    keys        agreement, encryption, masks    messages  asks and answers, as bytes
    client      one client's side               summing   the coordinator's side

This package does not depend on the content of rounds, on transports or on methods.
"""

from fedseed.errors import MessageError


class TooFewError(Exception):
    """Too few clients are left, or a secret can't be recovered; no sum of this attempt is known."""


class LostError(Exception):
    """Shares were asked for, but the sum can't be recovered: the round is not opened again."""


class OpenedBeforeError(MessageError):
    """A client has already opened this or a later round; two sums would reveal their difference."""
