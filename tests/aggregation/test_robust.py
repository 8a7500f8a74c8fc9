"""What all robust rules share: vectors in parts, few columns at a time, steps before, how many
answers they need.
"""

import numpy as np
import pytest

from fedseed.aggregation import RULES, CentredClipping, Mean, Median, TrimmedMean, geometry
from fedseed.aggregation.base import Parts, Past
from fedseed.aggregation.robust import Robust

ROBUST = [kind for kind in RULES if issubclass(kind, Robust)]
FIXED = {"norm-bound": {"bound": 3.0}, "centred-clipping": {"radius": 3.0, "iterations": 2}}
BEFORE = [
    [],
    ["nearest-neighbours"],
    ["bucketing"],
    ["arc"],
    ["arc", "bucketing", "nearest-neighbours"],
]


def drawn(n, d, seed=0):
    return list(np.random.default_rng(seed).normal(0.5, 1.0, (n, d)))


@pytest.mark.parametrize("before", BEFORE, ids=lambda steps: "+".join(steps) or "nothing")
@pytest.mark.parametrize("kind", ROBUST)
def test_parts_and_few_columns_give_what_the_whole_vector_gives(kind, before, monkeypatch):
    """A rule that took each block for itself would choose others: the lengths of parts differ by
    thousands.
    """
    name = kind.model_fields["name"].default
    rule = kind(liars=1, before=before, **FIXED.get(name, {}))
    vectors = [vector * np.repeat([1.0, 1e-3, 30.0], [5, 7, 1]) for vector in drawn(9, 13)]
    past = Past(seed=2, round=7)
    (whole,) = rule.combine_parts([vectors], [1 / 9] * 9, past)
    monkeypatch.setattr(geometry, "AT_A_TIME", 18)  # two columns of nine clients
    parts = Parts(
        lambda: ([v[lo:hi] for v in vectors] for lo, hi in ((0, 5), (5, 12), (12, 12), (12, 13)))
    )
    pieces = list(rule.combine_parts(parts, [1 / 9] * 9, Past(seed=2, round=7)))
    assert [len(piece) for piece in pieces] == [5, 7, 0, 1]
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=1e-9, atol=1e-12)
    weighted = rule.combine(vectors, [0.92] + [0.01] * 8)
    # nobody counts more
    np.testing.assert_array_equal(weighted, rule.combine(vectors, [1 / 9] * 9))


@pytest.mark.parametrize("before", BEFORE, ids=lambda steps: "+".join(steps) or "nothing")
@pytest.mark.parametrize("kind", ROBUST)
def test_liars_do_not_pull_the_outcome_far(kind, before):
    """Two of eleven, however far they go: within a few times the honest clients' spread.

    The mean goes anywhere.
    """
    rule = kind(liars=2, before=before)
    honest = drawn(9, 30, seed=4)
    centre = np.mean(honest, axis=0)
    spread = max(np.linalg.norm(vector - centre) for vector in honest)
    for far in (3.0, 1e3, 1e6):
        vectors = [honest[0], np.full(30, -far), *honest[1:5], np.full(30, -far), *honest[5:]]
        away = np.linalg.norm(rule.combine(vectors, [1 / 11] * 11) - centre)
        assert away < 1.5 * spread, far
        mean = np.linalg.norm(Mean().combine(vectors, [1 / 11] * 11) - centre)
        assert far == 3.0 or (away < mean / 20 and mean > 20 * spread)


def test_momentum_keeps_a_part_of_the_last_outcome():
    """Without clipping v is the mean.

    M = beta m + (1 - beta) v, also where blocks are longer or shorter than then.
    """
    rule = CentredClipping(radius=1e9, momentum=0.75)
    vectors = [np.array([4.0, 8.0]), np.array([0.0, 4.0])]
    first = Past(1, 1)
    (outcome,) = rule.combine_parts([vectors], [0.5, 0.5], first)
    np.testing.assert_allclose(outcome, [0.5, 1.5])  # from zero: a quarter of the mean
    np.testing.assert_array_equal(first.next[0], outcome.astype(np.float32))
    (outcome,) = rule.combine_parts([[np.ones(1), np.ones(1)]], [0.5, 0.5], Past(1, 2, first.next))
    np.testing.assert_allclose(outcome, [0.75 * 0.5 + 0.25, 0.75 * 1.5])
    (outcome,) = rule.combine_parts([[np.ones(3)] * 2], [0.5, 0.5], Past(1, 2, first.next))
    np.testing.assert_allclose(outcome, [0.625, 0.75 * 1.5 + 0.25, 0.25])
    assert rule.needs_past == "momentum = 0.75" and CentredClipping().needs_past is None
    assert Median().combine_parts and not Median.remembers
    said = 'aggregation.name = "trimmed-mean", liars = 2 needs 5 answers, and there are 4'
    assert TrimmedMean(liars=2).shortage(4) == said
