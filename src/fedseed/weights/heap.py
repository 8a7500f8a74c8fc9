"""Keep a process small: return freed memory to the system, and collect garbage rarely."""

import ctypes
import gc
from functools import cache
from typing import Any

# options of glibc's mallopt (malloc.h)
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
_LARGE_BYTES = 1 << 16


@cache
def _libc_function(name: str) -> Any:
    """Return a function of glibc; with another C library one that does nothing."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return lambda *_: None


def release_free_memory() -> None:
    """Let the C library return freed memory to the system.

    glibc allocates tensors below 32 MiB from a heap that shrinks from its end only. After a
    client's training hundreds of megabytes of freed gradients stay resident there, below some small
    object that is still in use.
    """
    _libc_function("malloc_trim")(0)


def map_large() -> None:
    """Allocate large blocks from the system itself from now on, so that freeing returns them.

    By default glibc raises this threshold to the largest block that was ever freed: after one
    message of a megabyte, later ones leave holes in the heap. Each thread would also have a heap of
    its own, with its own holes.
    """
    _libc_function("mallopt")(_MMAP_THRESHOLD, _LARGE_BYTES)
    _libc_function("mallopt")(_ARENA_MAX, 1)


def collect_rarely() -> None:
    """Make Python's garbage collector look at all objects only after millions of new ones.

    The objects of many clients live as long as the run, so that examining them wastes time.
    """
    gc.set_threshold(10_000, 10, 50)
