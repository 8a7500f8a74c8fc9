"""How much memory a test may take."""

import tracemalloc
from contextlib import contextmanager


@contextmanager
def at_most(size):
    """No more bytes than this at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()
