"""Show on a terminal that something takes its time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a spinner with a text on standard error while the block runs, and wipe it out then.

    Nothing is shown, nor imported for it, where standard error is no terminal. The block prints
    nothing and shows no bar of its own.

    Args:
        text: what is waited for, such as "loading torch".
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True, markup=False, emoji=False).status(text):
        yield
