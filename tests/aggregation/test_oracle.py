"""Every rule, and all that may come before it, beside byzfl's on random vectors and at the
edges.
"""

import numpy as np
import pytest

from fedseed.aggregation import (
    RULES,
    CentredClipping,
    GeometricMedian,
    Krum,
    MultiKrum,
    NormBound,
    TrimmedMean,
)
from fedseed.aggregation.base import Past
from fedseed.aggregation.geometry import adaptive_clipping, buckets, nearest_neighbours
from fedseed.aggregation.median import Median
from support.oracle import byzfl

RULES_OF = {
    "mean": lambda f, o: (None, o.Average()),
    "median": lambda f, o: (Median(liars=f), o.Median()),
    "trimmed-mean": lambda f, o: (TrimmedMean(liars=f), o.TrMean(f)),
    "krum": lambda f, o: (Krum(liars=f), o.Krum(f)),
    "multi-krum": lambda f, o: (MultiKrum(liars=f), o.MultiKrum(f)),
    "geometric-median": lambda f, o: (
        GeometricMedian(liars=f, smoothing=0.1, iterations=7),
        o.GeometricMedian(nu=0.1, T=7),
    ),
    "centred-clipping": lambda f, o: (
        CentredClipping(liars=f, radius=2.5, iterations=3),
        o.CenteredClipping(L=3, tau=2.5),
    ),
    "norm-bound": lambda f, o: (
        NormBound(liars=f, bound=2.0),
        lambda v: o.Average()(o.Clipping(2.0)([x.copy() for x in v])),
    ),
}


def test_no_rule_is_left_out():
    built_in = {
        kind.model_fields["name"].default
        for kind in RULES
        if kind.__module__.startswith("fedseed.")
    }
    assert built_in - {"mean-around-median"} == set(RULES_OF)  # docs/extending.md's example


def cases(f):
    """Vectors of n clients: far liars, all equal, n at its least, lengths of 1, huge and tiny
    numbers, ties.
    """
    draw = np.random.default_rng(f)
    for n, d in ((max(2, 2 * f + 1), 5), (2 * f + 2, 1), (4 * f + 3, 40), (17, 3)):
        honest = draw.normal(1.0, 2.0, (n - f, d))
        yield np.concatenate([honest, draw.normal(0, 50, (f, d))])[draw.permutation(n)]
        yield np.concatenate([honest, np.full((f, d), -1e6)])
        yield 1e-5 * honest.repeat(2, axis=0)[:n] + 1e-3
        yield np.full((n, d), 3.25)
        yield draw.integers(0, 2, (n, d)).astype(float)  # many ties


@pytest.mark.parametrize("name", sorted(set(RULES_OF) - {"mean"}))
def test_a_rule_is_the_oracles(name):
    oracle = byzfl("aggregators")
    for f in (0, 1, 3):
        for vectors in cases(f):
            mine, theirs = RULES_OF[name](f, oracle)
            outcome = mine.combine(list(vectors), [1 / len(vectors)] * len(vectors))
            with np.errstate(divide="ignore"):  # the oracle divides by a distance of zero
                expected = theirs(vectors.copy())
            if name in ("krum", "multi-krum") and tied(
                vectors, f, 1 if name == "krum" else len(vectors) - f
            ):
                continue  # which of equal ones is chosen, rounding decides there
            np.testing.assert_allclose(
                outcome, expected, rtol=1e-6, atol=1e-9 * np.abs(vectors).max()
            )


def tied(vectors, f, chosen):
    """Whether Krum's scores leave open who is chosen."""
    squares = ((vectors[:, None] - vectors[None]) ** 2).sum(axis=2)
    scores = np.sort(np.sort(squares, axis=1)[:, 1 : len(vectors) - f].sum(axis=1))
    if scores[-1] == 0 or chosen == len(scores):
        return False
    return scores[chosen] - scores[chosen - 1] <= 1e-9 * scores[-1]


@pytest.mark.parametrize("f", [1, 3])
def test_what_comes_before_is_the_oracles(f):
    oracle = byzfl("aggregators")
    for vectors in cases(f):
        gram = vectors @ vectors.T
        np.testing.assert_allclose(
            adaptive_clipping(gram, f) @ vectors,
            oracle.ARC(f)([v.copy() for v in vectors]),
            rtol=1e-9,
            atol=1e-300,
        )
        squares = ((vectors[:, None] - vectors[None]) ** 2).sum(axis=2)
        ordered = np.sort(squares, axis=1)
        if (
            len(vectors) > f
            and (np.diff(ordered[:, len(vectors) - f - 1 :][:, :2]) > 1e-9 * squares.max()).all()
        ):
            mixed = nearest_neighbours(gram, f) @ vectors
            np.testing.assert_allclose(
                mixed, oracle.NNM(f)(vectors), rtol=1e-6, atol=1e-9 * np.abs(vectors).max()
            )


@pytest.mark.parametrize(("n", "size"), [(6, 2), (7, 3), (5, 1), (4, 9)])
def test_buckets_are_the_oracles_with_its_order(n, size, monkeypatch):
    """The oracle shuffles by NumPy's own generator.

    Ours by seed and round: given our order it has our buckets.
    """
    oracle = byzfl("aggregators")
    vectors = np.random.default_rng(n).normal(size=(n, 4))
    mixing = buckets(n, size, seed=5, round=3)
    # within a bucket the order does not matter
    order = np.concatenate([np.flatnonzero(row) for row in mixing])
    monkeypatch.setattr(np.random, "permutation", lambda x: x[order])
    np.testing.assert_allclose(mixing @ vectors, oracle.Bucketing(size)(vectors), rtol=1e-12)
    assert (mixing == buckets(n, size, 5, 3)).all()
    if size == 2:
        assert any(
            (buckets(n, size, seed, number) != mixing).any() for seed, number in ((6, 3), (5, 4))
        )


def test_the_centre_is_the_oracles_over_rounds():
    """Both remember the last outcome; so do the rule's coefficients on it."""
    oracle = byzfl("aggregators").CenteredClipping(L=2, tau=1.5)
    rule, past = CentredClipping(radius=1.5, iterations=2), None
    draw = np.random.default_rng(3)
    for number in range(4):
        vectors = draw.normal(1.0, 2.0, (6, 9))
        at = Past(1, number, past)
        (mine,) = rule.combine_parts([list(vectors)], [1 / 6] * 6, at)
        np.testing.assert_allclose(mine, oracle(vectors), rtol=1e-6)
        past = [part.astype(np.float64) for part in at.next]
        past[0] = mine  # kept in single precision; the oracle's is double
