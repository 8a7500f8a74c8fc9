"""Exact draws from random bits of the operating system: whole numbers, the discrete Gaussian, and
private batches.

    P(Y = y) = e^(-y^2 / 2 sigma^2) / sum_k e^(-k^2 / 2 sigma^2),  y whole

Canonne, Kamath, Steinke: "The Discrete Gaussian for Differential Privacy", 2020, Algorithms 1 to 3.
All computations use Python's whole numbers, so that probabilities are exact, without floating-point
error.
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


def random_below(limit: int, random: Bytes = os.urandom) -> int:
    """Return a whole number from 0 to limit - 1, uniformly.

    Args:
        limit: at least 1.
        random: makes random bytes.
    """
    bits = (limit - 1).bit_length()
    while True:
        number = int.from_bytes(random((bits + 7) // 8), "little") & ((1 << bits) - 1)
        if number < limit:
            return number


def happens(numerator: int, denominator: int, random: Bytes = os.urandom) -> bool:
    """Return True with the probability e^-(numerator / denominator) (Algorithm 1).

    Args:
        numerator: at least 0.
        denominator: at least 1.
        random: makes random bytes.
    """
    while numerator > denominator:  # e^-g = e^-1 e^-(g - 1)
        if not happens(1, 1, random):
            return False
        numerator -= denominator
    trials = 1
    while random_below(denominator * trials, random) < numerator:
        trials += 1
    return trials % 2 == 1


def discrete_gaussian(sigma: int, count: int, random: Bytes = os.urandom) -> NDArray[np.int64]:
    """Draw whole numbers of the discrete Gaussian distribution around 0 (Algorithm 3).

    Args:
        sigma: the distribution's parameter, from 1 to 2^44, which is nearly its standard deviation.
        count: the number of draws.
        random: makes random bytes.

    Returns:
        Shape (count,).
    """
    square, scale = sigma * sigma, sigma + 1

    def draw() -> int:
        while True:
            number = _discrete_laplace(scale, random)
            if happens((abs(number) * scale - square) ** 2, 2 * square * scale * scale, random):
                return number

    return np.array([draw() for _ in range(count)], dtype=np.int64)


def _discrete_laplace(scale: int, random: Bytes) -> int:
    """Draw a whole number y with odds proportional to e^(-|y| / scale) (Algorithm 2)."""
    while True:
        size = random_below(scale, random)
        if not happens(size, scale, random):
            continue
        while happens(1, 1, random):
            size += scale
        negative = random_below(2, random) == 1
        if size or not negative:  # because zero would be drawn twice as often
            return -size if negative else size


def private_batches(
    items: Sequence[Any], size: int, privacy: PrivacySettings, order: int
) -> Iterator[list[Any]]:
    """Yield endless batches of protected examples. No example is twice in a batch.

    none       in the order of a public seed; a pass ends when no full batch is left poisson    each
    example by itself with probability size / examples, with random numbers of the operating system,
    because a batch that others can redraw protects nobody

    Args:
        items: the examples; there may be none.
        size: size of a batch; all examples, if there are fewer.
        privacy: settings, with the kind of draw.
        order: the seed, for "none".
    """
    while privacy.sampling == "poisson":
        assert privacy.examples is not None
        yield [item for item in items if random_below(privacy.examples) < size]
    for epoch in count():
        if not items:
            yield []
            continue
        shuffled = [
            items[index] for index in permutation(order, Domain.DATA_ORDER, len(items), epoch)
        ]
        batch_size = min(size, len(items))
        for start in range(0, len(items) - batch_size + 1, batch_size):
            yield shuffled[start : start + batch_size]
