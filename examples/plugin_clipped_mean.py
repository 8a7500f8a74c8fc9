"""A plug-in in one file: an aggregation rule that shortens the longest answers.

    fedseed list aggregation --plugin examples/plugin_clipped_mean.py
    fedseed run small-ferret --plugin examples/plugin_clipped_mean.py --set method.seeds=shared \
        --set aggregation.name=clipped-mean

Each client's vector is made at most as long as the median of all lengths, so that nobody pulls the
mean far by sending large numbers: v_i <- v_i min(1, median_j |v_j| / |v_i|), then the weighted
mean.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

import fedseed
from fedseed.aggregation import AggregationRule, Mean


@fedseed.register_aggregation
class ClippedMean(AggregationRule):
    """The rule; it has no settings."""

    name: Literal["clipped-mean"] = "clipped-mean"
    about: ClassVar[str] = "the weighted mean of answers made no longer than their median length"

    def combine(
        self, vectors: Sequence[NDArray[np.float64]], weights: Sequence[float]
    ) -> NDArray[np.float64]:
        """sum_i c_i v_i, long v_i shortened."""
        lengths = [float(np.linalg.norm(vector)) for vector in vectors]
        longest = float(np.median(lengths))
        shortened = [
            v * min(1.0, longest / length) if length else v
            for v, length in zip(vectors, lengths, strict=True)
        ]
        return Mean().combine(shortened, weights)
