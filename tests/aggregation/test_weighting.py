"""How much each client counts, by what it says."""

import pytest

from fedseed.aggregation.base import claims, shares

EXAMPLES, TERMS = [30, 10, 0], [0, 5, 15]


@pytest.mark.parametrize(
    ("weighting", "said", "weights"),
    [("equal", [1, 1, 1], [1 / 3] * 3), ("examples", EXAMPLES, [0.75, 0.25, 0.0]), ("terms", TERMS, [0.0, 0.25, 0.75])],
)
def test_weights_are_in_proportion_to_what_is_said(weighting, said, weights):
    assert list(claims(weighting, EXAMPLES, TERMS)) == said
    assert shares(claims(weighting, EXAMPLES, TERMS)) == weights


@pytest.mark.parametrize("weighting", ["equal", "examples", "terms"])
def test_where_all_say_nothing_they_count_the_same(weighting):
    assert shares(claims(weighting, [0] * 4, [0] * 4)) == [0.25] * 4
