"""Shamir's secret sharing: any `threshold` shares recover the secret, and fewer reveal nothing.

Shamir: "How to Share a Secret", 1979. Share x is f(x), f a polynomial of degree threshold - 1 with
f(0) = the secret and coefficients from the operating system, modulo the prime 2^130 - 5. Operations
on Python's whole numbers do not take constant time, so shares must be made and joined where nobody
can measure single operations.
"""

from collections.abc import Mapping, Sequence
from secrets import randbelow

from fedseed.errors import MessageError

PRIME = (1 << 130) - 5
SECRET_BYTES = 16
SHARE_BYTES = 17


def split(secret: bytes, holders: Sequence[int], threshold: int) -> list[bytes]:
    """Return shares of a secret.

    Args:
        secret: 16 bytes.
        holders: different numbers from 1 on, one for each share.
        threshold: number of shares that recover the secret.

    Returns:
        A share of 17 bytes for each holder.
    """
    if (
        len(secret) != SECRET_BYTES
        or len(set(holders)) != len(holders)
        or min(holders) < 1
        or not 1 <= threshold <= len(holders)
    ):
        raise ValueError(
            f"{len(holders)} shares with a threshold of {threshold} for {len(secret)} bytes are "
            "not possible"
        )
    falling = [*(randbelow(PRIME) for _ in range(threshold - 1)), int.from_bytes(secret, "little")]
    shares = []
    for x in holders:
        value = 0
        for coefficient in falling:
            value = (value * x + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "little"))
    return shares


def read_share(data: bytes) -> int:
    """Return a share's number. Raises MessageError if it is not a share."""
    value = int.from_bytes(data, "little")
    if len(data) != SHARE_BYTES or value >= PRIME:
        raise MessageError("a share that is not a number below 2^130 - 5")
    return value


def factors(holders: Sequence[int]) -> list[int]:
    """Return Lagrange's factors for f(0) = sum_i factor_i f(x_i)."""
    result = []
    for i, x in enumerate(holders):
        numerator = denominator = 1
        for j, other_x in enumerate(holders):
            if j != i:
                numerator = numerator * other_x % PRIME
                denominator = denominator * (other_x - x) % PRIME
        result.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return result


def recover_secret(shares: Mapping[int, int], weights: Sequence[int] | None = None) -> bytes | None:
    """Recover a secret from its shares.

    Args:
        shares: exactly the needed number of shares, by holder.
        weights: the holders' `factors`, which can be reused if many secrets have the same holders.

    Returns:
        The secret of 16 bytes; None if the shares do not give a secret.
    """
    if weights is None:
        weights = factors(list(shares))
    value = (
        sum(factor * share for factor, share in zip(weights, shares.values(), strict=True)) % PRIME
    )
    if value >> (8 * SECRET_BYTES):
        return None
    return value.to_bytes(SHARE_BYTES, "little")[:SECRET_BYTES]
