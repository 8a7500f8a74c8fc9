"""How many coefficients each block gets."""

import numpy as np
import pytest

from fedseed.methods.allocation import allocate, estimated_norms, proportional


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
    ],
)
def test_proportional(total, shares, expected):
    assert list(proportional(total, np.array(shares, dtype=np.float64))) == expected


def test_the_rules_look_at_what_they_should():
    sizes, rho = (100, 200, 400), np.array([1.0, 0.25, 0.04])
    norms = np.array([3.0, 1.0, 0.5])
    roots = np.sqrt(norms / rho)
    last = [[np.float32([norm / rho_l**0.5]) for norm, rho_l in zip(norms, rho, strict=True)]]
    for rule, known in (("sqrt", {"norms": norms}), ("previous", {"previous": last})):
        counts = allocate(rule, 1000, sizes, rho, **known)
        np.testing.assert_allclose(counts, 1000 * roots / roots.sum(), atol=1)
        assert list(allocate(rule, 700, sizes, rho)) == list(sizes)  # nothing is known yet
    assert list(allocate("norm", 50, sizes, rho, norms)) == [50, 16, 8]
    assert list(allocate("norm", 50, sizes, rho, norms / 1000)) == [50, 16, 8]  # only their ratios count
    assert list(allocate("norm", 50, sizes, rho, np.zeros(3))) == [2, 2, 2]
    assert list(allocate("uniform", 10, sizes, rho)) == [4, 3, 3]


def test_norms_from_scalars():
    """|Delta_l| = sqrt(sum over parts of rho_l K_l |gamma_l|^2)."""
    parts = [[np.array([3.0, 4.0], np.float32), np.array([1.0], np.float32)], [np.array([1.0], np.float32)] * 2]
    found = estimated_norms(parts, np.array([0.5, 4.0]))
    np.testing.assert_allclose(found, np.sqrt([0.5 * 2 * 25 + 0.5 * 1, 4 * 1 + 4 * 1]))
