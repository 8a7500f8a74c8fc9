"""Constants that turn random words into entries of directions: part of stream version 1.

`normal` and `truncated_normal` are made from integer bits with polynomials in single precision. Every operation
is one IEEE 754 rounds exactly (+, *, sqrt, int-to-float), done separately (no fused multiply-add), so that all
implementations agree to the last bit. Libm's log, sin and cos are not exactly rounded and differ between machines.

Polynomials are minimax fits (Lawson iterations), coefficients rounded to single precision, lowest power first.
"""

import numpy as np

# entries made by one Philox call
ENTRIES_PER_BLOCK = {"normal": 4, "truncated_normal": 4, "rademacher": 128, "hadamard": 128}

F = np.float32

# ln(1 + s) = s - s^2/2 + s^3 P(s) for 1 + s in [sqrt(1/2), sqrt 2); relative error 6e-7
LOG = (F(0.33331793546676636), F(-0.24987801909446716), F(0.19985927641391754),
       F(-0.1710715889930725), F(0.15623775124549866), F(-0.09918680042028427))  # fmt: skip
SQRT_HALF_BITS = 0x3F3504F3  # sqrt(1/2) as float32 bits: where a mantissa starts
TWO_LN_2 = F(1.3862943611198906)

# sin(pi x / 2) = x P(x^2), cos(pi x / 2) = P(x^2) for |x| <= 1/2; absolute errors 5e-9 and 3e-8
SIN = (F(1.5707963705062866), F(-0.6459634900093079), F(0.07968022674322128), F(-0.004602177068591118))
COS = (F(1.0), F(-1.2336970567703247), F(0.2535986304283142), F(-0.020408352836966515))

# sqrt(2) erfinv(y) = y P(y^2) for |y| <= erf(1/sqrt 2); relative error 3e-7
PROBIT = (F(1.2533143758773804), F(0.3280720114707947), F(0.18182341754436493), F(0.1054668202996254),
          F(0.18488232791423798), F(-0.17519830167293549), F(0.3448634743690491))  # fmt: skip

TWO_POW_MINUS_30 = F(2.0**-30)
TWO_POW_MINUS_31 = F(2.0**-31)

# Fixed order of the sums in `project`, so that every implementation that follows it gives the same bits:
# a chunk's products are added into LANES single-precision sums (element index modulo LANES), the lanes into a
# double-precision sum, and the chunks' sums one after the other in double precision within a span;
# the spans' sums likewise. Chunks and spans start at multiples of their size in the global element index.
# `hadamard` has a single-precision sum per span and column instead (the reference says more).
LANES = 32
CHUNK = 4096
SPAN = 1 << 20
