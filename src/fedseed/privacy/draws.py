"""Draws from random bits of the operating system, exactly: whole numbers, and the discrete
Gaussian; private batches.

    P(Y = y) = e^(-y^2 / 2 sigma^2) / sum_k e^(-k^2 / 2 sigma^2),  y whole

Canonne, Kamath, Steinke: "The Discrete Gaussian for Differential Privacy", 2020, Algorithms 1 to 3.
They are computed in Python's whole numbers, so that no outcome's odds are those of floating-point
numbers.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseed.privacy.settings import PrivacySettings
from fedseed.randomness import Domain, permutation

Bytes = Callable[[int], bytes]


def below(limit: int, random: Bytes = os.urandom) -> int:
    """Return a whole number from 0 to limit - 1, each as likely.

    Args:
        limit: at least 1.
        random: makes random bytes.
    """
    bits = (limit - 1).bit_length()
    while True:
        found = int.from_bytes(random((bits + 7) // 8), "little") & ((1 << bits) - 1)
        if found < limit:
            return found


def happens(above: int, under: int, random: Bytes = os.urandom) -> bool:
    """Return whether an event happens that has the probability e^-(above / under) (Algorithm 1).

    Args:
        above: at least 0.
        under: at least 1.
        random: makes random bytes.
    """
    while above > under:  # e^-g = e^-1 e^-(g - 1)
        if not happens(1, 1, random):
            return False
        above -= under
    trials = 1
    while below(under * trials, random) < above:
        trials += 1
    return trials % 2 == 1


def discrete_gaussian(sigma: int, count: int, random: Bytes = os.urandom) -> NDArray[np.int64]:
    """Return whole numbers of the discrete Gaussian distribution around 0 (Algorithm 3).

    Args:
        sigma: from 1 to 2^44, the distribution's parameter: very nearly its deviation.
        count: how many.
        random: makes random bytes.

    Returns:
        Shape (count,).
    """
    square, scale = sigma * sigma, sigma + 1

    def one() -> int:
        while True:
            drawn = _discrete_laplace(scale, random)
            if happens((abs(drawn) * scale - square) ** 2, 2 * square * scale * scale, random):
                return drawn

    return np.array([one() for _ in range(count)], dtype=np.int64)


def _discrete_laplace(scale: int, random: Bytes) -> int:
    """Return a whole number y with odds in proportion to e^(-|y| / scale) (Algorithm 2)."""
    while True:
        size = below(scale, random)
        if not happens(size, scale, random):
            continue
        while happens(1, 1, random):
            size += scale
        negative = below(2, random) == 1
        if size or not negative:  # zero would come twice
            return -size if negative else size


def private_batches(
    items: Sequence[Any], size: int, privacy: PrivacySettings, order: int
) -> Iterator[list[Any]]:
    """Yield endless batches where `[privacy]` protects each example: none is in a batch twice.

    none       in the order of a seed that everybody knows; a pass ends with a batch that has no
    room left beside it
    poisson    each example by itself, with probability size / examples, by random numbers of the
    operating system: a
               batch that others could draw again hides nobody

    Args:
        items: the examples; there may be none.
        size: of a batch; of all examples, if there are fewer.
        privacy: how they are drawn.
        order: for "none", the seed.
    """
    while privacy.sampling == "poisson":
        assert privacy.examples is not None
        yield [item for item in items if below(privacy.examples) < size]
    for epoch in count():
        if not items:
            yield []
            continue
        shuffled = [items[i] for i in permutation(order, Domain.DATA_ORDER, len(items), epoch)]
        each = min(size, len(items))
        for at in range(0, len(items) - each + 1, each):
            yield shuffled[at : at + each]
