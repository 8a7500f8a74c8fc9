import hashlib

import mpmath
import numpy as np
import pytest
from scipy import stats

from fedseed import Basis
from fedseed.randomness import entries
from fedseed.randomness.basis import MAX_RANK, MAX_SIZE
from support.bits import FLAT

LENGTH = 10_007


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize(("start", "stop"), [(127, 131), (4093, 8200), (2**20 - 3, 2**20 + 5000)])
def test_an_element_does_not_depend_on_where_the_slice_begins(name, start, stop):
    basis = Basis(name, 5)
    whole = basis.direction(3, 0, 2**20 + 5003, LENGTH)
    np.testing.assert_array_equal(whole[start:stop], basis.direction(3, start, stop, LENGTH))


def test_normal_has_the_right_distribution_and_tails():
    """Kolmogorov-Smirnov at p > 0.001; tail counts within 4 standard errors of Poisson counts."""
    z = Basis("normal", 11).direction(0, 0, 5_000_000)
    assert stats.kstest(z[:1_000_000].astype(np.float64), "norm").pvalue > 0.001
    for limit in (2.0, 3.0, 4.0, 4.5):
        for tail in (z > limit, z < -limit):
            expected = len(z) * stats.norm.sf(limit)
            assert abs(tail.sum() - expected) < 4 * np.sqrt(expected)


@pytest.mark.parametrize("length", [1, 100, 10**11])
def test_truncated_normal_has_the_right_distribution_and_stays_inside(length):
    z = Basis("truncated_normal", 11).direction(0, 0, 400_000, length=length).astype(np.float64)
    a = length**-0.5
    assert np.abs(z).max() <= a
    assert stats.kstest(z, stats.truncnorm(-a, a).cdf).pvalue > 0.001


@pytest.mark.parametrize("length", [1, 10, 10**5, 10**11])
def test_rho_is_accurate_where_the_plain_formula_cancels(length):
    with mpmath.workdps(60):
        a = 1 / mpmath.sqrt(length)
        plain = 1 - 2 * a * mpmath.npdf(a) / (2 * mpmath.ncdf(a) - 1)
        assert abs(Basis("truncated_normal").variance(length) / plain - 1) < 1e-12
        assert Basis("normal").variance(length) == 1.0
        mass = 2 * mpmath.ncdf(a) - 1
        assert abs(entries.central_mass(length) / mass - 1) < 1e-12


@pytest.mark.parametrize("size", [1, 2, 7, 64, 100])
def test_hadamard_directions_are_orthogonal_on_whole_tiles(size):
    basis = Basis("hadamard", 9, size=size)
    tile = basis.tile
    assert tile >= size and tile & (tile - 1) == 0 and (size == 1 or tile < 2 * size)
    v = np.stack([basis.direction(k, 0, 5 * tile) for k in range(tile)])
    np.testing.assert_array_equal(v @ v.T, 5 * tile * np.eye(tile))


def test_hadamard_beyond_the_tile_takes_signs_of_its_own():
    basis = Basis("hadamard", 9, size=16)
    a, b = basis.direction(3, 0, 100_000), basis.direction(16 + 3, 0, 100_000)
    assert abs((a * b).mean()) < 4 / np.sqrt(100_000)


def test_hadamard_entries_follow_the_definition():
    basis = Basis("hadamard", 9, size=8)
    signs = basis.direction(0, 0, 50)  # row 0 of H is all ones, so this is D
    for k in range(8):
        expected = [signs[i] * (-1) ** bin(k & (i % 8)).count("1") for i in range(50)]
        np.testing.assert_array_equal(basis.direction(k, 0, 50), expected)


@pytest.mark.parametrize(
    ("name", "digest"),
    list(
        zip(
            FLAT,
            ("d9da8a8679162dfc", "3bf94d5e17164ec8", "aacb677bd7d35a73", "ee721061d500d61a"),
            strict=True,
        )
    ),
)
def test_directions_never_change(name, digest):
    """Golden values of stream version 1: a change would make old orbits replay to other weights."""
    v = Basis(name, seed=0x0123456789ABCDEF, size=100).direction(77, 1001, 30_011, length=50_000)
    assert hashlib.blake2b(v.astype("<f4").tobytes(), digest_size=8).hexdigest() == digest


def test_the_last_direction_and_no_elements():
    assert Basis("lowrank", size=MAX_SIZE, rank=MAX_RANK).tile == 1
    last = (1 << 32) - 1
    assert (
        len(Basis("normal").direction(last, 7, 9)) == 2
        and len(Basis("normal").direction(0, 7, 7)) == 0
    )
    for k in (-1, last + 1):
        with pytest.raises(ValueError, match="k = "):
            Basis("normal").direction(k, 0, 1)
    for start, stop in ((-1, 1), (2, 1)):
        with pytest.raises(ValueError, match="elements"):
            Basis("normal").direction(0, start, stop)
