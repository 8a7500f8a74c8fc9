"""What a Byzantine client sends in place of an honest update. It keeps to the protocol: it can't be told from others.

What it *learns from* is corrupted in `fedseed.attacks.labels`; what needs the honest updates of the round is in
`fedseed.attacks.omniscient`.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

AttackKind = Literal[
    "sign", "random", "noise", "multiplier", "labels", "alie", "inner-product", "mimic", "largest", "claims"
]
Floats = NDArray[np.float32]
RANDOM_PROJECTION = 100.0  # standard deviation of made-up projections
RANDOM_TIMES = 10.0  # of made-up coefficients, weights and gradients, as a multiple of honest ones' root mean square


@dataclass(frozen=True)
class Attack:
    """A kind of lie.

    Args:
        kind: "sign" reverses an update, "random" replaces it by something unrelated, "noise" adds to it;
            "multiplier" multiplies each projection by 1 + N(0, 1), an honest client's on very uneven data (FeedSign,
            Appendix H, for Fig. 2).
    """

    kind: AttackKind

    def scalars(self, honest: Floats, drawn: NDArray[np.uint32], deviation: float = RANDOM_PROJECTION) -> Floats:
        """Projections as the client sends them.

        "random" and "noise" draw from N(0, deviation^2), by default far above honest projections on language models,
        which is what an attacker whose amplitude nobody checks would do.

        Args:
            honest: the projections.
            drawn: random words, two for each.
            deviation: the standard deviation of what is made up.
        """
        if self.kind == "sign":
            return -honest
        standard = _normal(drawn, len(honest))
        if self.kind == "multiplier":
            return (honest * (1 + standard)).astype(np.float32)
        normal = (deviation * standard).astype(np.float32)
        return normal if self.kind == "random" else honest + normal

    def signs(self, honest: NDArray[np.int8], drawn: NDArray[np.uint32]) -> NDArray[np.int8]:
        """Reversed votes, coin tosses, or the signs of multiplied projections: all that can be said in a bit.

        A vote whose projection is multiplied by 1 + N(0, 1) is reversed where that is negative, in 16% of cases.
        """
        if self.kind == "multiplier":
            return np.where(1 + _normal(drawn, len(honest)) < 0, -honest, honest).astype(np.int8)
        tosses = np.where(drawn[: len(honest)] & 1, 1, -1).astype(np.int8)
        return -honest if self.kind == "sign" else tosses


def _normal(drawn: NDArray[np.uint32], count: int) -> NDArray[np.float64]:
    """`count` numbers of N(0, 1) from twice as many random words."""
    uniform = (drawn[: 2 * count].astype(np.float64) + 0.5) / 2.0**32
    radius, angle = np.sqrt(-2 * np.log(uniform[:count])), 2 * np.pi * uniform[count:]
    return radius * np.cos(angle)
