"""How many threads a process computes with."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Inside, torch and numba compute with so many threads; None: with as many as before.

    Sums in torch are split by threads, so their last bits depend on the number. numba's kernels have the same bits with
    any number.
    """
    if threads is None:
        yield
        return
    import numba
    import torch

    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])
