"""Damaged messages, files and arguments, without end: each is taken or refused as it should, in bounded time and memory.

A room is a generator: it draws a case after the other, and yields the case's bytes and what to do with it, which returns
whether it was taken. Anything that it raises is a fault. `drive` runs a room and measures each case.
"""

import asyncio
import base64
import json
import random
import runpy
import signal
import string
import struct
import subprocess
import time
import traceback
import tracemalloc
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedseed.errors import FedseedError, MessageError, OrbitError
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.federation.network_coordinator import NetworkCoordinator
from fedseed.federation.protocol import (
    Entry,
    Stored,
    header_entry,
    mark_entry,
    read_header,
    read_json,
    read_mark,
    read_plan,
    read_silent,
    read_step,
    silent_message,
    step_entry,
)
from fedseed.federation.session import CoordinatorSettings
from fedseed.federation.step_log import StepLog
from fedseed.methods import FeedSign
from fedseed.orbit import Header, Orbit
from fedseed.orbit.file import START, begin
from fedseed.orbit.record import LINK_BYTES, link
from fedseed.reports.progress import Silent
from fedseed.transport.keys import make
from fedseed.transport.memory import Hub
from fedseed.transport.nats_connection import _Guarded
from fedseed.transport.server_log import ServerLog
from fedseed.transport.subjects import name_of, token
from support.hostile.damage import ESCAPES, bomb, damaged, damaged_json, evil

TESTS = Path(__file__).parents[2]
GOLDEN = runpy.run_path(str(TESTS / "methods" / "golden" / "make.py"))
ORBITS = sorted((TESTS / "orbit" / "golden").glob("*.orbit"))
LAYOUT = GOLDEN["LAYOUT"]
CLIENTS = [f"client-{number}" for number in range(3)]

SECONDS = 5.0  # processor time of one case; the largest takes a tenth of a second
MEMORY = 16 << 20  # bytes that any case may take for a while
PER_BYTE = 60  # more for each byte of it: JSON of empty lists becomes Python objects
TOO_LONG = 60  # processor seconds after which a case is interrupted


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


def _tried(act, *errors):
    """What it returns, or False for an error that it may raise."""

    def attempt():
        try:
            act()
        except errors or (FedseedError,):
            return False
        return True

    return attempt


# -- updates -----------------------------------------------------------------------------------


def updates(rng, folder):
    """Damaged updates of every method, in frames that are right: rounds end in steps that everybody can read."""
    while True:
        name = rng.choice(list(GOLDEN["CASES"]))
        method, _, update, _ = GOLDEN["CASES"][name]
        coordinator = _coordinator(method)
        payloads, real = [], update.encode()
        for number in range(1, 4):
            coordinator.open(number)
            coordinator.plans()
            for client in range(3):
                for _ in range(3):
                    data = real if rng.random() < 0.3 else _damaged_payload(rng, real)
                    message = Message(MessageKind.UPDATE, method.code, number, client, data).encode()
                    if rng.random() < 0.1:
                        message = damaged(rng, message)
                    yield len(message), _tried(lambda c=coordinator, m=message, n=client: c.receive(m, n), MessageError)
            yield 100, lambda c=coordinator: payloads.append(_closed(c))
        yield 100, lambda m=method, p=tuple(payloads): _resumed(m, p)


def _coordinator(method):
    made = Coordinator(method, LAYOUT, GOLDEN["SEED"], [5, 5, 5], 3)
    made.take_base(lambda: GOLDEN["DATA"])
    return made


def _closed(coordinator):
    """The round's step: a message whose numbers are finite."""
    with np.errstate(all="raise", under="ignore"):
        step = Message.decode(coordinator.close())
    return step.payload


def _resumed(method, payloads):
    """A coordinator that starts again reads every step."""
    _coordinator(method).catch_up(payloads)
    return True


def _damaged_payload(rng, real):
    if rng.random() < 0.05:
        return rng.randbytes(rng.choice([0, 1, 100, 100_000]))
    if rng.random() < 0.4 and len(real) >= 4:  # one number
        at = rng.randrange(len(real) // 4) * 4
        value = rng.choice([struct.pack("<f", rng.choice([3e38, -3e38, 1e30, 1e5, float("nan"), float("inf"), 1e-45])),
                            struct.pack("<I", rng.choice([0, 1, 1 << 31, (1 << 32) - 1]))])  # fmt: skip
        return real[:at] + value + real[at + 4 :]
    return damaged(rng, real)


# -- what clients say ------------------------------------------------------------------------------------


def header_of(method=None):
    """A run's header."""
    return Header("small", "ab" * 16, "float32", LAYOUT, method or FeedSign(), GOLDEN["SEED"])


class Conversation:
    """A coordinator that waits for clients, or has begun: three clients, in memory.

    Args:
        begun: whether all have come, and a round is open.
    """

    def __init__(self, begun):
        self.method = FeedSign()
        self.loop = asyncio.new_event_loop()
        self.talk = self._do(self._make())
        self.work = self.loop.create_task(self._run())
        self.start = begin(header_of(self.method))
        self.epoch = ""
        self._do(asyncio.sleep(0))
        if begun:
            for name in CLIENTS:
                self.say(name, "attach", json.dumps(self.attach(name)).encode())
                self.say(name, "hello", json.dumps(self.hello(name)).encode())
            while self.talk.rounds is None or self.talk.rounds.open is None:
                self._do(asyncio.sleep(0.01))
            self.epoch = self.talk.session.incarnation

    def _do(self, work):
        return self.loop.run_until_complete(work)

    async def _make(self):
        end = await Hub().transport("run").coordinator(print)
        settings = CoordinatorSettings(deadline=3600.0, minimum=3, dead_after=3600.0, names=tuple(CLIENTS))
        return NetworkCoordinator(end, "run", self.method, GOLDEN["SEED"], 1000, settings, Silent())

    async def _run(self):
        await self.talk.start(False, False)
        coordinator = await self.talk.open(3, GOLDEN["Mean"]())
        for number in range(1, 1000):
            await self.talk.rounds.gather(number)
            step = coordinator.close()
            await self.talk.log.publish(number, step)
            line = {"round": number, "seconds": {}, "epsilon": 1.0}
            await self.talk.inquiry.ask(line, True)
            json.dumps(line)
            assert line["round"] == number and line["epsilon"] == 1.0

    def hello(self, name):
        """A right one."""
        return {"host": name, "header": base64.b64encode(self.start).decode(), "names": CLIENTS, "at": 0,
                "time": time.time(), "bucket": False}  # fmt: skip

    def attach(self, name):
        """A right one."""
        return {"client": name, "host": name, "examples": 5}

    def report(self, number):
        """A right one."""
        spent = {"seconds": {"training": 0.1}, "forward_passes": 2, "losses": 0.5, "counted": 1}
        return {"at": number, "epoch": self.epoch, "round": number, "digest": "ab" * 16, "spent": spent, "ratio": 0.1,
                "metrics": {"loss": 0.5}, "by_client": None, "seconds": 0.1}  # fmt: skip

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
        answer = self.talk._answer()
        assert len(answer) < 1 << 18, f"a status of {len(answer):,} bytes"
        text = json.loads(answer)
        assert "\x1b" not in str(text) and "\u202e" not in json.dumps(text, ensure_ascii=False)
        return True

    def close(self):
        """End it."""
        self.work.cancel()
        self._do(asyncio.gather(self.work, return_exceptions=True))
        self._do(self.talk.session.end.close())
        self.loop.close()


def said(rng, folder):
    """Hellos, attachments, beats, reports, updates and what there is not, before the run begins and in its rounds."""
    while True:
        conversation = Conversation(begun=rng.random() < 0.7)
        try:
            for _ in range(150):
                what, data = _saying(rng, conversation)
                sender = rng.choice([*CLIENTS, "client-2", "client-2", "nobody", ESCAPES[:5]])
                yield len(data), lambda s=sender, w=what, d=data: conversation.say(s, w, d)
                if rng.random() < 0.1:
                    yield 1 << 18, conversation.look
        finally:
            conversation.close()


def _saying(rng, talk):
    """A kind of message and its bytes."""
    name = rng.choice(CLIENTS)
    current = talk.talk.rounds.open if talk.talk.rounds is not None else None
    number = current.number if current is not None else talk.talk.line.get("round", 0)
    what = rng.choice(["hello", "hello", "attach", "beat", "report", "report", "update", "silent", "bomb", "x"])
    table = {"hello": talk.hello(name), "attach": talk.attach(name), "report": talk.report(rng.choice([number, 0, 1])),
             "beat": {"at": 0, "epoch": talk.epoch}}.get(what)  # fmt: skip
    if table is not None:
        if rng.random() < 0.1:
            return what, json.dumps(table).encode()
        if what == "hello" and rng.random() < 0.3:
            table["header"] = base64.b64encode(damaged_header(rng, talk.start)).decode()
            return what, json.dumps(table).encode()
        return what, damaged_json(rng, table)[:1_000_000]
    if what == "update":
        vote = Message(MessageKind.UPDATE, talk.method.code, max(number, 1), rng.randrange(3), rng.choice([b"\0", b"\1"]))
        return what, vote.encode() if rng.random() < 0.3 else damaged(rng, vote.encode())
    if what == "silent":
        data = rng.choice([silent_message(max(number, 1), 0, ESCAPES), Stored("x", 100, bytes(28)).encode()])
        return "update", data if rng.random() < 0.3 else damaged(rng, data)
    if what == "bomb":
        packed = bomb(rng.choice([10, 255, 1000]), rng.choice([1000, 20_000, 200_000]))
        head = talk.start[:12] + struct.pack("<I", len(packed)) + packed
        return "hello", json.dumps({**talk.hello(name), "header": base64.b64encode(head + link(b"", head)).decode()}).encode()
    return rng.choice(["x", "", "hello ", "a" * 10_000, ESCAPES]), evil(rng).encode("utf-8", "surrogatepass")


# -- headers and orbits ------------------------------------------------------------------------------------


def damaged_header(rng, start):
    """An orbit's beginning whose JSON is damaged, or its bytes; checksums are right more often than not."""
    packed = start[START.size : -LINK_BYTES]
    kind = rng.randrange(4)
    if kind == 0:
        return damaged(rng, start)
    if kind == 1:
        packed = damaged(rng, packed)
    elif kind == 2:
        packed = zlib.compress(damaged_json(rng, json.loads(zlib.decompress(packed))), 9)
    else:
        packed = bomb(rng.choice([10, 255]), rng.choice([1000, 50_000]))
    head = start[:12] + struct.pack("<I", len(packed)) + packed
    return head + link(b"", head)


def orbits(rng, folder):
    """Orbit files with damage anywhere, linked anew so that it is reached."""
    files = [path.read_bytes() for path in ORBITS]
    while True:
        whole = rng.choice(files)
        orbit = Orbit.parse(whole)
        kind = rng.randrange(4)
        if kind == 0:
            data = damaged(rng, whole)
        elif kind == 1:
            data = damaged_header(rng, orbit.start) + whole[len(orbit.start) :]
        else:  # records that say something else, properly chained
            start = orbit.start if kind == 2 else damaged_header(rng, orbit.start)
            data, last = start, start[-LINK_BYTES:]
            for part in orbit.parts:
                changed = part
                if rng.random() < 0.3:
                    changed = replace(part, payload=_damaged_payload(rng, part.payload))
                if rng.random() < 0.1:
                    changed = replace(changed, steps=rng.choice([1, 2, 1000, (1 << 32) - 1]))
                if rng.random() < 0.05:
                    changed = replace(changed, first=rng.choice([0, 2, 1 << 31]))
                record = changed.encode()
                last = link(last, record)
                data += record + last
        yield len(data), _tried(lambda d=data: _read(d), OrbitError)


def _read(data):
    orbit = Orbit.parse(data)
    orbit.check_steps()


# -- the run's log, and what is broadcast -----------------------------------------------------------------------


def logs(rng, folder):
    """A run's log with damaged entries, as a coordinator reads it when it starts; and what clients hear."""
    loop = asyncio.new_event_loop()
    header = header_of()
    try:
        while True:
            start = begin(header)
            about = {"epoch": "ab" * 8, "names": CLIENTS, "rounds": 5}
            entries, last = [header_entry(about, start), Entry("S", bytes(8))], start[-LINK_BYTES:]
            for number in range(1, 4):
                step = Message(MessageKind.STEP, header.method.code, number, EVERYBODY, b"\1").encode()
                entry, last = step_entry(last, step, step)
                entries += [entry, mark_entry(number, "ab" * 16)]
            data = [entry.encode() for entry in (*entries, Entry("E", b""))]
            for _ in range(rng.choice([1, 1, 2])):
                at = rng.randrange(len(data))
                if at == 0 and rng.random() < 0.5:
                    text = damaged_json(rng, about)
                    data[0] = b"H" + struct.pack("<I", len(text)) + text + damaged_header(rng, start)
                elif rng.random() < 0.2:
                    data.insert(at, rng.choice([b'{"seq":1}', b"", b"H", b"T", b"M" * 5, evil(rng).encode("utf-8", "replace")]))
                else:
                    data[at] = damaged(rng, data[at])
            size = sum(map(len, data))
            yield size, _tried(lambda d=tuple(data): loop.run_until_complete(_read_log(d)))
            one = rng.choice(data)
            for read in (read_plan, read_json, read_silent, Stored.decode):
                yield len(one), _tried(lambda r=read, d=damaged(rng, one): r(d), MessageError)
            yield len(one), _tried(lambda d=one: _read_entry(d), FedseedError)
    finally:
        loop.close()


async def _read_log(entries):
    end = await Hub().transport("run").coordinator(print)
    await end.create_log(1)
    writer = end.writer(0)
    for entry in entries:
        await writer.append(entry)
    log = StepLog(end, replacing=False)
    try:
        await asyncio.wait_for(log.read(len(entries), "run"), 30)
        await log.payloads()
    finally:
        await end.close()


def _read_entry(data):
    entry = Entry.decode(data)
    {"H": read_header, "T": read_step, "M": read_mark}.get(entry.kind, lambda e: None)(entry)


# -- the transport's own -----------------------------------------------------------------------------------


def wire(rng, folder):
    """Headers and subjects of messages as a NATS server passes them on: the connection survives them all."""
    loop = asyncio.new_event_loop()
    client = _Guarded(encrypted=False)
    client._error_cb = _no_matter
    good = [b"NATS/1.0\r\nNats-Rollup: sub\r\nx: y\r\n\r\n", b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\n\r\n"]
    try:
        while True:
            headers = damaged(rng, rng.choice(good)) if rng.random() < 0.8 else rng.randbytes(rng.choice([1, 8, 10, 12, 40]))
            subject = rng.choice([b"fedseed.run.up.x.y", rng.randbytes(8), damaged(rng, b"fedseed.run.up.client-1.hello")])
            message = (7, subject, rng.choice([b"", b"x.y", rng.randbytes(5)]), b"data", headers)
            client._subs[7] = _Subscription()
            yield len(headers) + 20, lambda m=message: loop.run_until_complete(client._process_msg(*m)) or True
            part = subject.decode(errors="replace").rpartition(".")[2]
            yield len(part), lambda p=part: (name_of(p) is None) or token(name_of(p)) == p
    finally:
        loop.close()


async def _no_matter(error):
    pass


class _Subscription:
    """As much of the library's as it looks at when a message comes."""

    _received = _max_msgs = _pending_size = 0
    _pending_bytes_limit = 1 << 20
    _jsi = _future = None

    def __init__(self):
        self._pending_queue = asyncio.Queue()


def server_log(rng, folder):
    """Lines of a nats-server's log, damaged: nobody is named who was not there."""
    path = Path(folder) / "fuzzed.log"
    path.write_bytes(b"")
    log = ServerLog(path, {"UA": "north"})
    head = b'[7] 2026/11/21 17:07:54.117465 [ERR] 10.0.0.5:47260 - cid:6 - "v2:python3:fedseed x" - '
    lines = [head + b'Publish Violation - Nkey "UB", Subject "fedseed.r.up.south.update"\n', head + b"TLS handshake error: EOF\n",
             head + b"maximum payload exceeded: 104857600 vs 1048576\n"]  # fmt: skip
    while True:
        data = b"".join(damaged(rng, rng.choice(lines)) for _ in range(rng.choice([1, 3, 200]))) + rng.choice([b"", b"\n"])
        if rng.random() < 0.05:
            data = rng.randbytes(1 << 20)

        def act(data=data):
            with open(path, "ab") as file:
                file.write(data)
            for who, reason in log.new():
                assert who != "north" and len(who) < 500 and len(reason) < 500
            if path.stat().st_size > 10 << 20:
                path.write_bytes(b"")
            return True

        yield len(data), act


def keys(rng, folder):
    """Names for `fedseed keys`: refused, or a configuration in which every key has what its name says and no more."""
    letters = string.ascii_letters + string.digits + "-_ .,=/\\\"'\n\r\t>*$#{}[]();\x00\x1b\u202eé"
    number = 0
    while True:
        number += 1

        def text():
            fixed = ["north", "../up", "a\nb", 'x"', "coordinator", "watcher", "a.b", ">", "x" * 300, "", ".", "..", "a=b"]
            drawn = "".join(rng.choice(letters) for _ in range(rng.choice([1, 3, 8])))
            return rng.choice([rng.choice(fixed), drawn, "north", "south"])

        run = rng.choice(["run", "run", text()])
        clients = [rng.choice([text(), f"{text()}={text()},{text()}"]) for _ in range(rng.choice([1, 2, 3]))]
        hosts = [rng.choice(["localhost", "127.0.0.1", text()])]
        out = Path(folder) / f"keys-{number}"
        yield sum(map(len, (run, *clients))), lambda r=run, c=clients, h=hosts, o=out: _make_keys(r, o, c, h)


def _make_keys(run, out, clients, hosts):
    around = set(out.parent.iterdir())
    try:
        make(run, out, clients, hosts, 4222)
    except FedseedError:
        assert set(out.parent.iterdir()) - around <= {out}
        return False
    assert set(out.parent.iterdir()) - around == {out}
    made = {path.name for path in out.glob("*.nk")}
    wanted = {f"{text.partition('=')[0]}.nk" for text in clients} | {"coordinator.nk", "watcher.nk"}
    assert made == wanted, (made, wanted)
    text = (out / "nats-server.conf").read_text(encoding="utf-8")
    assert text.count("{ nkey:") == len(wanted) == text.count("publish: [") == text.count("subscribe: [")
    tried = subprocess.run(["nats-server", "-t", "-c", str(out / "nats-server.conf")], capture_output=True, text=True)
    assert tried.returncode == 0, tried.stderr[:500]
    return True


ROOMS = {"updates": updates, "said": said, "orbits": orbits, "logs": logs, "wire": wire, "server_log": server_log,
         "keys": keys}  # fmt: skip
