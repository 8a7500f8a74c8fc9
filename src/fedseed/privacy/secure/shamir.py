"""Shamir's shares of a secret: any `threshold` of them give it back, fewer say nothing.

Shamir: "How to Share a Secret", 1979. Share x is f(x), f a polynomial of degree threshold - 1 with
f(0) = the secret and coefficients from the operating system, modulo the prime 2^130 - 5. Whole
numbers of Python are not computed with in
constant time: shares are made and put together where nobody measures single operations.
"""

from collections.abc import Mapping, Sequence
from secrets import randbelow

from fedseed.errors import MessageError

PRIME = (1 << 130) - 5
SECRET_BYTES = 16
SHARE_BYTES = 17


def split(secret: bytes, at: Sequence[int], threshold: int) -> list[bytes]:
    """Shares of a secret.

    Args:
        secret: 16 bytes.
        at: whose shares: different numbers from 1 on.
        threshold: how many shares are needed.

    Returns:
        17 bytes for each.
    """
    if (
        len(secret) != SECRET_BYTES
        or len(set(at)) != len(at)
        or min(at) < 1
        or not 1 <= threshold <= len(at)
    ):
        raise ValueError(
            f"{len(at)} shares, {threshold} of which give {len(secret)} bytes back: that can't be"
        )
    falling = [*(randbelow(PRIME) for _ in range(threshold - 1)), int.from_bytes(secret, "little")]
    shares = []
    for x in at:
        value = 0
        for coefficient in falling:
            value = (value * x + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "little"))
    return shares


def read_share(data: bytes) -> int:
    """Return a share's number. Raises MessageError if it is none."""
    value = int.from_bytes(data, "little")
    if len(data) != SHARE_BYTES or value >= PRIME:
        raise MessageError("a share that is no number below 2^130 - 5")
    return value


def factors(at: Sequence[int]) -> list[int]:
    """Return Lagrange's factors for f(0) = sum_i factor_i f(x_i)."""
    found = []
    for i, x in enumerate(at):
        above = below = 1
        for j, other in enumerate(at):
            if j != i:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def join(shares: Mapping[int, int], by: Sequence[int] | None = None) -> bytes | None:
    """Return the secret.

    Args:
        shares: exactly as many as are needed, by whose they are.
        by: their `factors`, where many secrets have the same holders.

    Returns:
        16 bytes, or None: the shares are of no secret.
    """
    by = factors(list(shares)) if by is None else by
    value = sum(factor * share for factor, share in zip(by, shares.values(), strict=True)) % PRIME
    return (
        value.to_bytes(SHARE_BYTES, "little")[:SECRET_BYTES]
        if value >> (8 * SECRET_BYTES) == 0
        else None
    )
