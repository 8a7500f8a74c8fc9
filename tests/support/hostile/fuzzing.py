"""Damaged messages and files, without end: each is taken or refused, in bounded time and memory.

A room is a generator: it draws a case after the other, and yields the case's bytes and what to do with it, which
returns whether it was taken. Anything that it raises is a fault. `drive` runs a room and measures each case.
"""

import asyncio
import json
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
from fedseed.federation.control import Beginning, Question, read
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.large import Stored
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.federation.network_coordinator import NetworkCoordinator, status_answer
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
from fedseed.federation.session import CoordinatorSettings
from fedseed.federation.step_log import StepLog
from fedseed.methods import FeedSign
from fedseed.orbit import Header
from fedseed.orbit.file import begin
from fedseed.orbit.record import LINK_BYTES
from fedseed.reports.progress import Silent
from fedseed.reports.results import RoundLine
from fedseed.transport.memory import Hub
from support.hostile.damage import ESCAPES, damaged, damaged_header, damaged_json, damaged_payload, evil
from support.hostile.saying import ACTS, Liar

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
    """Run a room's cases, so many or so long, and stop at the first fault.

    Args:
        room: a name of `ROOMS`.
        seed: of all cases.
        count: how many cases.
        seconds: how long, instead.
        folder: for files.

    Returns:
        How many cases there were, how many of them were valid, the slowest's processor seconds, and the bytes that one
        took beyond what its size allows for, at most.

    Raises:
        AssertionError: a fault; says which case of which seed.
    """

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
                with warnings.catch_warnings(action="error", category=RuntimeWarning):  # they go to the terminal
                    taken += bool(act())
            except (TooLong, Exception) as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(where.filename).name}:{where.lineno}"
                raise AssertionError(f"{what}: {place}: {type(error).__name__}: {str(error)[:500]}") from error
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            took, used = time.process_time() - began, tracemalloc.get_traced_memory()[1] - held
            assert took < SECONDS, f"{what}: {took:.1f} s"
            assert used < MEMORY + PER_BYTE * size, f"{what}: {used:,} bytes"
            done, slowest, largest = done + 1, max(slowest, took), max(largest, used - PER_BYTE * size)
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


# -- what clients send to a coordinator ------------------------------------------------------------------------------


def updates(rng, folder):
    """Damaged updates of every method, in frames that are right: rounds end in steps that everybody can read."""

    def coordinator_of(method):
        made = Coordinator(method, GOLDEN["LAYOUT"], GOLDEN["SEED"], [5, 5, 5], 3)
        if method.catch_up.replaces:
            made.weights = GOLDEN["DATA"]
        return made

    def close(coordinator, payloads):
        """The round's step is a message whose numbers are finite."""
        state = coordinator.state
        with np.errstate(all="raise", under="ignore"):
            payloads.append(Message.decode(coordinator.close()).payload)
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


class Conversation:
    """A coordinator that waits for three clients, in memory, or has begun: all have come, and a round is open."""

    def __init__(self, begun):
        self.loop = asyncio.new_event_loop()
        self.talk = self._do(self._make())
        self.work = self.loop.create_task(self._run())
        self._do(asyncio.sleep(0))
        self.epoch = ""
        if begun:
            for name in CLIENTS:
                liar = Liar(random.Random(1), name, CLIENTS, START, METHOD.code)
                for what in ("attach", "hello"):
                    self.say(name, what, json.dumps(liar.about(what, 0)).encode())
            while self.talk.rounds is None or self.talk.rounds.open is None:
                self._do(asyncio.sleep(0.01))
            self.epoch = self.talk.session.incarnation

    def _do(self, work):
        return self.loop.run_until_complete(work)

    async def _make(self):
        end = await Hub().transport("run").coordinator()
        settings = CoordinatorSettings(deadline=3600.0, minimum=3, dead_after=3600.0, names=tuple(CLIENTS))
        return NetworkCoordinator(end, "run", METHOD, GOLDEN["SEED"], 1000, settings, Silent())

    async def _run(self):
        await self.talk.start(False, False)
        coordinator = await self.talk.open(3, GOLDEN["Mean"]())
        for number in range(1, 1000):
            await self.talk.rounds.gather(number)
            await self.talk.log.publish(number, coordinator.close())
            line = RoundLine(number)
            await self.talk.inquiry.ask(line, True)
            assert json.loads(json.dumps(line.to_json()))["round"] == number

    def now(self):
        """The round, and its attempt."""
        current = self.talk.rounds.open if self.talk.rounds is not None else None
        return (current.number, 0) if current is not None else (max(1, self.talk.line.get("round", 0)), 0)

    def say(self, sender, what, data):
        """Let a client say something, and the coordinator go on; whether it was not refused."""
        before = self._refused()

        async def both():
            answer = await self.talk.receive(sender, what, data)
            for _ in range(3):
                await asyncio.sleep(0)
            return answer

        answer = self._do(both())
        assert answer is None or len(answer) < 100_000
        if self.work.done():
            self.work.result()  # raises what ended it
        return self._refused() == before

    def _refused(self):
        return sum(sum(reasons.values()) for reasons in self.talk.session.rejected.counts().values())

    def look(self):
        """Ask for the status, and see that it is bounded and free of control characters."""
        answer = status_answer(self.talk.status(), self.talk.session.end.largest)
        assert len(answer) < 1 << 18, f"a status of {len(answer):,} bytes"
        text = json.loads(answer)
        assert "\x1b" not in str(text) and "\u202e" not in json.dumps(text, ensure_ascii=False)
        return True

    def close(self):
        """End it."""
        self.work.cancel()
        self._do(asyncio.gather(self.work, return_exceptions=True))
        self._do(self.talk.close())
        assert not asyncio.all_tasks(self.loop), "work that goes on without a coordinator"
        self.loop.close()


def said(rng, folder):
    """Hellos, attachments, beats, reports, updates and what there is not, before the run begins and in its rounds."""
    liars = [Liar(rng, name, CLIENTS, START, METHOD.code) for name in CLIENTS]
    while True:
        talk = Conversation(begun=rng.random() < 0.7)
        try:
            for _ in range(100):
                bad, now = rng.choice(liars), talk.now()
                bad.epoch = talk.epoch
                (act,) = rng.choices(list(ACTS), list(ACTS.values()))
                messages = [bad.right(*now)] if rng.random() < 0.2 else list(act(bad, *now))
                sender = rng.choice([bad.name] * 4 + [*CLIENTS, "nobody", ESCAPES[:5]])
                for what, data in messages:
                    yield len(data), partial(talk.say, sender, what, data)
                if rng.random() < 0.1:
                    yield 1 << 18, talk.look
        finally:
            talk.close()


# -- what lies on servers --------------------------------------------------------------------------------------------


def logs(rng, folder):
    """A run's log with damaged entries, as a coordinator reads it when it starts; and what clients hear."""

    async def read_log(entries):
        end = await Hub().transport("run").coordinator()
        writer = await end.writer(None)
        for entry in entries:
            await writer.append(entry)
        log = StepLog(end, replacing=False)
        try:
            await asyncio.wait_for(log.read(len(entries), "run"), 30)
            await log.take_up("run", waits=False)
        finally:
            await end.close()

    def read_entry(data):
        entry = Entry.decode(data)
        {"H": read_header, "T": read_step, "M": read_mark}.get(entry.kind, lambda e: None)(entry)

    about = {"epoch": "ab" * 8, "names": CLIENTS, "rounds": 5}
    entries, last = [header_entry(Beginning(**about), START), Entry("S", bytes(8))], START[-LINK_BYTES:]
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
                    data[0] = b"H" + struct.pack("<I", len(text)) + text + damaged_header(rng, START)
                elif rng.random() < 0.2:
                    foreign = [b'{"seq":1}', b"", b"H", b"T", b"M" * 5, evil(rng).encode("utf-8", "replace")]
                    data.insert(at, rng.choice(foreign))
                else:
                    data[at] = damaged(rng, data[at])
            yield sum(map(len, data)), tried(lambda d=tuple(data): runner.run(read_log(d)))
            one = rng.choice(data)
            for reader in (read_plan, partial(read, Question), read_silent, Stored.decode):
                heard = damaged(rng, one)
                yield len(heard), tried(reader, heard, errors=MessageError)
            yield len(one), tried(read_entry, one)


ROOMS = {"updates": updates, "said": said, "logs": logs}
