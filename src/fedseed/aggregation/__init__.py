"""How a round's answers become one: the mean, and rules that a few liars can't pull far. NumPy only.

A new rule is a file, a line here and a test; or an entry point `fedseed.aggregation` of another package.
"""

from fedseed.aggregation.base import AggregationRule
from fedseed.aggregation.mean import Mean
from fedseed.aggregation.median import Median

RULES: tuple[type[AggregationRule], ...] = (Mean, Median)

__all__ = ["RULES", "AggregationRule", "Mean", "Median"]
