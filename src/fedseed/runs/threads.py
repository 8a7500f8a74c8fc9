"""How many threads a process computes with."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Inside, torch and numba compute with so many threads each; None: with as many as torch had before.

    Sums in torch are split by threads, so their last bits depend on the number. numba's kernels have the same bits with
    any number; with more threads than torch they would have two on a core, which halves its cache, where torch has one.
    """
    import numba
    import torch

    before = torch.get_num_threads(), numba.get_num_threads()
    wanted = before[0] if threads is None else threads
    torch.set_num_threads(wanted)
    numba.set_num_threads(min(wanted, numba.config.NUMBA_NUM_THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])
