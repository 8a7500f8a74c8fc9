"""How many coefficients each block gets."""

from dataclasses import replace

import numpy as np
import pytest

from fedseed import Basis, Ferret
from fedseed.methods.ferret import Coefficients, CoefficientStep, estimated_norms, proportional
from fedseed.weights.layout import Layout, TensorEntry


@pytest.mark.parametrize(
    ("total", "shares", "expected"),
    [
        (10, [1, 1, 2], [3, 2, 5]),  # quotas 2.5, 2.5, 5: a tie goes to the first
        (10, [1, 2, 4], [1, 3, 6]),  # 1.43, 2.86, 5.71: to the largest remainders
        (7, [3, 2, 2], [3, 2, 2]),  # nothing is left
        (8, [0.1, 1, 6], [1, 1, 6]),  # 0.11 becomes 1; of 7 that are left 1 and 6
        (9, [1, 1, 7], [1, 1, 7]),  # quotas of exactly 1
        (5, [0, 0, 0], [2, 2, 1]),
        (5, [np.nan, 1, 1], [2, 2, 1]),
        (5, [np.inf, 1, 1], [2, 2, 1]),
        (6, [0.1, 0.2, 0.1], [2, 3, 1]),  # their sum is below 1, which is a sum; 1.5, 3, 1.5
        (3, [100, 1, 1], [1, 1, 1]),
        (10, [0.01, 1, 8.8], [1, 1, 8]),  # 1.02 for the second, and 0.92 once the first has got 1
        (90, [1, 3] * 20, [1, 4] * 10 + [1, 3] * 10),  # 1.125 and 3.375
    ],
)
def test_proportional(total, shares, expected):
    assert list(proportional(total, np.array(shares, dtype=np.float64))) == expected


SIZES = (100, 200, 400)
LAYOUT = Layout((TensorEntry("a", (700,), "float32"),), (0, 100, 300, 700))


def counts(rule, total, norms=None, last=None):
    method = Ferret(allocation=rule, directions=total, basis="truncated_normal")
    return list(method.allocate(replace(method.start(LAYOUT, 1), previous=last), norms))


def test_the_rules_look_at_what_they_should():
    rho = np.array(
        [Ferret(basis="truncated_normal").directions_of(0).variance(size) for size in SIZES]
    )
    norms = np.array([3.0, 1.0, 0.5])
    roots = np.sqrt(norms / rho)
    last = CoefficientStep((Coefficients(1, tuple(np.float32(norms / rho**0.5)[:, None])),))
    for rule, known in (("sqrt", {"norms": norms}), ("previous", {"last": last})):
        np.testing.assert_allclose(counts(rule, 1000, **known), 1000 * roots / roots.sum(), atol=1)
        assert counts(rule, 700) == list(SIZES)  # nothing is known yet
    assert counts("norm", 50, norms) == [50, 16, 8]
    assert counts("norm", 50, norms / 1000) == [50, 16, 8]  # only their ratios count
    assert counts("norm", 50, np.zeros(3)) == [2, 2, 2]
    assert counts("uniform", 10) == [4, 3, 3]


@pytest.mark.parametrize("norms", [[3.0, 1.0, 0.5], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
def test_a_fixed_total_is_sent_by_norm_whatever_the_change_is(norms):
    method = Ferret(allocation="norm", directions=90, fixed_total=True)
    found = method.allocate(method.start(LAYOUT, 1), np.array(norms))
    assert found.sum() == 90 and found.min() >= 1
    assert list(found) == list(proportional(90, np.array(norms)))


def test_a_fixed_total_needs_a_direction_for_each_block():
    with pytest.raises(ValueError, match="3 blocks, and each needs at least one"):
        Ferret(directions=2, fixed_total=True).start(LAYOUT, 1)
    Ferret(directions=2).start(LAYOUT, 1)


def test_coefficients_are_products_over_their_number_and_the_entries_variance():
    """Eqs. 6 and 8: gamma_l = V_l^T Delta_l / (rho_l K_l)."""
    method = Ferret(basis="truncated_normal")
    assert Ferret(basis="lowrank", basis_rank=3).directions_of(5) == Basis("lowrank", 5, 200, 3)
    basis, products = (
        method.directions_of(3),
        [np.float32([6, 3]), np.float32([1]), np.float32([2, 2, 2, 4])],
    )
    found = method.scale_products(method.start(LAYOUT, 1), basis, products)
    for gamma, product, size in zip(found, products, SIZES, strict=True):
        np.testing.assert_allclose(
            gamma, product / (basis.variance(size) * len(product)), rtol=1e-6
        )


def test_norms_from_scalars():
    """|Delta_l| = sqrt(sum over parts of rho_l K_l |gamma_l|^2)."""
    parts = [
        [np.array([3.0, 4.0], np.float32), np.array([1.0], np.float32)],
        [np.array([1.0], np.float32)] * 2,
    ]
    found = estimated_norms(parts, np.array([0.5, 4.0]))
    np.testing.assert_allclose(found, np.sqrt([0.5 * 2 * 25 + 0.5 * 1, 4 * 1 + 4 * 1]))
