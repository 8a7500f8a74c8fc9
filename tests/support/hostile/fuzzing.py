"""Damaged messages and files, without end: each is taken or refused, in bounded time and memory.

A room is a generator: it draws a case after the other, and yields the case's bytes and what to do
with it, which returns whether it was taken. Anything that it raises is a fault. `drive` runs a room
and measures each case."""

import asyncio
import random
import runpy
import signal
import struct
import time
import traceback
import tracemalloc
import warnings
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedseed.errors import FedseedError, MessageError
from fedseed.federation.control import Beginning, Question, parse_control
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.coordinator.step_log import StepLog
from fedseed.federation.large import Stored
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.federation.protocol import (
    Entry,
    header_entry,
    mark_entry,
    read_header,
    read_mark,
    read_plan,
    read_silent,
    read_step,
    step_entry,
)
from fedseed.methods import FeedSign
from fedseed.orbit import Header
from fedseed.orbit.file import begin
from fedseed.orbit.record import LINK_BYTES
from fedseed.transport.memory import Hub
from support.hostile.damage import damaged, damaged_header, damaged_json, damaged_payload, evil

SECONDS = 5.0  # processor time of one case; the largest takes a tenth of a second
MEMORY = 16 << 20  # bytes that any case may take for a while
PER_BYTE = 60  # more for each byte of it: JSON of empty lists becomes Python objects
TOO_LONG = 60  # processor seconds after which a case is interrupted
GOLDEN = runpy.run_path(str(Path(__file__).parents[2] / "methods" / "golden" / "make.py"))
CLIENTS = [f"client-{number}" for number in range(3)]
METHOD = FeedSign()
START = begin(Header("small", "ab" * 16, "float32", GOLDEN["LAYOUT"], METHOD, GOLDEN["SEED"]))


class TooLong(BaseException):
    """A case does not end."""


def drive(room, seed, count=None, seconds=None, folder=None):
    """Run cases of a room (a name of `ROOMS`), so many or for so long.

    A fault is raised with its case and seed.

    Returns how many cases there were, how many of them were valid, the slowest's processor seconds,
    and the bytes that one took beyond what its size allows for, at most."""

    def interrupt(number, frame):
        raise TooLong

    done, taken, slowest, largest = 0, 0, 0.0, 0
    end = None if seconds is None else time.monotonic() + seconds
    cases = ROOMS[room](random.Random(f"{room} {seed}"), folder)
    before = signal.signal(signal.SIGPROF, interrupt)
    tracemalloc.start()
    try:
        while done != count and (end is None or time.monotonic() < end):
            size, act = next(cases)
            what = f"{room}, seed {seed}, case {done}, {size:,} bytes"
            tracemalloc.reset_peak()
            held, began = tracemalloc.get_traced_memory()[0], time.process_time()
            signal.setitimer(signal.ITIMER_PROF, TOO_LONG)
            try:
                # they go to the terminal
                with warnings.catch_warnings(action="error", category=RuntimeWarning):
                    taken += bool(act())
            except (TooLong, Exception) as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(where.filename).name}:{where.lineno}"
                raise AssertionError(
                    f"{what}: {place}: {type(error).__name__}: {str(error)[:500]}"
                ) from error
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            took, used = time.process_time() - began, tracemalloc.get_traced_memory()[1] - held
            assert took < SECONDS, f"{what}: {took:.1f} s"
            assert used < MEMORY + PER_BYTE * size, f"{what}: {used:,} bytes"
            done, slowest, largest = (
                done + 1,
                max(slowest, took),
                max(largest, used - PER_BYTE * size),
            )
    finally:
        tracemalloc.stop()
        signal.signal(signal.SIGPROF, before)
        cases.close()
    return done, taken, slowest, largest


def tried(act, *args, errors=FedseedError):
    """Whether it goes well; it may raise these errors."""

    def attempt():
        try:
            act(*args)
        except errors:
            return False
        return True

    return attempt


# -- what clients send to a coordinator
# ------------------------------------------------------------------------------


def updates(rng, folder):
    """Damaged updates of every method, in frames that are right: rounds end in steps that everybody
    can read.
    """

    def coordinator_of(method):
        made = Coordinator(method, GOLDEN["LAYOUT"], GOLDEN["SEED"], [5, 5, 5], 3)
        if method.catch_up.replaces:
            made.weights = GOLDEN["DATA"]
        return made

    def close(coordinator, payloads):
        """The round's step is a message whose numbers are finite."""
        state = coordinator.state
        with np.errstate(all="raise", under="ignore"):
            payloads.append(coordinator.close().payload)
        check_finite(coordinator.method.decode_step(state, payloads[-1]))
        return True

    def check_finite(value):
        if isinstance(value, np.ndarray):
            assert value.dtype.kind != "f" or np.isfinite(value).all(), value
        elif isinstance(value, (tuple, list)) or is_dataclass(value):
            for part in vars(value).values() if is_dataclass(value) else value:
                check_finite(part)

    while True:
        method, _, update, _ = rng.choice(list(GOLDEN["CASES"].values()))
        coordinator, payloads, real = coordinator_of(method), [], update.encode()
        for number in range(1, 4):
            coordinator.open(number)
            coordinator.plans()
            for client in (0, 1, 2) * 3:
                data = real if rng.random() < 0.3 else damaged_payload(rng, real)
                message = Message(MessageKind.UPDATE, method.code, number, client, data).encode()
                message = damaged(rng, message) if rng.random() < 0.1 else message
                yield len(message), tried(coordinator.receive, message, client, errors=MessageError)
            yield 100, partial(close, coordinator, payloads)
        again = coordinator_of(method)  # a coordinator that starts again reads every step
        yield 100, lambda c=again, p=tuple(payloads): c.catch_up(p) or True


# -- what lies on servers
# --------------------------------------------------------------------------------------------


def logs(rng, folder):
    """A run's log with damaged entries, as a coordinator reads it when it starts.

    And what clients hear.
    """

    async def read_log(entries):
        end = await Hub().transport("run").coordinator()
        writer = await end.writer(None)
        for entry in entries:
            await writer.append(entry)
        log = StepLog(end, replacing=False)
        try:
            await asyncio.wait_for(log.load(len(entries), "run"), 30)
            await log.take_up("run", waits=False)
        finally:
            await end.close()

    def read_entry(data):
        entry = Entry.decode(data)
        {"H": read_header, "T": read_step, "M": read_mark}.get(entry.kind, lambda e: None)(entry)

    about = {"epoch": "ab" * 8, "names": CLIENTS, "rounds": 5}
    entries, last = (
        [header_entry(Beginning(**about), START), Entry("S", bytes(8))],
        START[-LINK_BYTES:],
    )
    for number in range(1, 4):
        step = Message(MessageKind.STEP, METHOD.code, number, EVERYBODY, b"\1").encode()
        entry, last = step_entry(last, step, step)
        entries += [entry, mark_entry(number, "ab" * 16)]
    good = [entry.encode() for entry in (*entries, Entry("E", b""))]
    with asyncio.Runner() as runner:
        while True:
            data = list(good)
            for _ in range(rng.choice([1, 1, 2])):
                at = rng.randrange(len(data))
                if at == 0 and rng.random() < 0.5:
                    text = damaged_json(rng, about)
                    data[0] = (
                        b"H" + struct.pack("<I", len(text)) + text + damaged_header(rng, START)
                    )
                elif rng.random() < 0.2:
                    foreign = [
                        b'{"seq":1}',
                        b"",
                        b"H",
                        b"T",
                        b"M" * 5,
                        evil(rng).encode("utf-8", "replace"),
                    ]
                    data.insert(at, rng.choice(foreign))
                else:
                    data[at] = damaged(rng, data[at])
            yield sum(map(len, data)), tried(lambda d=tuple(data): runner.run(read_log(d)))
            one = rng.choice(data)
            for reader in (read_plan, partial(parse_control, Question), read_silent, Stored.decode):
                heard = damaged(rng, one)
                yield len(heard), tried(reader, heard, errors=MessageError)
            yield len(one), tried(read_entry, one)


ROOMS = {"updates": updates, "logs": logs}
