"""The coordinator on NATS: `fedseed serve`. Free of torch, transformers, models and data.

The run's log, a JetStream stream, is the truth: a step counts when the stream has it, once, because only a coordinator
that knows the stream's last entry can write. The orbit file follows and is repaired from the stream, and the stream
from it, when a coordinator starts. docs/architecture.md has the argument.
"""

import asyncio
import base64
import json
import secrets
import time
from collections import Counter
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import nats.errors
import numpy as np
from nats.aio.msg import Msg
from nats.js import api

from fedseed.durable import replacing
from fedseed.errors import FedseedError, MessageError, NetworkError, OrbitError, RecipeError
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.cost import Spent
from fedseed.federation.membership import Attendance
from fedseed.federation.messages import EVERYBODY, FRAME_BYTES, Kind, Message
from fedseed.federation.protocol import (
    SILENT,
    STORED,
    Entry,
    Stored,
    Subjects,
    ask_message,
    call_message,
    header_entry,
    mark_entry,
    plan_message,
    read_header,
    read_json,
    read_mark,
    read_silent,
    read_step,
    spread,
    step_entry,
    token,
)
from fedseed.federation.rejected import Refusals
from fedseed.orbit import NO_DIGEST, Header, OrbitWriter, Record
from fedseed.orbit.file import begin, scan
from fedseed.orbit.record import LINK_BYTES
from fedseed.reports.apart import draw_apart
from fedseed.reports.progress import Progress
from fedseed.runs.folder import RunFolder, resident_memory
from fedseed.runs.loop import Gathered, Rounds
from fedseed.runs.recipe import Recipe
from fedseed.tracking import Trackers
from fedseed.transport.nats import REQUEST_SECONDS, Access, LogReader, LogWriter, Objects, connect, log_end
from fedseed.transport.server_log import ServerLog
from fedseed.weights.layout import ITEM_BYTES

RESEND_SECONDS = 2.0  # a plan or a question is repeated to those that have not answered
BRING_SECONDS = 60.0  # for a client to bring the base's weights, which a dense method's coordinator begins with
SYNC_SECONDS = 1.0  # of a step-by-step method's orbit file; the stream has every step at once
CLOCK_SKEW_SECONDS = 60.0
T = TypeVar("T")


@dataclass
class Open:
    """The round that is open."""

    number: int
    attempt: int
    clients: frozenset[int]
    gathered: Gathered
    silent: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    bytes_up: dict[int, int] = field(default_factory=dict)
    missing: int = 0


class Served(Rounds):
    """A run whose clients are behind a network.

    Args:
        recipe: the recipe.
        run: the run's name on the server.
        access: how to reach the server.
        out: folder for the run's files; with an unfinished run of this recipe in it, that run goes on.
        fresh: delete a run of this name from the server first.
        progress: shows the run going on.
        server_log: what the server itself refuses is counted from here.

    Raises:
        NetworkError: the server can't be reached, or another coordinator runs this run.
        FedseedError: the server holds another run of this name.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: str,
        access: Access,
        out: Path,
        fresh: bool = False,
        progress: Progress | None = None,
        server_log: ServerLog | None = None,
    ) -> None:
        self.recipe = recipe
        self.settings = recipe.federation
        self._loop = asyncio.new_event_loop()
        super().__init__(
            [], recipe.method, recipe.rounds, recipe.seed, recipe.evaluation.every, out, recipe.to_toml(), (), progress
        )
        if recipe.attack is not None:
            self.attack = recipe.attack.kind
        for tracker in recipe.tracking:
            tracker.check()
        self.aggregation = recipe.aggregation
        self.trackers = Trackers(recipe.tracking, self.progress.warn)
        self.patience = None if recipe.stopping is None else recipe.stopping.patience
        self.subjects = Subjects(run)
        self.access = access
        self._began = time.time()
        self._epoch = ""
        self._expected: Header | None = None  # the header, before there is a log
        self._attendance = Attendance(self.settings.dead_after)
        self._examples: dict[str, int] = {}
        self._roster: list[str] = list(getattr(recipe.task, "client_names", ()))
        self._numbers: dict[str, int] = {}
        self._names_of_tokens: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._open: Open | None = None
        self._refusals = Refusals(self.progress, run)
        self._repeated = 0
        self._line: dict[str, Any] = {}
        self._skewed: set[str] = set()
        self._drifted: set[str] = set()
        self._base_weights: bytes | None = None
        self._orbit: OrbitWriter | None = None
        self._held: Record | None = None
        self._link = b""
        self._marks: dict[int, str] = {}
        self._ended = False
        self._digest = NO_DIGEST
        self._newest_object: str | None = None  # a dense method's newest steps in the object store
        self._previous_object: str | None = None
        self._folder: RunFolder | None = None
        self._synced = time.monotonic()
        self._server_log = server_log
        self._fetching: set[asyncio.Task[None]] = set()
        self._running = False  # whether this coordinator has begun a round
        self._grace = 0.0
        self._stranger = False
        self._called = 0.0
        self._brought = 0.0  # when to ask another client for the base's weights
        try:
            self._wait(self._start(fresh))
        except BaseException:
            self.close()
            raise

    # -- starting ----------------------------------------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the connection work until this is done."""
        return self._loop.run_until_complete(work)

    async def _start(self, fresh: bool) -> None:
        self._connection = await connect(
            self.access.url, self.subjects, "coordinator", self.access.key, self.access.ca, self._warn_of_refusal
        )
        self._js = self._connection.jetstream(timeout=REQUEST_SECONDS)
        self._objects = Objects(self._connection, self.subjects.bucket())
        await self._be_the_only_one()
        last = await log_end(self._connection, self.subjects)
        if fresh and last is not None:
            await self._delete()
            last = None
        await self._objects.create(self.subjects.bucket(), -1)
        await self._connection.subscribe(self.subjects.status, cb=self._on_status)
        up = f"{self.subjects.root}.up.*.*"
        await self._connection.subscribe(up, cb=self._on_up, pending_bytes_limit=32 * 1024 * 1024)
        await self._connection.flush()
        self._entries: list[Entry] = []
        if last is None:
            if (self.out is not None) and (self.out / "model.orbit").exists():
                self.progress.warn("the server has lost the run: it is put there again from the orbit")
            await self._assemble()
            await self._js.add_stream(self._stream())
            self._log = LogWriter(self._connection, self.subjects, 0)
            self._epoch = secrets.token_hex(8)
            assert self._expected is not None
            about: dict[str, Any] = {"epoch": self._epoch, "names": self._roster, "rounds": self.rounds}
            await self._log.append(header_entry(about, begin(self._expected)).encode())
        else:
            self._entries = await self._read_log(last)
            self._log = LogWriter(self._connection, self.subjects, last)
            if not self._entries:
                raise NetworkError(f"the log of run {self.subjects.run} is empty: start again with --fresh")
            about, start = read_header(self._entries.pop(0))
            self._epoch = str(about["epoch"])
            header = scan(start, "the log's header")[0].header
            self._check_header(header)
            self._expected = header
            self._set_roster([str(name) for name in about["names"]])
            if self.method.catch_up == "newest" and not any(entry.kind == "T" for entry in self._entries):
                await self._assemble()  # for the base's weights
        assert self._expected is not None
        self.header = self._expected
        await self._log.append(Entry("S", secrets.token_bytes(8)).encode())
        self._make_coordinator()
        await self._connection.publish(self.subjects.down, call_message(self._epoch))

    def _stream(self) -> api.StreamConfig:
        return api.StreamConfig(
            name=self.subjects.stream,
            subjects=[self.subjects.log],
            storage=api.StorageType.FILE,
            num_replicas=self.settings.replicas,
            allow_direct=False,
            deny_delete=True,
            deny_purge=True,
        )

    async def _be_the_only_one(self) -> None:
        try:
            answer = await self._connection.request(self.subjects.status, b"{}", timeout=2)
        except (TimeoutError, nats.errors.Error):
            return
        about = read_json(answer.data)
        raise NetworkError(
            f"another coordinator runs {self.subjects.run} already (since "
            f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(about.get('began', 0)))} UTC, round "
            f"{about.get('round')}): this one stops"
        )

    async def _delete(self) -> None:
        for name in await self._streams():
            await self._js.delete_stream(name)

    async def _streams(self) -> list[str]:
        """The run's stream and its buckets."""
        found: list[str] = []
        while page := await self._js.streams_info(offset=len(found)):
            found += [str(info.config.name) for info in page]
        objects = f"OBJ_{self.subjects.stream}--"
        return [name for name in found if name == self.subjects.stream or name.startswith(objects)]

    async def _read_log(self, last: int) -> list[Entry]:
        entries: list[Entry] = []
        done = asyncio.Event()

        def take(sequence: int, data: bytes) -> None:
            if sequence <= last:
                entries.append(Entry.decode(data))
            if sequence >= last:
                done.set()

        if last:
            reader = LogReader(self._connection, self.subjects, take, 0)
            await reader.start()
            await done.wait()
            await reader.stop()
        return entries

    async def _assemble(self) -> None:
        """Wait until the clients that the recipe asks for have said hello, and take the header from them."""
        told = ""
        while True:
            await self._connection.publish(self.subjects.down, call_message(self._epoch))
            here = self._present()
            wanted = self._wanted()
            ready = self._expected is not None and len(here) >= wanted
            if ready and self.method.catch_up == "newest" and self._base_weights is None:
                ready = False  # somebody will bring them
            if ready:
                return
            missing = f"{len(here)} of {wanted or '?'} clients are here"
            if missing != told:
                self.progress.note(f"waiting for clients: {missing}")
                told = missing
            await self._pause(RESEND_SECONDS)

    def _wanted(self) -> int:
        start_with = self.settings.start_with
        return min(start_with or len(self._roster), len(self._roster)) if self._roster else (start_with or 0)

    async def _pause(self, seconds: float) -> None:
        """Wait for something to happen, at most so long."""
        now = time.monotonic()
        if self._stranger and now > self._called + 1 and self._epoch:
            self._stranger, self._called = False, now
            await self._connection.publish(self.subjects.down, call_message(self._epoch))
        self._changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _make_coordinator(self) -> None:
        self.names = list(self._roster)
        per_round = self.settings.count(len(self.names))
        if not 1 <= per_round <= len(self.names):
            raise RecipeError(f"federation.per_round = {per_round}: there are {len(self.names)} clients")
        if self.recipe.attack is not None:
            self.attackers = frozenset(range(len(self.names) - self.recipe.attack.clients, len(self.names)))
        examples = [self._examples.get(name, 0) for name in self.names]
        try:
            self.coordinator = Coordinator(
                self.method, self.header.layout, self.seed, examples, per_round, self.aggregation
            )
        except ValueError as error:
            raise RecipeError(str(error)) from error
        if self._base_weights is not None:
            self.coordinator.weights = self._base_weights
            self._base_weights = None
        self._downloads = type(self._downloads)(self.method, len(self.names))

    def _set_roster(self, names: Iterable[str]) -> None:
        self._roster = list(names)
        self._numbers = {name: number for number, name in enumerate(self._roster)}
        self._names_of_tokens = {token(name): name for name in self._roster}

    def _check_header(self, header: Header) -> None:
        """Whether a header is of this run. Raises MessageError."""
        mine = replace(header, method=self.method, seed=self.seed)  # what the recipe says
        expected = self._expected or mine
        wanted = self.settings.base_digest or expected.base_digest
        if header.base_digest != wanted:
            raise MessageError(f"another base: its digest is {header.base_digest}, this run's base has {wanted}")
        differences = header.differences(expected)
        if differences:
            raise MessageError(f"another recipe or model: {differences[0]} here")

    # -- what clients say ----------------------------------------------------------------------------------

    async def _on_up(self, message: Msg) -> None:
        parts = message.subject.split(".")
        if message.reply.startswith("$JS") or parts[:-2] != [*self.subjects.root.split("."), "up"]:
            self._refuse("a consumer", "not sent by a client: delivered from a stream")
            return
        sender, what = parts[-2], parts[-1]
        name = self._names_of_tokens.get(sender)
        try:
            if what == "update":
                self._on_update(name, message.data)
                return
            about = read_json(message.data)
            if what == "hello":
                await self._on_hello(sender, about, message)
            elif what == "attach":
                self._on_attach(sender, about)
            elif what in ("beat", "report"):
                self._on_beat(name, about, what == "report")
            else:
                raise MessageError(f"a message of unknown kind {what[:20]!r}")
        except (MessageError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = str(error) if isinstance(error, MessageError) else f"not valid: {type(error).__name__}: {error}"
            self._refuse(name or sender, reason)

    def _refuse(self, sender: str, reason: str, number: int | None = None) -> None:
        """Count a message that is not accepted, and say so."""
        self._refusals.add(sender, reason)
        if number is not None and self._open is not None:
            self._open.refused[number] = reason

    def _read_server_log(self) -> None:
        """Count what the server itself has refused since the last time."""
        for sender, reason in self._server_log.new() if self._server_log is not None else ():
            self._refuse(sender, reason)

    def _on_attach(self, sender: str, about: dict[str, Any]) -> None:
        """A client says which process hosts it, and how many examples it has."""
        client, host, examples = str(about["client"]), str(about["host"]), int(about["examples"])
        if token(client) != sender:
            raise MessageError(f"it speaks for client {client}")
        if examples < 0:
            raise MessageError(f"{examples} examples")
        if self._roster and client not in self._numbers:
            raise MessageError(f"this run has no client {client}")
        self._attendance.attach(client, host)
        self._examples[client] = examples
        number = self._numbers.get(client)
        if number is not None and hasattr(self, "coordinator"):
            self.coordinator.examples[number] = examples

    async def _on_hello(self, sender: str, about: dict[str, Any], message: Msg) -> None:
        """A process introduces itself: what it has must be what the run is about."""
        host = str(about["host"])
        if token(host) != sender:
            raise MessageError(f"it speaks for client {host}")
        answer: dict[str, Any] = {"epoch": self._epoch, "beat": self.settings.dead_after / 3}
        try:
            header = scan(base64.b64decode(about["header"]), "hello")[0].header
            self._check_header(header)
            names = [str(name) for name in about["names"]]
            if self._roster and names != self._roster and about.get("names_matter", True):
                raise MessageError(f"another list of clients: {len(names)} there, {len(self._roster)} here, "
                                   f"or in another order")  # fmt: skip
            if not names or len(set(names)) < len(names):
                raise MessageError("a list of clients that is empty or names one twice")
            if not self._roster:
                self._set_roster(names)
            elif not self._numbers:
                self._set_roster(self._roster)
            if self._expected is None:
                self._expected = header
        except (OrbitError, MessageError) as error:
            self._refuse(host, str(error))
            await self._connection.publish(message.reply, json.dumps({"refused": str(error)}).encode())
            return
        skew = float(about["time"]) - time.time()
        if abs(skew) > CLOCK_SKEW_SECONDS:
            answer["skew"] = skew
            if host not in self._skewed:
                self._skewed.add(host)
                self.progress.warn(f"the clock of {host} is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}")
        self._attendance.hello(host, int(about["at"]))
        if about.get("bucket"):
            await self._objects.create(self.subjects.bucket(host), 4 * self._largest_message() + (16 << 20))
        if self.method.catch_up == "newest" and not hasattr(self, "coordinator") and self._base_weights is None:
            if about.get("weights") is None:
                if time.monotonic() > self._brought:  # one client is enough; another is asked if this one does not
                    self._brought = time.monotonic() + BRING_SECONDS
                    answer["bring"] = "weights"
            else:
                task = asyncio.create_task(self._take_weights(host, base64.b64decode(about["weights"])))
                self._fetching.add(task)
                task.add_done_callback(self._fetching.discard)
        self._changed.set()
        await self._connection.publish(message.reply, json.dumps(answer).encode())

    async def _take_weights(self, host: str, carried: bytes) -> None:
        """The base's weights, which a dense method's coordinator begins with."""
        assert self._expected is not None
        try:
            data = await self._objects.fetch(carried, self.subjects.bucket(host), self._largest_message())
            weights = data[FRAME_BYTES:]
            if len(weights) != self._expected.layout.dense_bytes:
                raise MessageError(f"{len(weights)} bytes of weights")
            self._base_weights = weights
        except MessageError as error:
            self._refuse(host, str(error))
        self._changed.set()

    def _largest_message(self) -> int:
        """Bytes of the largest message a client may send: all weights, or what scalars take."""
        layout = (self._expected or self.header).layout
        return FRAME_BYTES + max(layout.dense_bytes, 16 << 20)

    def _on_beat(self, name: str | None, about: dict[str, Any], report: bool) -> None:
        host = self._attendance.hosts.get(name or "")
        if host is None or not host.fits or about.get("epoch") != self._epoch:
            self._stranger = True  # it is called, and says hello
            self._changed.set()
            return
        host.heard = time.monotonic()
        host.at = int(about["at"])
        if report:
            digest = bytes.fromhex(str(about["digest"])).hex()
            metrics = {str(k): float(v) for k, v in (about.get("metrics") or {}).items()}
            spent = Spent(**about["spent"])
            Spent().add(spent)  # types fit
            host.report = {**about, "round": int(about["round"]), "digest": digest, "metrics": metrics, "spent": spent}
            self._changed.set()

    def _on_update(self, name: str | None, data: bytes) -> None:
        current = self._open
        if current is None and not self._running:
            return  # it answers what was asked before this coordinator started
        number = self._numbers.get(name or "")
        if name is None or number is None:
            raise MessageError("this run has no client of this name")
        try:
            if data[:2] == SILENT:
                self._on_silent(number, data)
            elif current is None:
                about = Message.decode(data) if data[:2] != STORED else None
                raise MessageError(f"no round is open{'' if about is None else f', this is for round {about.round}'}")
            elif data[:2] == STORED:
                self._begin_fetch(name, number, data)
            else:
                self.coordinator.receive(data, number)
                self._counted(number, len(data))
        except MessageError as error:
            self._refuse(name, str(error), number)

    def _counted(self, number: int, size: int) -> None:
        current = self._open
        assert current is not None
        current.bytes_up[number] = size - FRAME_BYTES
        if current.silent.pop(number, None) is None:
            current.missing -= 1
        if current.missing == 0:
            self._changed.set()

    def _on_silent(self, client: int, data: bytes) -> None:
        number, attempt, reason = read_silent(data)
        current = self._open
        if current is None or (number, attempt) != (current.number, current.attempt):
            raise MessageError(f"round {number} attempt {attempt} is not open")
        if client not in current.clients or client in self.coordinator.answered or client in current.silent:
            raise MessageError(f"client {client} has answered round {number} already, or takes no part in it")
        current.silent[client] = reason
        current.missing -= 1
        if current.missing == 0:
            self._changed.set()

    def _begin_fetch(self, name: str, number: int, data: bytes) -> None:
        """Get a large update from the object store, if what its frame says can count."""
        current = self._open
        assert current is not None
        reference = Stored.decode(data)
        frame = reference.frame
        about = (int.from_bytes(frame[8:12], "little"), int.from_bytes(frame[6:8], "little"))
        if about != (current.number, current.attempt):
            raise MessageError(f"round {current.number} was expected, round {about[0]} came")
        if number not in current.clients or number in self.coordinator.answered:
            raise MessageError(f"client {number} has answered round {current.number} already, or takes no part in it")
        if reference.size > self._largest_message():
            raise MessageError(
                f"a message of {reference.size:,} bytes: at most {self._largest_message():,} are accepted"
            )
        if sum(1 for task in self._fetching if task.get_name() == name) >= 2:
            raise MessageError("too many large messages at once")
        task = asyncio.create_task(self._fetch(name, number, data, reference), name=name)
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)

    async def _fetch(self, name: str, number: int, data: bytes, reference: Stored) -> None:
        bucket = self.subjects.bucket(self._attendance.host_of(name))
        try:
            message = await self._objects.fetch(data, bucket, self._largest_message())
            if self._open is None:
                raise MessageError("it came when its round was over")
            self.coordinator.receive(message, number)
            self._counted(number, len(message))
        except MessageError as error:
            self._refuse(name, str(error), number)
        await self._objects.drop(bucket, reference.name)

    def _warn_of_refusal(self, text: str) -> None:
        self.progress.warn(f"the server refuses this coordinator: {text}")

    # -- who is there ----------------------------------------------------------------------------------

    def _present(self) -> frozenset[int]:
        """The numbers of the clients that can be reached."""
        return frozenset(self._numbers[client] for client in self._attendance.clients() if client in self._numbers)

    async def _enough(self) -> frozenset[int]:
        """Wait until enough clients are there for a round; who they are."""
        told = called = 0.0
        while True:
            here = self._present()
            least = max(1, min(self.settings.minimum, len(self.names)))
            grace = self._grace - time.monotonic()
            if len(here) >= (least if grace <= 0 else self._wanted()):
                self._grace = 0.0
                return here
            now = time.monotonic()
            if now > called + RESEND_SECONDS:
                await self._connection.publish(self.subjects.down, call_message(self._epoch))
                called = now
            if grace <= 0 and now > told + 30:
                self.progress.warn(f"{len(here)} clients are alive, a round needs {least}: waiting")
                told = now
            await self._pause(0.25)

    # -- a round ----------------------------------------------------------------------------------

    def _gather(self, number: int) -> Gathered:
        return self._wait(self._gather_round(number))

    async def _gather_round(self, number: int) -> Gathered:
        attempt = 0
        while True:
            here = await self._enough()
            clients = self.coordinator.open(number, attempt, here)
            plans = self._plans(clients)
            gathered = Gathered(clients, len(next(iter(plans))) - FRAME_BYTES)
            self._running = True
            self._open = current = Open(number, attempt, frozenset(clients), gathered, missing=len(clients))
            asked = [
                (await self._objects.carry(plan, f"plan-{number}-{attempt}-{of[0]}"), of) for plan, of in plans.items()
            ]
            for carried, of in asked:
                everybody = len(of) == len(self.names)
                await self._connection.publish(self.subjects.down, plan_message(of, everybody, carried))
            reason = await self._answers(current, asked)
            for carried, of in asked:
                if carried[: len(STORED)] == STORED:
                    await self._objects.drop(self.subjects.bucket(), f"plan-{number}-{attempt}-{of[0]}")
            answered = len(self.coordinator.answered) + len(current.silent)
            if answered >= min(self.settings.minimum, len(clients)):
                break
            attempt += 1
            self._repeated += 1
            self.progress.warn(
                f"round {number}: {answered} answers, {self.settings.minimum} are needed: it is begun again"
            )
        for client in clients:
            if client in current.silent:
                gathered.skipped.append((client, current.silent[client]))
                self.progress.warn(f"round {number}: {self.names[client]} sends nothing: {current.silent[client]}")
            elif client not in self.coordinator.answered:
                why = f"refused: {current.refused[client]}" if client in current.refused else reason
                gathered.skipped.append((client, why))
                self.progress.warn(f"round {number}: nothing of {self.names[client]} counts: {why}")
        gathered.update_bytes = [current.bytes_up[c] for c in sorted(current.bytes_up)]
        gathered.refused = self._refusals.since()
        self._open = None
        return gathered

    def _plans(self, clients: list[int]) -> dict[bytes, list[int]]:
        """The open round's plans, each with the clients that it is for: mostly one for all."""
        return self.coordinator.plans()

    def _missing(self, current: Open) -> frozenset[int]:
        """The clients that the open round waits for."""
        return current.clients - set(self.coordinator.answered) - current.silent.keys()

    async def _answers(self, current: Open, asked: list[tuple[bytes, list[int]]]) -> str:
        """Wait for answers: all of them, or the deadline, or until nobody is left to wait for."""
        deadline = time.monotonic() + self.settings.deadline
        resend = time.monotonic() + RESEND_SECONDS
        while current.missing:
            await self._pause(0.25)
            if not current.missing:
                break
            now = time.monotonic()
            if now >= deadline:
                return f"no answer within {self.settings.deadline:g} s"
            missing = self._missing(current)
            if not missing & self._present():
                return "it has gone"
            if now >= resend:
                for carried, of in asked:
                    if again := [client for client in of if client in missing]:
                        await self._connection.publish(self.subjects.down, plan_message(again, False, carried))
                resend = now + RESEND_SECONDS
        return ""

    def _record(self, number: int, step: bytes, line: dict[str, Any], log: bool) -> None:
        record = Record(number, step[FRAME_BYTES:], NO_DIGEST)
        if self.method.catch_up == "newest" and self.out is not None:
            self._keep(self.out, number)
        self._wait(self._publish_step(number, step))
        self._line = {**self._line, **line}
        if self._orbit is None:
            return
        if log:
            self._held = record  # until the clients have reported its digest
        else:
            self._orbit.append(record, sync=False)
            if time.monotonic() > self._synced + SYNC_SECONDS:
                self._sync()

    def _keep(self, folder: Path, number: int) -> None:
        """Write what a dense method's coordinator keeps besides the weights, before the round counts."""
        kept = self.coordinator.state_dict()
        if not kept:
            return
        with replacing(folder / f"kept-{number}.npz") as temporary, open(temporary, "wb") as file:
            np.savez(file, **kept)  # type: ignore[arg-type]
        (folder / f"kept-{number - 2}.npz").unlink(missing_ok=True)

    def _restore_kept(self, folder: Path, number: int) -> None:
        """Take up what was kept after a round. Raises FedseedError."""
        if not self.coordinator.state_dict() and not list(folder.glob("kept-*.npz")):
            return
        path = folder / f"kept-{number}.npz"
        try:
            with np.load(path) as arrays:
                kept = {name: arrays[name] for name in arrays.files}
            self.coordinator.load_state_dict(kept)
        except (OSError, LookupError, ValueError) as error:
            raise FedseedError(
                f"{path}: what the coordinator has kept of round {number} can't be read: {error}"
            ) from error

    def _sync(self) -> None:
        """Bring what was written to the disk; a step-by-step method does this now and then."""
        self._read_server_log()
        if self._folder is not None:
            self._folder.sync()
        if self._orbit is not None:
            self._orbit.sync()
        self._synced = time.monotonic()

    async def _publish_step(self, number: int, step: bytes) -> None:
        carried = await self._objects.carry(step, f"step-{number}")
        entry, after = step_entry(self._link, step, carried)
        await self._log.append(entry.encode())
        self._link = after
        if self.method.catch_up == "newest" and carried != step:  # the newest weights replace all before them
            if self._previous_object is not None:
                await self._objects.drop(self.subjects.bucket(), self._previous_object)
            self._previous_object, self._newest_object = self._newest_object, f"step-{number}"

    def _look(self, line: dict[str, Any], evaluate: bool) -> None:
        self._wait(self._look_at_weights(line, evaluate))

    async def _look_at_weights(self, line: dict[str, Any], evaluate: bool) -> None:
        number = line["round"]
        for host in self._attendance.hosts.values():
            host.report = None
        evaluator: str | None = None
        asked = 0.0
        deadline = time.monotonic() + self.settings.deadline
        while True:
            alive = self._attendance.alive()
            reports = {n: h.report for n, h in alive.items() if h.report is not None and h.report["round"] == number}
            evaluated = [r for r in reports.values() if r["metrics"]]
            if alive and len(reports) == len(alive) and (evaluated or not evaluate):
                break
            if reports and (evaluated or not evaluate) and time.monotonic() > deadline:
                break
            if evaluate and not evaluated and (evaluator not in alive or evaluator in reports):
                evaluator = min(alive, key=lambda n: self._numbers.get(n, 1 << 32), default=None)
                asked = 0.0
            now = time.monotonic()
            if now > asked + (RESEND_SECONDS if alive else 0.5):
                if alive:
                    asking = ask_message(number, evaluator if evaluate else None)
                    await self._connection.publish(self.subjects.down, asking)
                else:
                    await self._connection.publish(self.subjects.down, call_message(self._epoch))
                asked = now
            await self._pause(0.25)
        digest = Counter(report["digest"] for report in reports.values()).most_common(1)[0][0]
        drifted = {name for name, report in reports.items() if report["digest"] != digest}
        if drifted:
            self._drifted |= drifted
            self.progress.warn(f"round {number}: {spread(drifted)} has other weights: it repairs itself by replay")
        if evaluate:
            best = [r for r in evaluated if r["digest"] == digest] or evaluated
            line.update(best[0]["metrics"])
            line["seconds"]["evaluation"] = float(best[0].get("seconds", 0.0))
        if number:
            spent = Spent()
            for report in reports.values():
                spent.add(report["spent"])
                if report.get("ratio") is not None:
                    line["step_over_weights"] = float(report["ratio"])
            line.update(spent.about())
            for phase, seconds in spent.seconds.items():
                line["seconds"][phase] = line["seconds"].get(phase, 0.0) + seconds
        line["weights_digest"] = digest
        self._line = {**self._line, **line}
        if number not in self._marks:
            await self._log.append(mark_entry(number, digest).encode())
            self._marks[number] = digest
        if self._orbit is not None and self._held is not None:
            self._orbit.append(Record(self._held.round, self._held.payload, digest))
            self._held = None
        self._digest = digest
        if self._folder is not None:
            self._sync()

    # -- taking up an interrupted run ----------------------------------------------------------------------------------

    def _restore(self, folder: RunFolder) -> tuple[int, list[int]]:
        self._folder = folder
        folder.lazy = self.method.stepwise
        return self._wait(self._restore_run(folder))

    async def _restore_run(self, folder: RunFolder) -> tuple[int, list[int]]:
        """Bring log, orbit file and state together: each may be behind the other after a crash."""
        steps = [read_step(entry) for entry in self._entries if entry.kind == "T"]
        self._marks = dict(read_mark(entry) for entry in self._entries if entry.kind == "M")
        self._ended = bool(self._entries) and any(entry.kind == "E" for entry in self._entries)
        self._entries = []
        self._link = begin(self.header)[-LINK_BYTES:]
        self._digest = self._marks[max(self._marks)] if self._marks else NO_DIGEST
        self._grace = time.monotonic() + self.settings.dead_after if steps else float("inf")
        bucket = self.subjects.bucket()
        if self.method.catch_up == "newest":
            if folder.has_rounds and not steps:
                raise FedseedError(f"{folder.path}: the server has lost this run's weights; start again elsewhere")
            sizes = []
            for _, carried in steps:
                stored = carried[: len(STORED)] == STORED
                sizes.append((Stored.decode(carried).size if stored else len(carried)) - FRAME_BYTES)
            changed = [i for i, size in enumerate(sizes) if size]
            if changed:
                message = await self._objects.fetch(steps[changed[-1]][1], bucket)
                self._newest_object = f"step-{changed[-1] + 1}"
                self.coordinator.catch_up([message[FRAME_BYTES:]])
            if steps:
                self._restore_kept(folder.path, len(steps))
            self._link = steps[-1][0] if steps else self._link
            return len(steps), sizes
        payloads = [(await self._objects.fetch(carried, bucket))[FRAME_BYTES:] for _, carried in steps]
        path = folder.path / "model.orbit"
        there = path.exists()
        if steps and not there:
            raise FedseedError(
                f"the server holds a run {self.subjects.run} of {len(steps)} steps, {folder.path} does not: "
                "go on in its folder (--out), choose another name (--run), or delete it from the server with --fresh"
            )
        self._orbit = OrbitWriter(path, self.header, resume=there)
        if self._orbit.cut is not None:
            self.progress.warn(self._orbit.cut)
        written = [record.payload for record in self._orbit.take().steps()] if there else []
        common = min(len(payloads), len(written))
        if payloads[:common] != written[:common]:
            raise FedseedError(f"{path} and the server's run {self.subjects.run} hold different steps")
        for link, _ in steps:
            self._link = link
        for number, payload in enumerate(written[common:], start=common + 1):  # the server has lost some
            step = Message(Kind.STEP, self.method.code, number, EVERYBODY, payload).encode()
            await self._publish_step(number, step)
        for number, payload in enumerate(payloads[common:], start=common + 1):  # the file has not got them yet
            record = Record(number, payload, self._marks.get(number, NO_DIGEST))
            if number == len(payloads) and self._logs(number) and number not in self._marks:
                self._held = record
            else:
                self._orbit.append(record)
        every = payloads if len(payloads) > len(written) else written
        self.coordinator.catch_up(every)
        folder.fill(len(every), self._unknown_round)
        return len(every), [len(payload) for payload in every]

    def _unknown_round(self, number: int) -> dict[str, Any]:
        """The line of a round whose cost was not on disk when the machine stopped."""
        return {
            "round": number, "clients": [], "skipped": [], "refused": 0, "bytes_up": 0.0, "bytes_down": 0.0,
            **Spent().about(), "attacked": [], "seconds": {}, "unknown": True,
        }  # fmt: skip

    # -- the end, and questions ----------------------------------------------------------------------------------

    def _complete(self) -> int | None:
        if self.method.catch_up == "newest" and self.out is not None:
            self._write_weights(self.out / "model.safetensors")
            self._remove_kept(self.out)
        if not self._ended:
            self._wait(self._log.append(Entry("E", b"").encode()))
        if self._orbit is None:
            return None
        self._orbit.close()
        return self._orbit.path.stat().st_size

    def _remove_kept(self, folder: Path) -> None:
        for path in folder.glob("kept-*.npz"):
            path.unlink()

    def _write_weights(self, path: Path) -> None:
        """A dense run's weights as a safetensors file."""
        weights = self.coordinator.weights
        if weights is None:
            return
        kinds = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64"}
        about: dict[str, Any] = {}
        position = 0
        for entry in self.header.layout.tensors:
            size = entry.size * ITEM_BYTES[entry.dtype]
            offsets = [position, position + size]
            about[entry.name] = {"dtype": kinds[entry.dtype], "shape": list(entry.shape), "data_offsets": offsets}
            position += size
        about["__metadata__"] = {"format": "pt", "digest": self._digest}
        text = json.dumps(about).encode()
        text += b" " * (-len(text) % 8)
        with replacing(path) as temporary, open(temporary, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.write(weights)

    def _draw(self, folder: RunFolder, metrics: list[dict[str, Any]]) -> None:
        probabilities = self.coordinator.figures().get("probabilities")
        try:
            draw_apart(folder.path, self.method.name, None if probabilities is None else probabilities.tolist())
        except FedseedError as error:  # the run's results do not depend on it
            self.progress.warn(str(error))

    def _release(self) -> None:
        if self._orbit is not None:
            self._orbit.release()

    def close(self) -> None:
        """Close the connection."""
        if self._loop.is_closed():
            return
        if hasattr(self, "_connection"):
            with suppress(nats.errors.Error, TimeoutError):
                self._wait(self._connection.close())
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._wait(_ended(left))
        self._loop.close()

    def _about(self) -> dict[str, Any]:
        self._read_server_log()
        return {
            "peak_memory_bytes": resident_memory(peak=True),
            "run": self.subjects.run,
            "repeated_rounds": self._repeated,
            "refusals": self._refusals.counts(),
            "drifted": sorted(self._drifted),
        }

    async def _on_status(self, message: Msg) -> None:
        if message.reply:
            await self._connection.publish(message.reply, json.dumps(self.status()).encode())

    def status(self) -> dict[str, Any]:
        """What `fedseed status` shows."""
        self._read_server_log()
        here = self._present()
        missing = sorted(self._missing(self._open)) if self._open is not None else []
        names = self._roster
        return {
            "run": self.subjects.run,
            "method": self.method.name,
            "began": self._began,
            "round": self._open.number if self._open is not None else self._line.get("round", 0),
            "rounds": self.rounds,
            "waiting_for": [names[number] for number in missing[:100]],
            "clients": len(names),
            "alive": len(here),
            "away": [name for number, name in enumerate(names) if number not in here][:100],
            "behind": {name: host.at for name, host in self._attendance.alive().items()},
            "last": {k: self._line[k] for k in ("round", "loss", "train_loss", "accuracy", "rouge_l", "bytes_up",
                                                "bytes_down", "weights_digest") if k in self._line},
            "repeated_rounds": self._repeated,
            "refusals": self._refusals.counts(),
            "skewed_clocks": sorted(self._skewed),
            "drifted": sorted(self._drifted),
            "memory_bytes": resident_memory(),
        }  # fmt: skip


async def _ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until cancelled tasks are over."""
    await asyncio.wait(set(tasks), timeout=1)
