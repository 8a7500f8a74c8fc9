"""A client's copy of the weights: it follows the run's log from its beginning, each step once,
chained to the last.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fedseed.errors import FedseedError, MessageError, NetworkError, OrbitError, StorageError
from fedseed.federation.cost import Cost
from fedseed.federation.data_note import check_data, check_fingerprint
from fedseed.federation.hosted import Hosted, WorkThread
from fedseed.federation.large import fetch, is_stored
from fedseed.federation.messages import FRAME_BYTES, Message
from fedseed.federation.protocol import Entry, listed, read_header, read_mark, read_step
from fedseed.orbit import Record
from fedseed.orbit.record import link
from fedseed.reports.progress import Progress
from fedseed.transport.base import ClientEnd, Stop

# how long newer weights may take to come when older ones have been deleted
WEIGHTS_PATIENCE_SECONDS = 60.0
MISSED_SECONDS = 0.1  # until an object that is not there is asked for again
MOST_REPAIRS = 3


@dataclass
class _Log:
    """The log that is followed."""

    link: bytes = b""  # of the last step that was taken from it
    incarnation: str = ""  # as its header says; "": the header has not come
    following: Stop | None = None  # ends that its entries are handed out
    missed: float | None = None  # since when a step's object is not there
    # no coordinator has said that it is this run's; None: looked at, it is another's
    looking: bool | None = False


@dataclass
class Replica:
    """The weights, brought from step to step."""

    end: ClientEnd
    run: str  # its name
    load: Callable[[], Hosted]  # makes the model at its base, with the hosted clients' data
    hosted: Hosted  # what it made first
    thread: WorkThread  # where the work is done
    progress: Progress
    wake: Callable[[], None]  # told when something has come
    at: int = 0  # the last step that was applied
    spent: Cost = field(default_factory=Cost)  # since the last report
    ended: bool = False
    version: int = 0  # other weights, another version
    norm: float | None = None  # of the newest step, where the method knows it
    # whole weights that are to be loaded, and since when
    _awaited: tuple[float, bytes] | None = None
    _queue: deque[Entry | Exception] = field(default_factory=deque)
    # whoever reads the log on, or begins again
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _log: _Log = field(default_factory=_Log)
    _repairs: int = 0
    _digest: tuple[int, str] = (-1, "")  # of which version

    def __post_init__(self) -> None:
        self.numbers = {name: number for number, name in enumerate(self.hosted.names)}
        # each step is whole weights: only the newest are loaded
        self.replaces = self.hosted.worker.method.catch_up.replaces

    @property
    def waits(self) -> bool:
        """Return whether entries have come that are to be applied."""
        return bool(self._queue)

    @property
    def current(self) -> bool:
        """Return whether the weights are those after step `at`."""
        return self._awaited is None

    async def begin(self, incarnation: str) -> None:
        """Follow this log from its beginning, if it is another than before: with a new model if
        this one has steps.
        """
        async with self._turn:
            self._log.looking = False
            if self._log.following is None or self._log.incarnation != incarnation:
                await self._begin()

    async def look(self) -> None:
        """Follow the log although no coordinator has said which it is: the run may be over."""
        async with self._turn:
            if self._log.following is None and self._log.looking is not None:
                self._log.looking = True
                await self._begin()

    async def look_no_more(self) -> None:
        """There is a coordinator: it will say when the run has begun."""
        async with self._turn:
            if self._log.looking:
                self._log.looking = False
                await self.stop()

    async def unlearn(self) -> None:
        """Go back to the base, if there are steps on it: the run begins again, and its log with
        them is gone.
        """
        async with self._turn:
            if self.at:
                await self._begin()

    async def _begin(self) -> None:
        await self.stop()  # nothing of another log comes any more
        self._queue.clear()
        self._log.incarnation, self._log.missed = "", None
        if self.at:
            # what clients remember is by round, and what they have answered stays answered
            memory, accounts = self.hosted.worker.memory, self.hosted.accounts
            self.hosted = await self.thread.do(self.load)
            self.hosted.worker.memory, self.hosted.accounts = memory, accounts
            self.version += 1
            self.at = 0
            self.norm = self._awaited = None
            self.spent = Cost()
        self._log.following = await self.end.follow(0, self._take)

    async def stop(self) -> None:
        """Follow it no longer."""
        if self._log.following is not None:
            await self._log.following()
            self._log.following = None

    def _take(self, number: int, data: bytes) -> None:
        try:
            self._queue.append(Entry.decode(data))
        except MessageError as error:
            self._queue.append(NetworkError(f"entry {number} of the log is not valid: {error}"))
        self.wake()

    async def _begin_again(self, why: str) -> None:
        self.progress.warn(f"{why}: replaying from the base")
        await self._begin()

    async def advance(self) -> None:
        """Take everything that has come from the log: steps that follow each other are applied
        together.

        Whole weights that could not be had when they were announced are asked for again.

        Raises FedseedError: the log is another run's, not valid, or misses steps; this machine
        computes differently.
        """
        async with self._turn:
            steps: list[bytes] = []
            mark: tuple[int, str] | None = None
            while self._queue:
                entry = self._queue.popleft()
                if isinstance(entry, Exception):
                    raise entry
                if entry.kind == "H":
                    if self._log.incarnation:  # it has come before
                        await self._begin_again(
                            "the run has been put on the server again, or its log is an older one"
                        )
                        return
                    if not await self._fits(entry):
                        return
                elif entry.kind == "T":
                    mark = None
                    after, carried = read_step(entry)
                    # whole weights of their own object are fetched when it is known that they are
                    # the newest
                    try:
                        message = (
                            None
                            if self.replaces and is_stored(carried)
                            else await fetch(self.end, carried, None)
                        )
                    except MessageError as error:
                        await self._miss(entry, error)
                        break
                    if message is not None and link(self._log.link, message) != after:
                        number = self.at + len(steps) + 1
                        await self._begin_again(
                            f"step {number} of the log does not follow those that were applied"
                        )
                        return
                    self._log.link, self._log.missed = after, None
                    steps.append(carried if message is None else message)
                elif entry.kind == "M":
                    mark = read_mark(entry)
                elif entry.kind == "E":
                    self.ended = True
            if steps:
                await self._apply(steps)
            if self._awaited is not None:
                await self._take_weights(*self._awaited)
            if mark is not None and mark[0] == self.at and self.current:
                await self._compare(mark[1])

    async def _miss(self, entry: Entry, error: MessageError) -> None:
        """Wait for a step's object that is not there (the server has an older store), or goes on
        to a new header.
        """
        self._log.missed = self._log.missed or time.monotonic()
        if any(isinstance(later, Entry) and later.kind == "H" for later in self._queue):
            while not (isinstance(later := self._queue[0], Entry) and later.kind == "H"):
                self._queue.popleft()
            self._log.missed = None
        elif time.monotonic() > self._log.missed + WEIGHTS_PATIENCE_SECONDS:
            raise NetworkError(f"a step of the log can't be had: {error}") from error
        else:
            self._queue.appendleft(entry)
            await asyncio.sleep(MISSED_SECONDS)

    async def _fits(self, header: Entry) -> bool:
        """Return whether the log is this run's.

        Raises FedseedError if it must be, because the coordinator says so.
        """
        try:
            about, theirs, self._log.link = read_header(header)
            self._log.incarnation = about.epoch
            if differences := theirs.differences(self.hosted.header):
                raise FedseedError(f"run {self.run} is another one: {differences[0]} here")
            if any(name not in about.names for name in self.hosted.items):
                raise FedseedError(
                    f"run {self.run} has no client {self.hosted.host}: it has {listed(about.names)}"
                )
            check_fingerprint(self.hosted, about.fingerprint)
            self._check_data(about.epoch)
        except FedseedError as error:
            if not self._log.looking:
                raise
            self.progress.note(f"{error}: waiting for a coordinator")
            self._log.looking = None
            await self.stop()
            self._queue.clear()
            return False
        self.numbers = {name: number for number, name in enumerate(about.names)}
        return True

    def _check_data(self, epoch: str) -> None:
        """Compare the clients' data with those that they had in this log before.

        Raises:
            FedseedError: they have changed.
        """
        try:
            check_data(self.hosted, self.run, epoch)
        except StorageError as error:  # a machine on which nothing can be kept takes part, too
            self.progress.warn(
                f"{error}: if this process is started again with other data, nothing will say so"
            )

    async def _apply(self, steps: list[bytes]) -> None:
        """Apply steps that follow each other: many are merged, as in a replay.

        Of whole weights the newest count.
        """
        self.version += 1
        if self.replaces:
            if changed := [step for step in steps if is_stored(step) or len(step) > FRAME_BYTES]:
                self._awaited = (time.monotonic(), changed[-1])
        elif len(steps) == 1:
            await self._apply_one(steps[0])
        else:
            began = time.perf_counter()
            records = [
                Record(message.round, message.payload) for message in map(Message.decode, steps)
            ]
            await self.thread.do(self.hosted.worker.catch_up, records)
            self.norm = None
            self.spent.add(Cost({"rebuild": time.perf_counter() - began}))
        self.at += len(steps)
        self.progress.advance(self.at)

    async def _apply_one(self, step: bytes) -> None:
        began = time.perf_counter()
        self.norm = await self.thread.do(self.hosted.worker.apply, step)
        self.spent.add(Cost({"rebuild": time.perf_counter() - began}))

    async def _take_weights(self, since: float, carried: bytes) -> None:
        """Load the newest weights, if they are there.

        Raises NetworkError: they have not come for a minute.
        """
        try:
            step = await fetch(self.end, carried, None)
        except MessageError as error:  # they have been deleted already: newer ones are on their way
            if time.monotonic() > since + WEIGHTS_PATIENCE_SECONDS:
                raise NetworkError(f"the newest weights can't be had: {error}") from error
        else:
            await self._apply_one(step)
            self._awaited = None

    async def digest(self) -> str:
        """Return the weights' digest."""
        version = self.version  # it may begin again meanwhile
        if self._digest[0] != version:
            self._digest = version, await self.thread.do(self.hosted.worker.space.digest)
        return self._digest[1]

    async def _compare(self, digest: str) -> None:
        """Compare the weights with those of the others."""
        mine = await self.digest()
        if mine == digest:
            return
        self._repairs += 1
        differ = f"after step {self.at} the weights' digest is {mine} here, {digest} elsewhere"
        if self._repairs > MOST_REPAIRS:
            raise OrbitError(
                f"{differ}, and replay does not mend it: this machine computes differently"
            )
        await self._begin_again(differ)
