"""The trimmed mean: the mean of each coordinate's middle values.

Yin, Chen, Ramchandran, Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", 2018,
Definition 2: of each coordinate the largest and the smallest values are left out, a fraction beta
on either side.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedseed.aggregation import AggregationRule


class CentralMean(AggregationRule):
    """The rule's settings; clients count the same.

    Args:
        trim: beta, the fraction of clients left out on either side.
    """

    name: Literal["central-mean"] = "central-mean"
    about: ClassVar[str] = "the mean of each coordinate without its largest and smallest values"

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.25

    def combine(
        self, vectors: Sequence[NDArray[np.float64]], weights: Sequence[float]
    ) -> NDArray[np.float64]:
        """Return the mean of each coordinate without its extreme values, shape (length,)."""
        ordered = np.sort(np.stack(vectors), axis=0)
        trimmed = int(self.trim * len(vectors))
        middle = ordered[trimmed : len(vectors) - trimmed]
        return np.asarray(middle.mean(axis=0), dtype=np.float64)
