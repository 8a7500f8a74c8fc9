"""Stochastic rounding to 16-bit dtypes, by numbers that everybody can regenerate."""

import numpy as np
from numpy.typing import NDArray


def stochastic(values: NDArray[np.float32], bits: NDArray[np.uint32], dtype: str) -> NDArray[np.float32]:
    """Round each value to one of its two neighbours in a 16-bit dtype, right on average.

    Args:
        values: float32.
        bits: a random word for each: uniform on [0, 1) when divided by 2**32.
        dtype: "bfloat16" or "float16".

    Returns:
        float32 values that the dtype holds exactly (beyond its range: that round to infinity).
    """
    mantissa, least = (7, -126) if dtype == "bfloat16" else (10, -14)
    exact = values.astype(np.float64)
    exponent = np.maximum(np.frexp(exact)[1] - 1, least)  # |x| in [2^e, 2^(e + 1))
    spacing = np.ldexp(1.0, exponent - mantissa)
    return (np.floor(exact / spacing + bits * 2.0**-32) * spacing).astype(np.float32)
