"""Gives freed memory, which the C library would keep, back to the system.

And has kept objects left alone.
"""

import ctypes
import gc
from functools import cache
from typing import Any

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # of glibc's malloc.h
_LARGE = 1 << 16  # bytes


@cache
def _of_libc(name: str) -> Any:
    """Returns a function of glibc; with another C library one that does nothing."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return lambda *_: None


def give_back() -> None:
    """Let the C library return freed memory to the system.

    glibc takes tensors below 32 MiB from a heap that shrinks from its end only: after a client's
    training hundreds of megabytes of gradients lie there, free but resident, below something small
    that lives on.
    """
    _of_libc("malloc_trim")(0)


def map_large() -> None:
    """From here on take large pieces from the system itself, to which they go back at once when
    they are freed.

    By default glibc does so up to the largest piece that was ever freed: one message of a megabyte,
    and those that follow make holes in the heap. Of a few threads each would have a heap of its
    own, with its own holes.
    """
    _of_libc("mallopt")(_MMAP_THRESHOLD, _LARGE)
    _of_libc("mallopt")(_ARENA_MAX, 1)


def collect_rarely() -> None:
    """Has Python's collector look at all objects after millions of new ones: those of many clients
    are no garbage.
    """
    gc.set_threshold(10_000, 10, 50)
