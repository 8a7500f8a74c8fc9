"""What a Byzantine client sends in place of an honest update. It keeps to the protocol: it can't be told from others.

What it *learns from* is corrupted in `fedseed.attacks.labels`.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

AttackKind = Literal["sign", "random", "noise", "labels"]
Floats = NDArray[np.float32]
RANDOM_PROJECTION = 100.0  # standard deviation of made-up projections


@dataclass(frozen=True)
class Attack:
    """A kind of lie.

    Args:
        kind: "sign" reverses an update, "random" replaces it by something unrelated, "noise" adds to it.
    """

    kind: AttackKind

    def scalars(self, honest: Floats, drawn: NDArray[np.uint32]) -> Floats:
        """Projections as the client sends them.

        "random" and "noise" draw from N(0, RANDOM_PROJECTION^2): far above honest projections on language models, which
        is what an attacker whose amplitude nobody checks would do.

        Args:
            honest: the projections.
            drawn: random words, two for each.
        """
        if self.kind == "sign":
            return -honest
        uniform = (drawn[: 2 * len(honest)].astype(np.float64) + 0.5) / 2.0**32
        radius, angle = np.sqrt(-2 * np.log(uniform[: len(honest)])), 2 * np.pi * uniform[len(honest) :]
        normal = (RANDOM_PROJECTION * radius * np.cos(angle)).astype(np.float32)
        return normal if self.kind == "random" else honest + normal

    def signs(self, honest: NDArray[np.int8], drawn: NDArray[np.uint32]) -> NDArray[np.int8]:
        """Reversed votes, or coin tosses: all that can be said in a bit."""
        tosses = np.where(drawn[: len(honest)] & 1, 1, -1).astype(np.int8)
        return -honest if self.kind == "sign" else tosses
