"""A client with a real key that does what the key allows, and an honest client's least: it answers that it has nothing.

Each round it hears of waits for it until it has done its worst; then it answers, in the way that clients have for it,
that it sends nothing. So the round's other answers decide, and a run with it must end with the bits of a run in which
it does nothing else. What it does is drawn by a generator from `saying.py` and `doing.py`.
"""

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import suppress

from fedseed.errors import FedseedError
from fedseed.federation.large import attempt_of, frame_of, is_stored, round_of
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.protocol import read_plan, silent_message
from fedseed.transport import transport
from fedseed.transport.base import Access, Events
from fedseed.transport.keys import permissions
from fedseed.transport.subjects import Subjects
from support.hostile import doing, saying
from support.hostile.wire import Wire

ACT_SECONDS = 15.0  # an act that waits for a server, whose store is full say, is given up: the round waits for this one


class HostileClient(saying.Liar):
    """See above.

    Args:
        server: with keys, as `support.network.keyed_server` starts one.
        run: the run's name.
        hosted: what an honest process with this key would have.
        seed: of what it draws.
        acts: how many it does in each round, and at each question.
        heavy: whether it floods with up to 10,000 messages, too, and sends what takes megabytes.
    """

    def __init__(self, server, run, hosted, seed, acts, heavy=False):
        rng = random.Random(f"{seed} {hosted.host}")
        super().__init__(rng, hosted.host, hosted.names, hosted.start, hosted.worker.method.code)
        self.hosted, self.run, self.acts = hosted, run, acts
        self.subjects = Subjects(run)
        key, ca = server.keys / f"{self.name}.nk", server.keys / "ca.pem"
        self._access = Access(server.url, key, ca)
        self.end = None  # the way an honest client has
        self.wire = Wire(server.url, self.subjects, self.name, key, ca)  # its own
        self.publishes = permissions(self.subjects, [self.name])[0]
        self.targets = doing.targets(self.subjects, self.honest)
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
        self._menu = {**saying.ACTS, **doing.ACTS, **({**saying.HEAVY, **doing.HEAVY} if heavy else {})}

    # -- what acts use ------------------------------------------------------------------------------------

    async def send(self, what, data, certain=True):
        """Say something as an honest client would. `certain`: it must be refused."""
        self.sent += 1
        self.certain += certain and (self._begun or what != "update")  # before any round updates are passed over
        await self.end.send(self.name, what, data)

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
        attach = {**self.about("attach", 0), "examples": len(self.hosted.items[self.name])}
        await self.end.send(self.name, "attach", json.dumps(attach).encode())
        reply = await self.end.ask(self.name, "hello", json.dumps(self.about("hello", 0)).encode(), 5)
        answer = {} if reply is None else json.loads(reply)
        self.epoch = str(answer.get("epoch", ""))
        return reply is not None and "refused" not in answer

    async def _answer(self, number, attempt, carried):
        if not self._begun and not is_stored(carried):
            update = self.hosted.worker.train(carried, self.number, self.hosted.items[self.name]).message
            self.real = update[FRAME_BYTES:]
        self._begun = True
        await self._do_worst(number, attempt)
        await self.end.send(self.name, "update", silent_message(number, attempt, "no usable example"))

    async def _report(self, question):
        number = question.get("round")
        if not self.epoch:
            await self._introduce()
        await self._do_worst(number, 0)
        about = self.about("report", number)
        if question.get("evaluate") in (self.name, True):  # or it is waited for
            about.update(metrics={"loss": 1.0}, seconds=0.1)
        await self.end.send(self.name, "report", json.dumps(about).encode())

    # -- the worst ------------------------------------------------------------------------------------

    async def _do_worst(self, number, attempt):
        """Once at each attempt of a round, and at each question."""
        if (number, attempt) in self._worst:
            return
        self._worst.add((number, attempt))
        end, left = time.monotonic() + self.share, self.acts
        while left > 0 or (self.until is not None and time.monotonic() < min(end, self.until)):
            left -= 1
            await self.act(number, attempt)
        with suppress(FedseedError):  # a server that it has kept busy
            await self.end.connection.flush()
        await self.wire.flush()

    async def act(self, number, attempt):
        """Do one thing of the menu."""
        (act,) = self.rng.choices(list(self._menu), list(self._menu.values()))
        self.done[act.__name__] += 1
        with suppress(FedseedError, TimeoutError, asyncio.TimeoutError):
            async with asyncio.timeout(ACT_SECONDS):
                if act in doing.ACTS or act in doing.HEAVY:
                    await act(self, number, attempt)
                else:
                    for message in act(self, number, attempt):
                        await self.send(*message)

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


class HostileWatcher:
    """Somebody with the watcher's key, who asks with reply subjects of others, in great numbers and sizes."""

    def __init__(self, server, run, honest, seed, heavy=False):
        self.subjects, self.rng, self.heavy = Subjects(run), random.Random(f"{seed} watcher"), heavy
        self.wire = Wire(server.url, self.subjects, "watcher", server.keys / "watcher.nk", server.keys / "ca.pem")
        self.done = Counter()
        self._targets = [*doing.targets(self.subjects, honest), f"{self.wire.inbox}.r"]

    async def act(self):
        """Ask for the status or for the log's length, oddly or very often, or do what the key does not allow."""
        pick, status = self.rng.choice, self.subjects.status
        kind = pick(["status", "status", "log", "odd", "foreign", "many"])
        self.done[kind] += 1
        if kind == "status":
            data = pick([b"", b"{}", bytes(900_000), self.rng.randbytes(50)])
            await self.wire.publish(status, data, pick(self._targets))
        elif kind == "log":
            data = pick([b"", b'{"subjects_filter": ">"}', b'{"deleted_details": true}', b"x"])
            await self.wire.publish(f"$JS.API.STREAM.INFO.{self.subjects.stream}", data, pick(self._targets))
        elif kind == "odd":  # headers and reply subjects that are no text
            reply = pick([b"\xff\xff", b"a..b", b">", b"*", self.subjects.log])
            await self.wire.publish(status, b"{}", reply, pick([*doing.EVIL_HEADERS[:4], None]))
        elif kind == "many":
            reply = pick([f"{self.wire.inbox}.%d", f"{self.subjects.inbox('watcher')}.%d.r", self.subjects.log])
            for number in range(10_000 if self.heavy and self.rng.random() < 0.2 else 100):
                await self.wire.publish(status, b"{}", reply.replace("%d", str(number)))
        elif self.done[kind] < 20:
            await self.wire.publish(pick([self.subjects.log, self.subjects.down]), b"E")
            await self.wire.subscribe(f"{self.subjects.root}.>")
        await self.wire.flush()

    async def keep_going(self, pause=0.05):
        """Until cancelled."""
        try:
            while True:
                await self.act()
                await asyncio.sleep(pause)
        finally:
            await self.wire.close()
