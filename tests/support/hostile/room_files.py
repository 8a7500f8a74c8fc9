"""Rooms of `fuzzing.py`: what lies in files and on servers, and what somebody types."""

import asyncio
import string
import struct
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedseed.errors import FedseedError, MessageError, OrbitError
from fedseed.federation.control import Beginning, Question, read
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.federation.protocol import (
    Entry,
    Stored,
    header_entry,
    mark_entry,
    read_header,
    read_mark,
    read_plan,
    read_silent,
    read_step,
    step_entry,
)
from fedseed.federation.step_log import StepLog
from fedseed.orbit import Orbit
from fedseed.orbit.file import begin
from fedseed.orbit.record import LINK_BYTES, link
from fedseed.transport.keys import make
from fedseed.transport.memory import Hub
from fedseed.transport.nats_connection import _Guarded
from fedseed.transport.server_log import ServerLog
from fedseed.transport.subjects import name_of, token
from support.hostile.damage import damaged, damaged_json, evil
from support.hostile.golden import CLIENTS, TESTS, damaged_header, damaged_payload, header_of, tried

ORBITS = sorted((TESTS / "orbit" / "golden").glob("*.orbit"))


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
                    changed = replace(part, payload=damaged_payload(rng, part.payload))
                if rng.random() < 0.1:
                    changed = replace(changed, steps=rng.choice([1, 2, 1000, (1 << 32) - 1]))
                if rng.random() < 0.05:
                    changed = replace(changed, first=rng.choice([0, 2, 1 << 31]))
                record = changed.encode()
                last = link(last, record)
                data += record + last
        yield len(data), tried(lambda d=data: _read(d), OrbitError)


def _read(data):
    orbit = Orbit.parse(data)
    orbit.check_steps()


def logs(rng, folder):
    """A run's log with damaged entries, as a coordinator reads it when it starts; and what clients hear."""
    loop = asyncio.new_event_loop()
    header = header_of()
    try:
        while True:
            start = begin(header)
            about = {"epoch": "ab" * 8, "names": CLIENTS, "rounds": 5}
            entries, last = [header_entry(Beginning(**about), start), Entry("S", bytes(8))], start[-LINK_BYTES:]
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
                    foreign = [b'{"seq":1}', b"", b"H", b"T", b"M" * 5, evil(rng).encode("utf-8", "replace")]
                    data.insert(at, rng.choice(foreign))
                else:
                    data[at] = damaged(rng, data[at])
            size = sum(map(len, data))
            yield size, tried(lambda d=tuple(data): loop.run_until_complete(_read_log(d)))
            one = rng.choice(data)
            for reader in (read_plan, partial(read, Question), read_silent, Stored.decode):
                heard = damaged(rng, one)
                yield len(heard), tried(lambda r=reader, d=heard: r(d), MessageError)
            yield len(one), tried(lambda d=one: _read_entry(d), FedseedError)
    finally:
        loop.close()


async def _read_log(entries):
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


def _read_entry(data):
    entry = Entry.decode(data)
    {"H": read_header, "T": read_step, "M": read_mark}.get(entry.kind, lambda e: None)(entry)


def wire(rng, folder):
    """Headers and subjects of messages as a NATS server passes them on: the connection survives them all."""
    loop = asyncio.new_event_loop()
    client = _Guarded(encrypted=False)
    client._error_cb = _no_matter
    good = [b"NATS/1.0\r\nNats-Rollup: sub\r\nx: y\r\n\r\n",
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\n\r\n"]  # fmt: skip
    try:
        while True:
            drawn = rng.randbytes(rng.choice([1, 8, 10, 12, 40]))
            headers = rng.choice([drawn, *(damaged(rng, one) for one in good)])
            known = b"fedseed.run.up.client-1.hello"
            subject = rng.choice([known, rng.randbytes(8), damaged(rng, known)])
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
    foreign = head + b'Publish Violation - Nkey "UB", Subject "fedseed.r.up.south.update"\n'
    lines = [foreign, head + b"TLS handshake error: EOF\n", head + b"maximum payload exceeded: 104857600 vs 1048576\n"]
    while True:
        data = b"".join(damaged(rng, rng.choice(lines)) for _ in range(rng.choice([1, 3, 200])))
        data += rng.choice([b"", b"\n"])
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
            fixed = ["north", "../up", "a\nb", 'x"', "coordinator", "watcher", "a.b", ">", "x" * 300, "", ".", ".."]
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
