"""What every forked process would do again, done once."""

import os

os.environ["COLUMNS"] = "200"  # a console knows the width from when it was made

import gc
import sys
from pathlib import Path

import dp_accounting.pld.privacy_loss_distribution  # noqa: F401
import numpy as np
import pytest  # noqa: F401

import fedseed.cli.looking
import fedseed.cli.network
import fedseed.cli.orbit
import fedseed.cli.results
import fedseed.cli.running
import fedseed.reports.plots
import fedseed.reports.tables
import fedseed.runs.assembly  # noqa: F401
import support.network
import support.worker_runs  # noqa: F401
from fedseed.randomness import Basis
from fedseed.randomness.kernels import load
from fedseed.randomness.kernels.reference import Part

for name, module in list(sys.modules.items()):  # of those that were there
    if name.startswith("fedseed.cli.") and hasattr(module, "console"):
        module.console.width = int(os.environ["COLUMNS"])


def threads():
    """How many this process has."""
    return len(list(Path("/proc/self/task").iterdir()))


CPU = load("cpu")
before = threads()  # NumPy may have made some, which know of forks
# of small vectors, without threads: no fork would have them
for basis in ("hadamard", "rademacher", "normal"):
    spec, weights = Basis(basis, 1).spec, np.ones(8, np.float32)
    prepared = CPU.prepare([Part(spec, 0, np.ones(2, np.float32))], 8)
    CPU.move(weights, weights, "float32", prepared, 0.5, 0)
    CPU.project(spec, 0, 2, weights, 0, 8)
assert threads() == before, "forking is safe without these threads only"
gc.collect()
gc.freeze()  # what is there stays: forked processes need no copies of it to see that
