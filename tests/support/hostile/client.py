"""A client with a real key that does what the key allows, and an honest client's least: it answers that it has nothing.

Each round it hears of waits for it until it has done its worst; then it answers, in the way that clients have for it,
that it sends nothing. So the round's other answers decide, and a run with it must end with the bits of a run in which
it does nothing else. What it does is drawn by a generator from `saying.py` and `doing.py`.
"""

import asyncio
import base64
import json
import random
import time
from collections import Counter
from contextlib import suppress

from fedseed.errors import FedseedError
from fedseed.federation.large import attempt_of, frame_of, is_stored, round_of
from fedseed.federation.messages import FRAME_BYTES, Message, MessageKind
from fedseed.federation.protocol import read_plan, silent_message
from fedseed.transport import transport
from fedseed.transport.base import Access, Events
from fedseed.transport.keys import permissions
from fedseed.transport.subjects import Subjects
from support.hostile import doing, saying
from support.hostile.targets import targets
from support.hostile.wire import Wire

ACT_SECONDS = (
    15.0  # an act that waits for a server, whose store is full say, is given up: the round waits for this client
)


class HostileClient:
    """See above.

    Args:
        server: with keys, as `federation.py` starts one.
        run: the run's name.
        hosted: what an honest process with this key would have.
        seed: of what it draws.
        acts: how many it does in each round, and at each question.
        heavy: whether it floods with up to 10,000 messages, too, and sends what takes megabytes.
    """

    def __init__(self, server, run, hosted, seed, acts, heavy=False):
        self.name, self.hosted, self.run, self.acts = hosted.host, hosted, run, acts
        self.number = list(hosted.names).index(self.name)
        self.honest = next(name for name in hosted.names if name != self.name)
        self.subjects = Subjects(run)
        self.rng = random.Random(f"{seed} {self.name}")
        key, ca = server.keys / f"{self.name}.nk", server.keys / "ca.pem"
        self._access = Access(server.url, key, ca)
        self.end = None  # the way an honest client has
        self.wire = Wire(server.url, self.subjects, self.name, key, ca)  # its own
        self.publishes = permissions(self.subjects, [self.name])[0]
        self.targets = targets(self.subjects, self.honest)
        self.epoch = ""
        self.real = None  # an update as an honest client would send it
        self.until = None  # time.monotonic() up to which it goes on; None: `acts` decides
        self.share = 0.0  # seconds of each round, then
        self.done = Counter()  # acts by name
        self.sent = 0  # messages that a coordinator may refuse
        self.certain = 0  # messages that it has to
        self.foreign = 0  # what the server has to refuse
        self._plan = self._question = None
        self._begun = False  # a plan has come
        self._called = False  # the coordinator misses somebody: a hello that was refused may have put this one out
        self._worst = set()  # rounds and questions at which it has done its worst
        self._woken = asyncio.Event()
        menu = [*saying.ACTS, *doing.ACTS, *((*saying.HEAVY, *doing.HEAVY) if heavy else ())]
        self._menu, self._weights = zip(*menu, strict=True)

    # -- what acts use ------------------------------------------------------------------------------------

    async def send(self, what, data, certain=True):
        """Say something as an honest client would. `certain`: it must be refused."""
        self.sent += 1
        self.certain += certain and (self._begun or what != "update")  # before any round updates are passed over
        await self.end.send(self.name, what, data)

    def message(self, number, attempt, payload=None):
        """A right update, or one that holds this."""
        if payload is None:
            payload = b"\x01" if self.real is None else self.real[FRAME_BYTES:]
        code = self.hosted.worker.method.code
        return Message(MessageKind.UPDATE, code, number, self.number, payload, attempt)

    def about_itself(self, **more):
        """A right hello, but for what is said here."""
        start = base64.b64encode(self.hosted.start).decode()
        return {"host": self.name, "header": start, "names": list(self.hosted.names), "at": 0, "time": time.time(),
                "bucket": True, **more}  # fmt: skip

    def report(self, number):
        """A report that is right but for the weights."""
        return {"at": number, "epoch": self.epoch, "round": number, "digest": self.rng.randbytes(16).hex(), "spent": {},
                "ratio": None, "metrics": None}  # fmt: skip

    def signature(self, subject, data, after=b""):
        """The lines of a header with this client's own signature; none where nothing is signed."""
        signatures = getattr(self.end, "signatures", None)
        lines = signatures.headers(subject, data, after) if signatures is not None else None
        return b"".join(f"{name}: {value}\r\n".encode() for name, value in (lines or {}).items())

    # -- an honest client's least ------------------------------------------------------------------------------------

    async def live(self):
        """Take part, until cancelled."""
        self.end = await transport(self._access, self.run).client(self.name, Events(again=self._woken.set))
        try:
            await self.end.listen(self._take)
            while not await self._introduce():
                await asyncio.sleep(0.2)
            while True:
                self._woken.clear()
                if self._called:
                    self._called = False
                    await self._introduce()
                (plan, self._plan), (question, self._question) = (self._plan, None), (self._question, None)
                if plan is not None or question is not None:
                    with suppress(FedseedError):  # it is asked again
                        await (self._report(question) if plan is None else self._answer(*plan))
                else:
                    with suppress(TimeoutError, asyncio.TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), 1)
        finally:
            await self.wire.close()
            await self.end.close()

    def _take(self, data):
        """Something was broadcast: a plan, or a question about the weights."""
        with suppress(FedseedError):
            if data[:1] == b"P":
                picked, carried = read_plan(data[1:])
                if picked is None or self.number in picked:
                    frame = frame_of(carried)
                    self._plan = (round_of(frame), attempt_of(frame), carried)
            elif data[:1] == b"A":
                self._question = json.loads(data[1:])
            elif data[:1] == b"C":
                self._called = True
        self._woken.set()

    async def _introduce(self):
        """Whether it is welcome."""
        attach = {"client": self.name, "host": self.name, "examples": len(self.hosted.items[self.name])}
        await self.end.send(self.name, "attach", json.dumps(attach).encode())
        reply = await self.end.ask(self.name, "hello", json.dumps(self.about_itself()).encode(), 5)
        answer = {} if reply is None else json.loads(reply)
        self.epoch = str(answer.get("epoch", ""))
        return reply is not None and "refused" not in answer

    async def _answer(self, number, attempt, carried):
        self._begun = True
        if (number, attempt) not in self._worst:
            self._worst.add((number, attempt))
            if self.real is None and not is_stored(carried):
                self.real = self.hosted.worker.train(carried, self.number, self.hosted.items[self.name]).message
            await self._do_worst(number, attempt)
        await self.end.send(self.name, "update", silent_message(number, attempt, "no usable example"))

    async def _report(self, question):
        number = question.get("round")
        if not self.epoch:
            await self._introduce()
        if number not in self._worst:
            self._worst.add(number)
            await self._do_worst(number, 0)
        about = self.report(number)
        if question.get("evaluate") in (self.name, True):  # or it is waited for
            about.update(metrics={"loss": 1.0}, seconds=0.1)
        await self.end.send(self.name, "report", json.dumps(about).encode())

    # -- the worst ------------------------------------------------------------------------------------

    async def _do_worst(self, number, attempt):
        end, left = time.monotonic() + self.share, self.acts
        while left > 0 or (self.until is not None and time.monotonic() < min(end, self.until)):
            left -= 1
            await self.act(number, attempt)
        with suppress(FedseedError):  # a server that it has kept busy
            await self.end.connection.flush()
        await self.wire.flush()

    async def act(self, number, attempt):
        """Do one thing of the menu."""
        act = self.rng.choices(self._menu, self._weights)[0]
        self.done[act.__name__] += 1
        with suppress(FedseedError, TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(act(self, number, attempt), ACT_SECONDS)

    async def early(self, count):
        """What nobody should believe, before the run begins."""
        self.end = await transport(self._access, self.run).client(self.name)
        try:
            for _ in range(count):
                await self.act(1, 0)
            await self.end.connection.flush()
            await self.wire.flush()
        finally:
            await self.end.close()
