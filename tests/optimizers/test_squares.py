"""Averages of squares that are a number each: exact sums, and the usual formulas."""

from fractions import Fraction

import numpy as np
import pytest

from fedseed.optimizers.rules import Squares, deviation, square, total


def test_sums_are_exact_before_they_are_rounded():
    """Whatever the order: values from 1e-6 to 1e6 that cancel, against rational numbers."""
    rng = np.random.default_rng(0)
    values = (rng.normal(size=1001) * 10.0 ** rng.uniform(-6, 6, 1001)).astype(np.float32)
    values[500:1000] = -values[:500]
    exact = [Fraction(float(v)) for v in values]
    assert total(values) == total(values[::-1]) == float(sum(exact))
    assert square(values) == square(values[::-1]) == float(sum(v * v for v in exact))


def test_a_samples_deviation():
    values = np.random.default_rng(1).normal(3, 2, 50).astype(np.float32)
    assert deviation(values) == pytest.approx(np.std(values.astype(np.float64), ddof=1), rel=1e-14)
    assert deviation(values[:1]) == deviation(values[:0]) == deviation(np.full(5, 0.1, dtype=np.float32)) == 0


def test_sum_and_average():
    adagrad, rms = Squares(), Squares()
    for x in ([4.0, 1.0], [12.0, 3.0]):
        adagrad, rms = adagrad.take(x, None), rms.take(x, 0.75)
    assert adagrad.roots(None) == (4.0, 2.0) and rms.steps == 2
    v = np.array([0.75 * 0.25 * 4 + 0.25 * 12, 0.75 * 0.25 * 1 + 0.25 * 3])
    np.testing.assert_allclose(rms.roots(0.75), np.sqrt(v / (1 - 0.75**2)), rtol=1e-15)
    assert Squares().take([9.0], 0.9).roots(0.9)[0] == pytest.approx(3.0)  # a first step's average is the step's own
