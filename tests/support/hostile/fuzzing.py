"""Damaged messages, files and arguments, without end: each is taken or refused, in bounded time and memory.

A room is a generator: it draws a case after the other, and yields the case's bytes and what to do with it, which
returns whether it was taken. Anything that it raises is a fault. `drive` runs a room and measures each case.
"""

import random
import signal
import time
import traceback
import tracemalloc
import warnings
from dataclasses import dataclass
from pathlib import Path

from support.hostile.room_files import keys, logs, orbits, server_log, wire
from support.hostile.room_messages import said, updates

SECONDS = 5.0  # processor time of one case; the largest takes a tenth of a second
MEMORY = 16 << 20  # bytes that any case may take for a while
PER_BYTE = 60  # more for each byte of it: JSON of empty lists becomes Python objects
TOO_LONG = 60  # processor seconds after which a case is interrupted
ROOMS = {"updates": updates, "said": said, "orbits": orbits, "logs": logs, "wire": wire, "server_log": server_log,
         "keys": keys}  # fmt: skip


class TooLong(BaseException):
    """A case does not end."""


@dataclass
class Report:
    """What came of a room.

    Args:
        cases: how many there were.
        taken: how many of them were valid.
        slowest: processor seconds of the slowest.
        largest: bytes that the one took that took most beyond what its size allows for.
    """

    cases: int = 0
    taken: int = 0
    slowest: float = 0.0
    largest: int = 0


def drive(room, seed, count=None, seconds=None, folder=None):
    """Run a room's cases, and stop at the first fault.

    Args:
        room: a name of `ROOMS`.
        seed: of all cases.
        count: how many cases.
        seconds: how long, instead.
        folder: for files.

    Raises:
        AssertionError: a fault; says which case of which seed.
    """
    report, end = Report(), None if seconds is None else time.monotonic() + seconds
    cases = ROOMS[room](random.Random(f"{room} {seed}"), folder)
    before = signal.signal(signal.SIGPROF, _interrupt)
    tracemalloc.start()
    try:
        for size, act in cases:
            what = f"{room}, seed {seed}, case {report.cases}, {size:,} bytes"
            tracemalloc.reset_peak()
            held, began = tracemalloc.get_traced_memory()[0], time.process_time()
            signal.setitimer(signal.ITIMER_PROF, TOO_LONG)
            try:
                with warnings.catch_warnings(action="error", category=RuntimeWarning):  # they go to the terminal
                    taken = act()
            except (TooLong, Exception) as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(where.filename).name}:{where.lineno}"
                raise AssertionError(f"{what}: {place}: {type(error).__name__}: {str(error)[:500]}") from error
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            took, used = time.process_time() - began, tracemalloc.get_traced_memory()[1] - held
            assert took < SECONDS, f"{what}: {took:.1f} s"
            assert used < MEMORY + PER_BYTE * size, f"{what}: {used:,} bytes"
            report.cases += 1
            report.taken += bool(taken)
            report.slowest = max(report.slowest, took)
            report.largest = max(report.largest, used - PER_BYTE * size)
            if report.cases == count or (end is not None and time.monotonic() > end):
                return report
    finally:
        tracemalloc.stop()
        signal.signal(signal.SIGPROF, before)
        cases.close()
    return report


def _interrupt(number, frame):
    raise TooLong
