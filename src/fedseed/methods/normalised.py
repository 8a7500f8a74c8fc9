"""Losses made comparable: what a client measured in one step, without its scale.

none        as they are
z-score     (l - mean) / deviation, over the losses of the step; all 0 where they are all alike
ranks       the place among them, from -1/2 to 1/2; equal losses share theirs, all alike are all 0

A population is what a client measures in a step: both sides of each direction. With one direction only the sign of the
difference is left, as in FeedSign, times a constant.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Normalisation = Literal["none", "z-score", "ranks"]


def normalised(losses: Sequence[float] | NDArray[np.floating[Any]], how: Normalisation) -> NDArray[np.float64]:
    """The losses of one population without their scale.

    Args:
        losses: finite, shape (n,), in any order.
        how: by their mean and deviation, or by their ranks alone.

    Returns:
        Shape (n,), in the same order.
    """
    given = np.asarray(losses, dtype=np.float64)
    if how == "none" or not len(given):
        return given
    if how == "z-score":
        centred = given - given.mean()
        deviation = centred.std()
        # what rounding leaves of losses that are all alike is no deviation
        alike = deviation <= 1e-12 * float(np.abs(given).max())
        return np.zeros_like(centred) if alike else centred / deviation
    values, place, count = np.unique(given, return_inverse=True, return_counts=True)
    if len(values) == 1:
        return np.zeros_like(given)
    highest = np.cumsum(count) - 1  # rank of each value
    return np.asarray((highest - (count - 1) / 2)[place] / (len(given) - 1) - 0.5, dtype=np.float64)
