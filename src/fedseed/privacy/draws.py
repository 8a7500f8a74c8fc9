"""Many draws at once from random bits of the operating system, exactly: whole numbers, and the discrete Gaussian.

    P(Y = y) = e^(-y^2 / 2 sigma^2) / sum_k e^(-k^2 / 2 sigma^2),  y whole

Canonne, Kamath, Steinke: "The Discrete Gaussian for Differential Privacy", 2020, Algorithms 1 to 3: numbers of the
discrete Laplace distribution, each of which is kept with probability e^-g. All rests on events of probability e^-g, g a
fraction. Each compares a uniform number with e^-g: 64 bits of it with a double in nearly all cases; where these are too
near to each other to tell (one in 2^35), it draws more bits of the same number and reckons with more digits until it
can. So no outcome's odds are those of floating-point numbers.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from itertools import count
from random import SystemRandom
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseed.privacy.settings import PrivacySettings
from fedseed.randomness import Domain, permutation

Bytes = Callable[[int], bytes]
Whole = NDArray[np.int64]
Fractions = Callable[[int], tuple[int, int]]  # g of one of several events, as (above, below)

MARGIN = 2.0**-36  # far more than a double's e^-g is off
LARGEST_SIGMA = 1 << 44  # up to which g, as a double, is as near as that


def below(limit: int, count: int, random: Bytes = os.urandom) -> Whole:
    """Returns whole numbers from 0 to limit - 1, each as likely.

    Args:
        limit: from 1 to 2^62.
        count: how many.
        random: makes random bytes.
    """
    found = np.empty(count, dtype=np.int64)
    missing = np.arange(count)
    mask = np.uint64((1 << (limit - 1).bit_length()) - 1)
    while len(missing):
        found[missing] = (_words(len(missing), random) & mask).astype(np.int64)
        missing = missing[found[missing] >= limit]
    return found


def discrete_gaussian(sigma: int, count: int, random: Bytes = os.urandom) -> Whole:
    """Returns whole numbers of the discrete Gaussian distribution around 0.

    Args:
        sigma: from 1 to 2^44, the distribution's parameter: very nearly its deviation.
        count: how many.
        random: makes random bytes.

    Returns:
        Shape (count,).

    Raises:
        ValueError: sigma is out of bounds.
    """
    if not 1 <= sigma <= LARGEST_SIGMA:
        raise ValueError(f"sigma = {sigma}: from 1 to {LARGEST_SIGMA:,}")
    found = np.empty(count, dtype=np.int64)
    missing = np.arange(count)
    scale = sigma + 1
    while len(missing):
        drawn = _discrete_laplace(scale, len(missing), random)
        # (|y| - sigma^2 / scale) / sigma, where sigma^2 / scale = scale - 2 + 1 / scale, without large squares
        far = (np.abs(drawn).astype(np.float64) - (scale - 2 + 1 / scale)) / sigma

        def exactly(at: int, drawn: Whole = drawn) -> tuple[int, int]:
            away = abs(int(drawn[at])) * scale - sigma * sigma
            return away * away, 2 * sigma * sigma * scale * scale

        kept = happen(far * far / 2, exactly, random)
        found[missing[kept]] = drawn[kept]
        missing = missing[~kept]
    return found


def _discrete_laplace(scale: int, count: int, random: Bytes) -> Whole:
    """Returns whole numbers y with odds in proportion to e^(-|y| / scale)."""
    found = np.empty(count, dtype=np.int64)
    missing = np.arange(count)
    while len(missing):
        rest = below(scale, len(missing), random)
        kept = happen(rest / scale, lambda at, rest=rest: (int(rest[at]), scale), random)  # type: ignore[misc]
        at, size = missing[kept], rest[kept] + scale * _geometric(int(kept.sum()), random)
        negative = (_words(len(at), random) & np.uint64(1)).astype(bool)
        good = ~(negative & (size == 0))  # zero would come twice
        found[at[good]] = np.where(negative, -size, size)[good]
        missing = np.concatenate([missing[~kept], at[~good]])
    return found


def _geometric(count: int, random: Bytes) -> Whole:
    """Returns how often an event of probability e^-1 happens in a row."""
    found = np.zeros(count, dtype=np.int64)
    going = np.arange(count)
    while len(going):
        going = going[happen(np.ones(len(going)), lambda at: (1, 1), random)]
        found[going] += 1
    return found


def happen(about: NDArray[np.float64], exactly: Fractions, random: Bytes = os.urandom) -> NDArray[np.bool_]:
    """Returns whether events happen that have probabilities e^-g.

    Args:
        about: each g as a double.
        exactly: each g, by its place in `about`, as a fraction.
        random: makes random bytes.
    """
    bits = _words(len(about), random)
    apart = bits.astype(np.float64) * 2.0**-64 - np.exp(-about)
    happened = apart < 0
    for at in np.flatnonzero(np.abs(apart) < MARGIN).tolist():
        happened[at] = is_below(int(bits[at]), *exactly(at), random)
    return np.asarray(happened, dtype=np.bool_)


def is_below(bits: int, above: int, under: int, random: Bytes = os.urandom) -> bool:
    """Returns whether a uniform number is below e^-g, where its first 64 bits are known.

    Args:
        bits: those 64 bits.
        above: of the fraction g = above / under.
        under: at least 1.
        random: makes the number's further bits.
    """
    length = 64
    if above == 0:
        return True  # every number below 1 is
    while True:
        low, high = _exponential(above, under, length // 3 + 10)
        unit = Decimal(1 << length)
        wide = Context(prec=2 * length + 40)  # the products are exact in it
        if bits + 1 <= wide.multiply(low, unit):
            return True
        if bits >= wide.multiply(high, unit):
            return False
        bits = bits << 64 | int.from_bytes(random(8), "big")
        length += 64


def _exponential(above: int, under: int, digits: int) -> tuple[Decimal, Decimal]:
    """Returns two numbers that e^-(above / under) is between, so many digits long."""
    least, most = (Context(prec=digits, rounding=way) for way in (ROUND_FLOOR, ROUND_CEILING))
    a, b = Decimal(above), Decimal(under)
    near = Context(prec=digits)  # exp rounds to nearest whatever the context says: one more unit either way
    low = near.exp(most.divide(a, b).copy_negate())
    high = near.exp(least.divide(a, b).copy_negate())
    return near.next_minus(low), near.next_plus(high)


def _words(count: int, random: Bytes) -> NDArray[np.uint64]:
    drawn: NDArray[Any] = np.frombuffer(random(8 * count), dtype=np.uint64)
    return drawn


def private_batches(items: Sequence[Any], size: int, privacy: PrivacySettings, order: int) -> Iterator[list[Any]]:
    """Yields endless batches where `[privacy]` protects each example: none is in a batch twice.

    none       in the order of a seed that everybody knows; a pass ends with a batch that has no room left beside it
    fixed      a batch's size of them without replacement, each set as likely
    poisson    each example by itself, with probability size / examples

    The last two are by random numbers of the operating system: a batch that others could draw again hides nobody.

    Args:
        items: the examples; there may be none.
        size: of a batch; of all examples, if there are fewer.
        privacy: how they are drawn.
        order: for "none", the seed.
    """
    if privacy.sampling == "poisson":
        assert privacy.examples is not None
        while True:
            drawn = below(privacy.examples, len(items)) < size
            yield [items[i] for i in np.flatnonzero(drawn).tolist()]
    if privacy.sampling == "fixed":
        random = SystemRandom()
        while True:
            yield random.sample(items, min(size, len(items)))
    for epoch in count():
        if not items:
            yield []
            continue
        shuffled = [items[i] for i in permutation(order, Domain.DATA_ORDER, len(items), epoch)]
        each = min(size, len(items))
        for at in range(0, len(items) - each + 1, each):
            yield shuffled[at : at + each]
