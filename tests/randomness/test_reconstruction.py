"""(1/(rho K)) V V^T Delta: unbiased (Ferret, Theorem 1); test_basis.py has its cosine."""

import numpy as np
import pytest

from fedseed.randomness import Basis
from fedseed.randomness.basis import FLAT
from fedseed.randomness.kernels import load
from fedseed.randomness.kernels.reference import Part

CPU = load("cpu")


def reconstruct(basis, delta, count):
    d = len(delta)
    gamma = CPU.project(basis.spec, 0, count, delta, 0, d).astype(np.float64) / (basis.variance(d) * count)
    return CPU.combine(CPU.prepare([Part(basis.spec, 0, gamma.astype(np.float32))], d), 0, d)


@pytest.mark.parametrize("name", FLAT)
def test_unbiased(name):
    """The mean over 4,000 seeds, d = 200, K = 20.

    Along Delta it is 1 within 4 standard errors (from the sample); its distance to Delta is what 4,000 unbiased draws
    leave, sqrt(d / (K * 4000)) = 5%, within a factor 1.25. A bias of 2% along Delta fails.
    """
    d, count, seeds = 200, 20, 4000
    delta = np.random.default_rng(0).normal(size=d).astype(np.float32)
    draws = np.stack([reconstruct(Basis(name, seed, size=32), delta, count) for seed in range(seeds)])
    along = draws @ delta / (delta @ delta)
    error = along.std() / np.sqrt(seeds)
    assert error < 0.006
    assert abs(along.mean() - 1) < 4 * error
    distance = np.linalg.norm(draws.mean(axis=0) - delta) / np.linalg.norm(delta)
    assert distance < 1.25 * np.sqrt(d / (count * seeds))
