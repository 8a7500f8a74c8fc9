"""Clocks of their own for processes, which a test sets forward and back (libfaketime).

Only the date jumps: the time since the machine's start goes on, as it does when somebody sets a
clock. Go programs ask the kernel directly, so a nats-server keeps the machine's date.
"""

import threading
import time
from functools import cache
from pathlib import Path

LIBRARIES = "lib*/*/faketime/libfaketimeMT.so.1"  # of Debian's package


@cache
def find_library():
    """Return libfaketime's path; None: it is not installed."""
    return next(iter(sorted(Path("/usr").glob(LIBRARIES))), None)


def replace_sleep():
    """Have this process sleep by waiting for an event.

    libfaketime 0.9.10 makes `time.sleep` of Python 3.11 and newer fail ("Invalid argument").
    """
    time.sleep = lambda seconds: threading.Event().wait(seconds)


class Clock:
    """A clock for the processes that are started with its environment.

    Args:
        file: where it says how far it is from the machine's clock.
    """

    def __init__(self, file):
        self._file = Path(file)
        self.set_off(0)

    def set_off(self, seconds):
        """Set the clock that far before (below 0) or after the machine's clock."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)  # never half a number

    @property
    def environment(self):
        """The variables that a process needs in order to have this clock."""
        return {
            "LD_PRELOAD": str(find_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
