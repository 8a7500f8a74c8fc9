"""The statistics behind verdicts, against scipy's own tests and what simulated sweeps give."""

import numpy as np
import pytest
from scipy import stats

from fedseed_papers import statistics
from fedseed_papers.findings import UNKNOWN


def seeded(values, first=1):
    return {first + i: float(value) for i, value in enumerate(values)}


A, B = seeded([1.0, 1.3, 0.7, 1.1, 0.9]), seeded([0.6, 1.1, 0.5, 0.8, 0.7])


def test_pairs_and_welch_are_scipys():
    x, y = list(A.values()), list(B.values())
    for other, theirs in (
        (B, stats.ttest_rel(x, y)),
        (seeded(y, 6), stats.ttest_ind(x, y, equal_var=False)),
    ):
        found = statistics.ahead(A, other)
        assert found.p == pytest.approx(theirs.pvalue) and found.p_for < found.p_against
        assert found.interval == pytest.approx(tuple(theirs.confidence_interval()))


def test_alike_is_two_one_sided_tests():
    gaps = np.subtract(list(A.values()), list(B.values()))

    def beyond(edge, way):
        return stats.ttest_1samp(gaps, edge, alternative=way).pvalue

    assert statistics.alike([A, B], 0.5).p_for == pytest.approx(
        max(beyond(-0.5, "greater"), beyond(0.5, "less"))
    )
    assert statistics.alike([A, B], 0.05).p_against == pytest.approx(beyond(0.05, "greater"))


def test_a_lead_that_is_surely_small_refutes_unless_it_is_surely_one():
    zero, noise = dict.fromkeys(range(1, 11), 0.0), np.array([-1.0, 1.0] * 5)
    no = "does not hold here"
    for mean, spread, verdict in (
        (0.0, 0.3, no),
        (0.5, 0.1, "holds in kind"),
        (0.9, 3.0, UNKNOWN),
        (-2.0, 0.3, no),
    ):
        found = statistics.ahead(seeded(mean + spread * noise), zero, lead=1.0)
        assert statistics.verdict(found, found.p) == verdict
    found = statistics.ahead(seeded(0.3 * noise), zero)
    # without a margin equal lines stay undecided
    assert statistics.verdict(found, found.p) == UNKNOWN


def test_a_run_that_still_falls_counts_as_slower_than_any_that_does_not():
    fast, inf = seeded([-4.0, -5, -3, -4, -4, -5, -6, -4, -5, -5]), float("inf")
    slow = seeded([-9.0, -inf, -8, -9, -inf, -inf, -9, -9, -inf, -8])
    found = statistics.ahead(fast, slow, lead=0.5)
    assert found.p == pytest.approx(2 * stats.binomtest(10, 10, alternative="greater").pvalue)
    assert statistics.verdict(found, found.p) == "holds in kind" and found.estimate == 5.0
    theirs = stats.quantile_test([5, inf, 5, 5, inf, inf, 3, 5, inf, 3]).confidence_interval()
    assert found.interval == (theirs.low, theirs.high) == (3, inf)
    assert statistics.concluded([("", "", found)])[0].interval == (3, "inf")
    found = statistics.ahead(slow, fast, lead=0.5)
    assert (
        found.interval == (-inf, -3) and statistics.verdict(found, found.p) == "does not hold here"
    )
    # which of a pair is slower is not known
    both = statistics.ahead({**fast, 2: -inf, 5: -inf, 6: -inf}, slow)
    assert (
        both.p_for == stats.binomtest(7, 10, alternative="greater").pvalue and both.p_against == 1
    )
    assert statistics.ahead(fast, {**slow, 1: float("nan")}).p_for == stats.binom.sf(8, 10, 0.5)


def test_a_ratio_is_one_of_logarithms():
    found, logs = (
        statistics.at_least(A, 1.1, B),
        np.log(list(A.values())) - np.log(list(B.values())),
    )
    assert found.p_for == pytest.approx(
        stats.ttest_1samp(logs, np.log(1.1), alternative="greater").pvalue
    )
    assert found.interval[0] < found.estimate < found.interval[1]
    assert statistics.at_least(A, 1, seeded([0] * 5)) is statistics.NOTHING
    most, theirs = (
        statistics.at_most(A, 1.2),
        stats.ttest_1samp(list(A.values()), 1.2, alternative="less"),
    )
    assert (
        most.p_for == pytest.approx(theirs.pvalue) and most.interval[0] < 1 < most.interval[1] < 1.3
    )


def test_holm():
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([]) == [] and statistics.holm([0.9, 0.8]) == [1.0, 1.0]


def test_five_seeds_spend_a_fifth_of_the_error_and_ten_the_rest():
    assert [statistics.level(n) for n in (4, 5, 9, 10, 40)] == [0, 0.01, 0.01, 0.04, 0.04]
    assert sum(statistics.LOOKS.values()) <= 0.05
    between = statistics.ahead(A, seeded([0.7, 1.1, 0.5, 1.1, 0.7]))
    assert 0.01 < between.p < 0.04 and statistics.verdict(between, between.p) == UNKNOWN
    assert statistics.verdict(between._replace(seeds=10), between.p) == "holds in kind"


def test_looking_twice_at_lines_that_do_not_differ_errs_as_seldom_as_it_says():
    random, wrong, runs = np.random.default_rng(1), 0, 2000
    for gaps in random.normal(size=(runs, 10)):
        looks = [
            statistics.ahead(seeded(gaps[:n]), dict.fromkeys(range(1, n + 1), 0.0)) for n in (5, 10)
        ]
        wrong += any(statistics.verdict(found, found.p) != UNKNOWN for found in looks)
    assert 0.02 * runs < wrong < 0.06 * runs  # 0.05 at most, and nearly that
