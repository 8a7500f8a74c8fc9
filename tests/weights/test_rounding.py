"""Stochastic rounding to 16 bits."""

from math import sqrt

import numpy as np
import torch


def test_stochastic_rounding_hits_the_neighbours_with_the_right_odds():
    from fedseed.weights.rounding import stochastic

    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    for dtype in ("bfloat16", "float16"):
        torch_dtype = getattr(torch, dtype)
        for value in (0.0200001, -3.14159, 1e-6, 70.3, 0.0):
            rounded = stochastic(np.full(200_000, value, dtype=np.float32), bits, dtype)
            kept = torch.from_numpy(rounded)
            assert torch.equal(kept, kept.to(torch_dtype).float())  # the dtype holds them exactly
            assert len(np.unique(rounded)) <= 2
            spread = float(np.ptp(rounded)) / 2 + 1e-30
            assert abs(rounded.mean(dtype=np.float64) - np.float32(value)) < 4 * spread / sqrt(200_000) + 1e-12
