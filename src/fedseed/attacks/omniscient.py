"""Byzantine clients, in simulation, that know the honest updates of their round and agree on a lie.

With mu and sigma, the mean and the standard deviation of each entry over the n - f honest clients' vectors x_i:

    alie           mu - z sigma sign(mu)          small enough to hide among honest ones, each entry against the mean
                   Baruch, Baruch, Goldberg: "A Little Is Enough", NeurIPS 2019, Section 3.2, which takes either end
    inner-product  -epsilon mu                    the outcome's product with mu becomes negative
                   Xie, Koyejo, Gupta: "Fall of Empires", UAI 2019
    mimic          x_1                            one honest client counts f + 1 times
                   Karimireddy, He, Jaggi: "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", 2022
    largest        -s x_i of its own, with s as large as the coordinator's bounds accept
    claims         -x_i, and that it has a thousand times its examples

NumPy only. What of a message is the vector, its payload says (`Payload.vector`).
"""

from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fedseed.attacks.updates import AttackKind

OMNISCIENT: frozenset[AttackKind] = frozenset({"alie", "inner-product", "mimic"})
SIMULATED: frozenset[AttackKind] = OMNISCIENT | {"largest", "claims"}  # not over a network: nobody there knows enough
SINGLE: frozenset[AttackKind] = frozenset(get_args(AttackKind)) - SIMULATED - {"labels"}
TUNED: frozenset[AttackKind] = frozenset({"alie", "inner-product", "claims"})  # those that have a strength
Z = 1.5  # alie's, by default
CLAIMED = 1000.0  # times the examples that a client has

Vectors = NDArray[np.float64]


def little_is_enough(honest: Vectors, z: float | None) -> Vectors:
    """ALIE's vector, (d,).

    Args:
        honest: the honest clients' vectors, (n - f, d).
        z: how many standard deviations from the mean; None: 1.5.
    """
    mean = honest.mean(axis=0)
    return mean - (Z if z is None else z) * honest.std(axis=0) * np.sign(mean)


def inner_product(honest: Vectors, liars: int, epsilon: float | None) -> Vectors:
    """Inner-product manipulation's vector, (d,).

    Args:
        honest: the honest clients' vectors, (n - f, d).
        liars: f.
        epsilon: how many times the honest mean; None: 2 (n - f) / f, with which the mean of all is reversed.
    """
    epsilon = 2 * len(honest) / max(1, liars) if epsilon is None else epsilon
    return -epsilon * honest.mean(axis=0)
