"""A client's side on NATS: `fedseed join`. One process may host many clients; the model stays in memory.

The run's log is followed from its beginning (or from where this process is): steps are applied in order, once, each
chained to the one before. Work is done in a thread of its own, so that signs of life go on meanwhile.
"""

import asyncio
import base64
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import nats.errors
import torch
from nats.aio.msg import Msg

from fedseed.errors import FedseedError, MessageError, NetworkError, OrbitError, RecipeError
from fedseed.federation.cost import Spent
from fedseed.federation.messages import FRAME_BYTES, Kind, Message
from fedseed.federation.protocol import (
    STORED,
    Entry,
    Stored,
    Subjects,
    read_header,
    read_json,
    read_mark,
    read_plan,
    read_step,
    silent_message,
    spread,
)
from fedseed.federation.worker import spent
from fedseed.orbit import Record
from fedseed.orbit.file import begin, scan
from fedseed.orbit.record import LINK_BYTES, link
from fedseed.reports.progress import Progress, Silent
from fedseed.runs.assembly import Federation, build
from fedseed.runs.recipe import Recipe
from fedseed.transport.nats import REQUEST_SECONDS, Access, LogReader, Objects, connect, end

RETRY_SECONDS = 2.0
MOST_PLANS = 10_000  # that wait to be looked at
DENSE_PATIENCE_SECONDS = 60.0  # how long newer weights may take to come when older ones have been deleted
T = TypeVar("T")


class Joined:
    """A process that takes part in a run for the clients it hosts.

    Args:
        recipe: the recipe, as the coordinator has it.
        run: the run's name on the server.
        access: how to reach the server.
        clients: the names of the clients it hosts, or patterns.
        data: the one client's own examples, in place of those of the recipe's task.
        progress: shows the run going on.
        loader: loads the recipe's model and data; called again if the weights have to be replayed from the base.

    Raises:
        RecipeError: the recipe has no client of this name, or its model or data can't be had.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: str,
        access: Access,
        clients: Sequence[str],
        data: Sequence[Any] | None = None,
        progress: Progress | None = None,
        loader: Callable[[Recipe], Federation] = build,
    ) -> None:
        self.recipe = recipe
        self.subjects = Subjects(run)
        self.access = access
        self.progress = progress or Silent()
        self._loader = loader
        simulated = loader(recipe)  # the whole federation as it is in one process; the hosted clients' part is played
        self.names = simulated.names
        self.hosted = matching(clients, self.names)
        if data is not None and len(self.hosted) != 1:
            raise RecipeError("--data FILE: for one --client")
        self.host = self.hosted[0]
        self._number_of = {name: number for number, name in enumerate(self.names)}
        self.items = {name: simulated.items[self._number_of[name]] for name in self.hosted}
        if data is not None:
            self.items[self.host] = simulated.worker.objective.prepare(data)
        for note in simulated.notes:
            self.progress.note(note)
        attackers = simulated.attackers if simulated.attack != "labels" else ()
        self._attackers = frozenset(attackers)
        self._begin_at_base(simulated)
        self._queue: deque[Entry] = deque()
        self._plans: deque[tuple[frozenset[int] | None, bytes]] = deque(maxlen=MOST_PLANS)
        self._ask: dict[str, Any] | None = None
        self._wake = asyncio.Event()
        self._failure: Exception | None = None
        self._welcome = False
        self._epoch = ""
        self._beat_seconds = RETRY_SECONDS
        self._reader: LogReader | None = None
        self._ended = False
        self._repairs = 0
        self._call = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),))
        self._bring_weights = False
        self._bucket = recipe.method.catch_up == "newest"
        self._made_bucket = False

    def _begin_at_base(self, simulated: Federation) -> None:
        """Take model and header of a federation that has not run."""
        self.worker = simulated.worker
        self.worker.apart = True  # every client's answer is its own message
        self._evaluate = simulated.evaluate
        self.header = simulated.header
        self.at = 0
        self._link = begin(self.header)[-LINK_BYTES:]
        self._norm: float | None = None
        self._spent = Spent()
        self._answers: dict[int, bytes | str] = {}  # this round's payloads or reasons, by client
        self._answered = 0
        self._report: dict[str, Any] | None = None
        self._digest: tuple[int, str] | None = None
        self._waiting_dense: tuple[float, bytes] | None = None

    def run(self) -> str:
        """Take part until the run is over; returns the digest of the weights.

        Raises:
            FedseedError: refused by the server or the coordinator, or the weights can't be brought in line.
        """
        try:
            return asyncio.run(self._run())
        finally:
            self._thread.shutdown(cancel_futures=True)

    async def _run(self) -> str:
        self._connection = await connect(
            self.access.url,
            self.subjects,
            self.host,
            self.access.key,
            self.access.ca,
            self._on_refusal,
            self._on_reconnect,
        )
        self._objects = Objects(self._connection, self.subjects.bucket(self.host))
        await self._connection.subscribe(self.subjects.down, cb=self._on_down)
        helpers = [asyncio.create_task(self._keep_hello()), asyncio.create_task(self._beat())]
        try:
            with self.progress.running(self.recipe.method.name, self.recipe.rounds):
                await self._work()
            await self._say("beat", {"done": True})
            await self._connection.flush()
        finally:
            for task in helpers:
                await end(task)
            if self._reader is not None:
                await self._reader.stop()
            with suppress(nats.errors.Error, asyncio.TimeoutError):
                await self._connection.close()
        return await self._digest_now()

    # -- what comes in ----------------------------------------------------------------------------------

    def _on_refusal(self, text: str) -> None:
        self._fail(NetworkError(f"the server refuses {self.host}: {text}: its key is not allowed to"))

    def _on_reconnect(self) -> None:
        if self._reader is not None:
            self._reader.restart()
        self._call.set()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._wake.set()

    async def _on_down(self, message: Msg) -> None:
        if message.reply.startswith("$JS") or not message.data:
            return
        kind, body = message.data[:1], message.data[1:]
        with suppress(MessageError):  # what is not valid is not from a coordinator
            if kind == b"C":
                if body.decode("ascii", errors="replace") != self._epoch or not self._epoch or not self._welcome:
                    self._welcome = False
                self._call.set()
            elif kind == b"P":
                self._plans.append(read_plan(body))
                self._wake.set()
            elif kind == b"A":
                self._ask = read_json(body)
                self._wake.set()

    def _take_entry(self, sequence: int, data: bytes) -> None:
        try:
            self._queue.append(Entry.decode(data))
        except MessageError as error:
            self._fail(NetworkError(f"entry {sequence} of the log is not valid: {error}"))
        self._wake.set()

    # -- saying hello ----------------------------------------------------------------------------------

    async def _keep_hello(self) -> None:
        told = False
        try:
            while True:
                self._call.clear()
                try:
                    await self._hello()
                except (nats.errors.Error, TimeoutError, OSError):
                    if not told and not self._welcome:
                        told = True
                        self.progress.note(f"waiting for the coordinator of run {self.subjects.run}")
                with suppress(asyncio.TimeoutError, TimeoutError):
                    await asyncio.wait_for(self._call.wait(), None if self._welcome else RETRY_SECONDS)
                await asyncio.sleep(0.05)
        except Exception as error:
            self._fail(error)

    async def _hello(self) -> None:
        for name in self.hosted:
            about = {"client": name, "host": self.host, "examples": len(self.items[name])}
            await self._connection.publish(self.subjects.up(name, "attach"), json.dumps(about).encode())
        about = {
            "host": self.host,
            "header": base64.b64encode(begin(self.header)).decode(),
            "names": self.names,
            "at": self.at,
            "time": time.time(),
            "bucket": self._bucket,
        }
        if self._bring_weights:
            self._bring_weights = False
            frame = Message(Kind.STEP, self.recipe.method.code, 0, 0, b"").encode()
            carried = await self._objects.carry(frame + await self._in_thread(self.worker.space.dense), "base-weights")
            about["weights"] = base64.b64encode(carried).decode()
        reply = await self._connection.request(
            self.subjects.up(self.host, "hello"), json.dumps(about).encode(), timeout=REQUEST_SECONDS
        )
        answer = read_json(reply.data)
        if "refused" in answer:
            raise FedseedError(f"the coordinator refuses {self.host}: {answer['refused']}")
        if "skew" in answer:
            self.progress.warn(
                f"this machine's clock is {abs(answer['skew']):.0f} s {'ahead of' if answer['skew'] > 0 else 'behind'} "
                "the coordinator's: nothing here depends on it, but certificates do"
            )
        self._made_bucket = self._bucket
        self._beat_seconds = float(answer.get("beat", RETRY_SECONDS))
        if answer.get("bring") == "weights":
            self._bring_weights = True
            self._call.set()
        epoch = str(answer["epoch"])
        if epoch and epoch != self._epoch:
            if self._epoch and self.at:
                self.progress.warn("the run has been put on the server again: begun from the base")
                await self._rebuild()
            self._epoch = epoch
            await self._follow()
        self._welcome = bool(epoch)
        if self._welcome:
            await self._say("beat", {})

    async def _follow(self) -> None:
        if self._reader is not None:
            await self._reader.stop()
        self._queue.clear()
        self._reader = LogReader(self._connection, self.subjects, self._take_entry, 0)
        await self._reader.start()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._beat_seconds)
            with suppress(nats.errors.Error):
                await self._say("beat", {})

    async def _say(self, what: str, about: dict[str, Any]) -> None:
        about = {"at": self.at, "epoch": self._epoch, **about}
        await self._connection.publish(self.subjects.up(self.host, what), json.dumps(about).encode())

    # -- the work ----------------------------------------------------------------------------------

    async def _in_thread(self, act: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act, *arguments)

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            if self._queue:
                await self._take_entries()
            elif self._ended:
                return
            elif not (await self._try_plan() or await self._try_ask()):
                timeout = None if self._waiting_dense is None else 1.0
                with suppress(asyncio.TimeoutError, TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), timeout)
                if self._waiting_dense is not None:
                    await self._take_dense()

    async def _take_entries(self) -> None:
        """Everything that has come from the log: steps that follow each other are applied together."""
        steps: list[bytes] = []
        mark: tuple[int, str] | None = None
        while self._queue:
            entry = self._queue.popleft()
            if entry.kind == "H":
                self._check_log(entry)
            elif entry.kind == "T":
                mark = None
                after, carried = read_step(entry)
                number = self.at + len(steps) + 1
                message = await self._step_message(carried)
                if message is not None and link(self._link, message) != after:
                    await self._begin_again(f"step {number} of the log does not follow those that were applied")
                    return
                self._link = after
                steps.append(carried if message is None else message)
            elif entry.kind == "M":
                mark = read_mark(entry)
            elif entry.kind == "E":
                self._ended = True
        if steps:
            await self._apply(steps)
        if mark is not None and mark[0] == self.at and self._waiting_dense is None:
            await self._compare(mark[1])

    def _check_log(self, entry: Entry) -> None:
        about, start = read_header(entry)
        differences = scan(start, "the log's header")[0].header.differences(self.header)
        if differences:
            raise FedseedError(f"run {self.subjects.run} is another one: {differences[0]} here")
        names = [str(name) for name in about["names"]]
        if any(name not in names for name in self.hosted):
            raise FedseedError(f"run {self.subjects.run} has no client {self.host}: it has {spread(names)}")
        self._number_of = {name: number for number, name in enumerate(names)}
        self._link = start[-LINK_BYTES:]

    async def _step_message(self, carried: bytes) -> bytes | None:
        """A step's message; None for weights in the object store, of which only the newest are fetched."""
        if carried[: len(STORED)] != STORED:
            return carried
        if self.recipe.method.catch_up == "newest":
            return None
        return await self._objects.fetch(carried, self.subjects.bucket())

    async def _apply(self, steps: list[bytes]) -> None:
        self._report = None
        self._answers = {}
        if self.recipe.method.catch_up == "newest":
            self.at += len(steps)
            changed = [s for s in steps if s[: len(STORED)] == STORED or len(s) > FRAME_BYTES]
            if changed:
                self._waiting_dense = (time.monotonic(), changed[-1])
                await self._take_dense()
        elif len(steps) == 1:
            self._norm = await self._in_thread(self.worker.apply, steps[0])
            self.at += 1
        else:
            messages = [Message.decode(step) for step in steps]
            records = [Record(m.round, m.payload) for m in messages]
            await self._in_thread(self.worker.catch_up, records)
            self._norm = None
            self.at += len(steps)
        self.progress.advance(self.at)

    async def _take_dense(self) -> None:
        """Load the newest weights; where they have been deleted already, newer ones are on their way."""
        assert self._waiting_dense is not None
        since, carried = self._waiting_dense
        try:
            message = await self._objects.fetch(carried, self.subjects.bucket())
        except MessageError as error:
            if time.monotonic() > since + DENSE_PATIENCE_SECONDS:
                raise NetworkError(f"the newest weights can't be had: {error}") from error
            return
        begin_at = time.perf_counter()
        self._norm = await self._in_thread(self.worker.apply, message)
        self._spent.add(Spent({"rebuild": time.perf_counter() - begin_at}))
        self._waiting_dense = None

    async def _compare(self, digest: str) -> None:
        """Compare the weights with those of the others."""
        mine = await self._digest_now()
        if mine == digest:
            return
        self._repairs += 1
        if self._repairs > 3:
            raise OrbitError(f"after step {self.at} the weights' digest is {mine} here, {digest} elsewhere, and replay "
                             "does not mend it: this machine computes differently")  # fmt: skip
        await self._begin_again(f"after step {self.at} the weights' digest is {mine} here, {digest} elsewhere")

    async def _begin_again(self, why: str) -> None:
        self.progress.warn(f"{why}: replaying from the base")
        await self._rebuild()
        await self._follow()

    async def _rebuild(self) -> None:
        self._begin_at_base(await self._in_thread(self._loader, self.recipe))

    async def _digest_now(self) -> str:
        if self._digest is None or self._digest[0] != self.at:
            self._digest = (self.at, await self._in_thread(self.worker.space.digest))
        return self._digest[1]

    # -- answering ----------------------------------------------------------------------------------

    async def _try_plan(self) -> bool:
        """Do what the newest plan asks, if the steps before it have come; whether anything was done."""
        if not self._plans:
            return False
        picked, carried = self._plans[0]
        try:
            frame = Stored.decode(carried).frame if carried[: len(STORED)] == STORED else carried
            number = int.from_bytes(frame[8:12], "little")
            if number > self.at + 1 or not self._welcome or self._waiting_dense is not None:
                return False  # its steps have not come yet
            self._plans.popleft()
            if number < self.at + 1:
                return True
            mine = [n for n in self.hosted if picked is None or self._number_of[n] in picked]
            if not mine:
                return True
            plan = await self._objects.fetch(carried, self.subjects.bucket())
            about = Message.decode(plan).expect(Kind.PLAN, self.recipe.method.code, number)
        except MessageError:
            self._forget_plan(carried)
            return True
        if self._answered != number:
            self._answers, self._answered = {}, number
        new = [name for name in mine if self._number_of[name] not in self._answers]
        if new:
            await self._train(plan, new)
        for name in mine:
            await self._send(name, self._answers[self._number_of[name]], about)
        self._forget_plan(carried)
        return True

    def _forget_plan(self, carried: bytes) -> None:
        """The plan that was just answered may have come once more meanwhile."""
        for plan in [plan for plan in self._plans if plan[1] == carried]:
            self._plans.remove(plan)

    async def _train(self, plan: bytes, names: Sequence[str]) -> None:
        numbers = [self._number_of[name] for name in names]
        items = [self.items[name] for name in names]
        answers = await self._in_thread(self.worker.train_all, [plan] * len(names), numbers, items)
        for number, answer in zip(numbers, answers, strict=True):
            self._spent.add(spent(answer.effort, counts=answer.message is not None))
            if answer.message is None:
                self._answers[number] = str(answer.reason)
                continue
            message = answer.message
            if number in self._attackers:
                assert self.recipe.attack is not None
                message = self.worker.corrupt(message, self.recipe.attack.kind)
            self._answers[number] = message

    async def _send(self, name: str, answer: bytes | str, plan: Message) -> None:
        subject = self.subjects.up(name, "update")
        if isinstance(answer, str):
            await self._connection.publish(subject, silent_message(plan.round, plan.attempt, answer))
            return
        if plan.attempt:
            answer = replace(Message.decode(answer), attempt=plan.attempt).encode()
        number = self._number_of[name]
        if len(answer) > self._objects.inline and not self._made_bucket:
            self._bucket = True
            await self._hello()
        carried = await self._objects.carry(answer, f"update-{plan.round}-{plan.attempt}-{number}")
        await self._connection.publish(subject, carried)

    async def _try_ask(self) -> bool:
        """Report on the weights, if they are those that are asked about; whether anything was done."""
        if self._ask is None:
            return False
        asked = self._ask
        number = asked.get("round")
        if not isinstance(number, int) or number < self.at:
            self._ask = None
            return True
        if number > self.at or not self._welcome or self._waiting_dense is not None:
            return False
        self._ask = None
        if self._report is None or self._report["round"] != number:
            digest = await self._digest_now()
            ratio = None
            if self._norm is not None:
                ratio = self._norm / max(await self._in_thread(self.worker.space.norm), 1e-30)
            self._report = {
                "round": number, "digest": digest, "spent": asdict(self._spent), "ratio": ratio, "metrics": None,
            }  # fmt: skip
            self._spent = Spent()
        if asked.get("evaluate") == self.host and self._report["metrics"] is None:
            start = time.perf_counter()
            self.worker.space.model.eval()
            metrics = await self._in_thread(self._evaluate, self.worker.space.model)
            self._report.update(metrics=metrics, seconds=time.perf_counter() - start)
            self.progress.round({"round": number, **metrics})
        await self._say("report", self._report)
        return True


def matching(wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that are wanted, by name or pattern, in the run's order.

    Raises:
        RecipeError: one fits no name.
    """
    for pattern in wanted:
        if not any(name == pattern or fnmatchcase(name, pattern) for name in names):
            raise RecipeError(f"--client {pattern}: the recipe's clients are {spread(names, 12)}")
    return [name for name in names if any(name == p or fnmatchcase(name, p) for p in wanted)]
