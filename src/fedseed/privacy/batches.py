"""How batches are drawn where `[privacy]` protects each example: none is in a batch twice.

    none       in the order of a seed that everybody knows; a pass ends with a batch that has no room left beside it
    fixed      a batch's size of them without replacement, each set as likely
    poisson    each example by itself, with probability size / examples

The last two are by random numbers of the operating system: a batch that others could draw again hides nobody.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from random import SystemRandom
from typing import Any

import numpy as np

from fedseed.privacy.draws import below
from fedseed.privacy.settings import PrivacySettings
from fedseed.randomness import Domain, permutation


def private_batches(items: Sequence[Any], size: int, privacy: PrivacySettings, order: int) -> Iterator[list[Any]]:
    """Endless batches.

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
