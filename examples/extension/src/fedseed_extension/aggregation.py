"""The mean of the middle of each coordinate: the trimmed mean, by a fraction of the clients.

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
        """The mean of what is left of each coordinate."""
        ordered = np.sort(np.stack(vectors), axis=0)
        out = int(self.trim * len(vectors))
        return np.asarray(ordered[out : len(vectors) - out].mean(axis=0), dtype=np.float64)
