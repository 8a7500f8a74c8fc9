"""Giving memory back to the system: what the C library keeps of tensors that are freed."""

import ctypes
from functools import cache
from typing import Any


@cache
def _trim() -> Any:
    """glibc's `malloc_trim`; None with another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None


def give_back() -> None:
    """Let the C library return freed memory to the system.

    glibc takes tensors below 32 MiB from a heap that shrinks from its end only: after a client's training hundreds of
    megabytes of gradients lie there, free but resident, below something small that lives on.
    """
    if (trim := _trim()) is not None:
        trim(0)
