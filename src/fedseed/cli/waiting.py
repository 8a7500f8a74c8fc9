"""Show on a terminal that something takes a while."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a spinner with a text on standard error while the block runs, and wipe it out then.

    If standard error is not a terminal, nothing is shown or imported. The block must not print, or
    show a bar of its own.

    Args:
        text: the current work, such as "loading torch".
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True, markup=False, emoji=False).status(text):
        yield
