"""Holds the constants that turn random words into entries of directions.

They belong to stream version 1.

`normal` and `truncated_normal` are made of integer bits by polynomials in single precision. Every
operation is one that IEEE 754 rounds exactly (+, *, sqrt, int-to-float), and is done by itself (no
fused multiply-add), so that all implementations agree to the last bit. Libm's log, sin and cos are
not rounded exactly and differ between machines.

The polynomials are minimax fits (Lawson iterations); their coefficients are rounded to single
precision, and stand in the order of the powers.
"""

from math import sqrt

import numpy as np

# how many entries one Philox call makes
ENTRIES_PER_BLOCK = {"normal": 4, "truncated_normal": 4, "rademacher": 128, "hadamard": 128}

F = np.float32

# ln(1 + s) = s - s^2/2 + s^3 P(s) for 1 + s in [sqrt(1/2), sqrt 2); relative error 6e-7
LOG = (
    F(0.33331793546676636),
    F(-0.24987801909446716),
    F(0.19985927641391754),
    F(-0.1710715889930725),
    F(0.15623775124549866),
    F(-0.09918680042028427),
)
SQRT_HALF_BITS = 0x3F3504F3  # the bits of sqrt(1/2) in float32: mantissas lie from there to sqrt(2)
TWO_LN_2 = F(1.3862943611198906)

# sin(pi x / 2) = x P(x^2), cos(pi x / 2) = P(x^2) for |x| <= 1/2; absolute errors 5e-9 and 3e-8
SIN = (
    F(1.5707963705062866),
    F(-0.6459634900093079),
    F(0.07968022674322128),
    F(-0.004602177068591118),
)
COS = (F(1.0), F(-1.2336970567703247), F(0.2535986304283142), F(-0.020408352836966515))

# sqrt(2) erfinv(y) = y P(y^2) for |y| <= erf(1/sqrt 2); relative error 3e-7
PROBIT = (
    F(1.2533143758773804),
    F(0.3280720114707947),
    F(0.18182341754436493),
    F(0.1054668202996254),
    F(0.18488232791423798),
    F(-0.17519830167293549),
    F(0.3448634743690491),
)

TWO_POW_MINUS_30 = F(2.0**-30)
TWO_POW_MINUS_31 = F(2.0**-31)

# The order of the sums in `project` is fixed, so that every implementation gives the same bits: a
# chunk's products are added to LANES single-precision sums (by element index modulo LANES), the
# lanes to a double-precision sum, and the chunks' sums one after the other, in double precision,
# within a span; the spans' sums likewise. Chunks and spans begin at multiples of their size in the
# global element index. `hadamard` has a single-precision sum for each span and column instead (the
# reference says more).
LANES = 32
CHUNK = 4096
SPAN = 1 << 20

# Moments of the normal distribution cut to [-a, a] with a = 1/sqrt(d). The closed form rho = 1 - 2
# a psi(a) / (2 Phi(a) - 1) (Ferret, after Eq. 6) subtracts two numbers that agree to about log10(d)
# digits, so that nothing is left of it in double precision at d = 1e11. The power series has the
# same value without the cancellation.
_SQRT_2_OVER_PI = 0.7978845608028654  # the density factor of the folded normal
_TERMS = 20


def _moment(bound: float, power: int) -> float:
    """Divides the integral of x^power exp(-x^2/2) over [0, bound] by bound^(power + 1).

    Bound <= 1, power even.
    """
    total = 0.0
    coefficient = 1.0  # (-1)^n / (2^n n!) * bound^(2n)
    for n in range(_TERMS):
        total += coefficient / (2 * n + power + 1)
        coefficient *= -bound * bound / (2.0 * (n + 1))
    return total


def bound(length: int) -> float:
    """Return a = 1/sqrt(d), the largest entry of a `truncated_normal` direction of a block of
    `length` parameters.
    """
    if length < 1:
        raise ValueError(f"length = {length}: a block has at least one parameter")
    return 1.0 / sqrt(length)


def variance(length: int) -> float:
    """Return rho, the variance of an entry in a block with `length` parameters (Ferret, after Eqs.
    6 and 8).

    rho tends to 1/(3 d); the relative error stays below 1e-14 for any d >= 1.
    """
    a = bound(length)
    return a * a * _moment(a, 2) / _moment(a, 0)


def central_mass(length: int) -> float:
    """Return Phi(a) - Phi(-a) = erf(a / sqrt 2), the part of the normal distribution that is
    kept.
    """
    a = bound(length)
    return _SQRT_2_OVER_PI * a * _moment(a, 0)
