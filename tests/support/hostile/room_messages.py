"""Rooms of `fuzzing.py`: what clients send to a coordinator."""

import asyncio
import base64
import json
import struct
import time

import numpy as np

from fedseed.errors import MessageError
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.messages import Message, MessageKind
from fedseed.federation.network_coordinator import NetworkCoordinator
from fedseed.federation.protocol import Stored, silent_message
from fedseed.federation.session import CoordinatorSettings
from fedseed.methods import FeedSign
from fedseed.orbit.file import begin
from fedseed.orbit.record import link
from fedseed.reports.progress import Silent
from fedseed.reports.results import RoundLine
from fedseed.transport.memory import Hub
from support.hostile.damage import ESCAPES, bomb, damaged, damaged_json, evil
from support.hostile.golden import CLIENTS, GOLDEN, LAYOUT, damaged_header, damaged_payload, header_of, tried


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
                    data = real if rng.random() < 0.3 else damaged_payload(rng, real)
                    message = Message(MessageKind.UPDATE, method.code, number, client, data).encode()
                    if rng.random() < 0.1:
                        message = damaged(rng, message)
                    yield len(message), tried(lambda c=coordinator, m=message, n=client: c.receive(m, n), MessageError)
            yield 100, lambda c=coordinator, p=payloads: p.append(_closed(c))
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
        end = await Hub().transport("run").coordinator()
        settings = CoordinatorSettings(deadline=3600.0, minimum=3, dead_after=3600.0, names=tuple(CLIENTS))
        return NetworkCoordinator(end, "run", self.method, GOLDEN["SEED"], 1000, settings, Silent())

    async def _run(self):
        await self.talk.start(False, False)
        coordinator = await self.talk.open(3, GOLDEN["Mean"]())
        for number in range(1, 1000):
            await self.talk.rounds.gather(number)
            step = coordinator.close()
            await self.talk.log.publish(number, step)
            line = RoundLine(number)
            await self.talk.inquiry.ask(line, True)
            assert json.loads(json.dumps(line.to_json()))["round"] == number

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
        self._do(self.talk.close())
        assert not asyncio.all_tasks(self.loop), "work that goes on without a coordinator"
        self.loop.close()


def said(rng, folder):
    """Hellos, attachments, beats, reports, updates and what there is not, before the run begins and in its rounds."""
    while True:
        conversation = Conversation(begun=rng.random() < 0.7)
        try:
            for _ in range(150):
                what, data = _saying(rng, conversation)
                sender = rng.choice([*CLIENTS, "client-2", "client-2", "nobody", ESCAPES[:5]])
                yield len(data), lambda c=conversation, s=sender, w=what, d=data: c.say(s, w, d)
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
        payload = rng.choice([b"\0", b"\1"])
        vote = Message(MessageKind.UPDATE, talk.method.code, max(number, 1), rng.randrange(3), payload)
        return what, vote.encode() if rng.random() < 0.3 else damaged(rng, vote.encode())
    if what == "silent":
        data = rng.choice([silent_message(max(number, 1), 0, ESCAPES), Stored("x", 100, bytes(28)).encode()])
        return "update", data if rng.random() < 0.3 else damaged(rng, data)
    if what == "bomb":
        packed = bomb(rng.choice([10, 255, 1000]), rng.choice([1000, 20_000, 200_000]))
        head = talk.start[:12] + struct.pack("<I", len(packed)) + packed
        header = base64.b64encode(head + link(b"", head)).decode()
        return "hello", json.dumps({**talk.hello(name), "header": header}).encode()
    return rng.choice(["x", "", "hello ", "a" * 10_000, ESCAPES]), evil(rng).encode("utf-8", "surrogatepass")
