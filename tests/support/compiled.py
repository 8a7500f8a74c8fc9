"""Compiled kernels, loaded before a process is forked: each of its children would take a second for them."""

from pathlib import Path

import numpy as np

from fedseed.randomness import Basis, Domain
from fedseed.randomness.kernels import cpu
from fedseed.randomness.kernels.reference import Part


def threads():
    """How many this process has."""
    return len(list(Path("/proc/self/task").iterdir()))


def load():
    """Load them without starting a thread: after a fork there would be none.

    Small vectors take the kernels' loops without threads.
    """
    before = threads()  # NumPy may have made some, which know of forks
    for name in ("hadamard", "rademacher", "normal"):
        spec, weights = Basis(name, 1).spec, np.ones(8, np.float32)
        prepared = cpu.prepare([Part(spec, 0, np.ones(2, np.float32))], 8)
        cpu.combine(prepared, 0, 8)
        cpu.project_sums(spec, 0, 2, weights, 0, 8)
        cpu.move(weights, weights, "float32", prepared, 0.5, 0)
        cpu.move_steps(weights, "float32", cpu.prepare_steps([([Part(spec, 0, np.ones(2, np.float32))], 0.5)], 8), 0)
    cpu.element_words(1, Domain.ROUNDING, 0, 0, 8)
    assert threads() == before, "forking is safe without these threads only"
