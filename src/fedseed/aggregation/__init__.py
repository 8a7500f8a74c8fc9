"""Rules that combine a round's answers: the mean, and rules that a few liars can't pull far.

NumPy only.

A new rule is a file here, which is found by itself, and a test; or an entry point
`fedseed.aggregation` of another package.
"""

from fedseed.aggregation.base import AggregationRule
from fedseed.aggregation.clipping import CentredClipping, NormBound
from fedseed.aggregation.krum import Krum, MultiKrum
from fedseed.aggregation.median import GeometricMedian, Mean, Median, TrimmedMean
from fedseed.registry import Registry, check_class, classes_in, name_of

RULES: tuple[type[AggregationRule], ...] = tuple(classes_in(__name__, AggregationRule))
REGISTRY: Registry[type[AggregationRule]] = Registry(
    "aggregation rule",
    "fedseed.aggregation",
    ((str(name_of(rule)), rule) for rule in RULES),
    lambda thing: check_class(thing, AggregationRule),
)

__all__ = [
    "REGISTRY",
    "RULES",
    "AggregationRule",
    "CentredClipping",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "MultiKrum",
    "NormBound",
    "TrimmedMean",
]
