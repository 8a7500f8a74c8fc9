"""A client's copy of the weights, which follows the run's log.

It applies each step once, and checks that it is chained to the last one.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fedseed.errors import FedseedError, MessageError, NetworkError, OrbitError, StorageError
from fedseed.federation.client.data_note import check_data, check_fingerprint
from fedseed.federation.client.state import Hosted, WorkThread
from fedseed.federation.cost import Cost
from fedseed.federation.large import fetch, is_stored
from fedseed.federation.messages import FRAME_BYTES, Message
from fedseed.federation.protocol import Entry, list_names, read_header, read_mark, read_step
from fedseed.orbit import Record
from fedseed.orbit.record import link
from fedseed.reports.progress import Progress
from fedseed.transport.base import ClientEnd, Stop

# seconds for newer weights to come when older ones have been deleted
WEIGHTS_PATIENCE_SECONDS = 60.0
MISSED_SECONDS = 0.1  # between two requests for a missing object
MOST_REPAIRS = 3


@dataclass
class _Log:
    """The state of the log that is followed."""

    link: bytes = b""  # of the last step that was taken from it
    incarnation: str = ""  # from its header; "": the header has not come
    following: Stop | None = None  # ends the subscription
    missed: float | None = None  # since when a step's object is missing
    # whether it is followed without a coordinator's word that it is this run's; None: it was, and
    # is another run's
    looking: bool | None = False


@dataclass
class Replica:
    """The weights, and the steps that bring them up to date."""

    end: ClientEnd
    run: str  # its name
    load: Callable[[], Hosted]  # makes the model at its base, with the hosted clients' data
    hosted: Hosted  # the first result of `load`
    thread: WorkThread  # for long work
    progress: Progress
    wake: Callable[[], None]  # called when an entry has come
    at: int = 0  # the last step that was applied
    spent: Cost = field(default_factory=Cost)  # since the last report
    ended: bool = False
    version: int = 0  # counts changes of the weights
    norm: float | None = None  # of the newest step, where the method knows it
    # whole weights that are still to be loaded, and since when
    _pending_weights: tuple[float, bytes] | None = None
    _queue: deque[Entry | Exception] = field(default_factory=deque)
    # held while the log is read on, or from its beginning
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _log: _Log = field(default_factory=_Log)
    _repairs: int = 0
    _digest: tuple[int, str] = (-1, "")  # with the version that it belongs to

    def __post_init__(self) -> None:
        self.numbers = {name: number for number, name in enumerate(self.hosted.names)}
        # whether each step is whole weights, of which only the newest are loaded
        self.replaces = self.hosted.worker.method.catch_up.replaces

    @property
    def waits(self) -> bool:
        """Whether entries wait to be applied."""
        return bool(self._queue)

    @property
    def current(self) -> bool:
        """Whether the weights are those after step `at`."""
        return self._pending_weights is None

    @property
    def has_header(self) -> bool:
        """Whether the header of the log that is followed has come, and fits this run.

        Before that neither the run nor the numbers of its clients are known.
        """
        return self._log.following is not None and self._log.incarnation != ""

    async def begin(self, incarnation: str) -> None:
        """Follow a new log from its beginning, with a new model if this one has steps."""
        async with self._turn:
            self._log.looking = False
            if self._log.following is None or self._log.incarnation != incarnation:
                await self._begin()

    async def look(self) -> None:
        """Follow the log before a coordinator has confirmed it: the run may be over."""
        async with self._turn:
            if self._log.following is None and self._log.looking is not None:
                self._log.looking = True
                await self._begin()

    async def stop_looking(self) -> None:
        """Stop following an unconfirmed log: there is a coordinator that will confirm one."""
        async with self._turn:
            if self._log.looking:
                self._log.looking = False
                await self.stop()

    async def return_to_base(self) -> None:
        """Go back to the base if there are steps: the run begins again, and its old log is gone."""
        async with self._turn:
            if self.at:
                await self._begin()

    async def _begin(self) -> None:
        await self.stop()
        self._queue.clear()
        self._log.incarnation, self._log.missed = "", None
        if self.at:
            # both outlast the model: memory is by round, and counted answers stay counted
            memory, accounts = self.hosted.worker.memory, self.hosted.accounts
            self.hosted = await self.thread.run(self.load)
            self.hosted.worker.memory, self.hosted.accounts = memory, accounts
            self.version += 1
            self.at = 0
            self.norm = self._pending_weights = None
            self.spent = Cost()
        self._log.following = await self.end.follow(0, self._take)

    async def stop(self) -> None:
        """Stop following the log."""
        if self._log.following is not None:
            await self._log.following()
            self._log.following = None

    def _take(self, number: int, data: bytes) -> None:
        try:
            self._queue.append(Entry.decode(data))
        except MessageError as error:
            self._queue.append(NetworkError(f"entry {number} of the log is not valid: {error}"))
        self.wake()

    async def _begin_again(self, reason: str) -> None:
        self.progress.warn(f"{reason}: replaying from the base")
        await self._begin()

    async def advance(self) -> None:
        """Take all new entries of the log; apply steps that follow each other together.

        Whole weights that were missing earlier are fetched again.

        Raises FedseedError: the log is another run's, not valid, or lacks steps; this machine
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
                    if not await self._take_header(entry):
                        return
                elif entry.kind == "T":
                    mark = None
                    try:
                        step = await self._read_step(entry, self.at + len(steps) + 1)
                    except MessageError as error:
                        await self._handle_missing(entry, error)
                        break
                    if step is None:
                        return
                    steps.append(step)
                elif entry.kind == "M":
                    mark = read_mark(entry)
                elif entry.kind == "E":
                    self.ended = True
            if steps:
                await self._apply(steps)
            if self._pending_weights is not None:
                await self._load_weights(*self._pending_weights)
            if mark is not None and mark[0] == self.at and self.current:
                await self._compare(mark[1])

    async def _take_header(self, entry: Entry) -> bool:
        """Return whether the log goes on after this header."""
        if not self._log.incarnation:
            return await self._fits(entry)
        await self._begin_again(
            "the run has been put on the server again, or its log is an older one"
        )
        return False

    async def _read_step(self, entry: Entry, number: int) -> bytes | None:
        """Return a step's message, or a reference to it if it is whole weights.

        None: the step does not follow the one before it, and the log is read again.

        Raises MessageError: its object is missing.
        """
        new_link, carried = read_step(entry)
        # whole weights are fetched later, when they are known to be the newest
        if self.replaces and is_stored(carried):
            step = carried
        else:
            step = await fetch(self.end, carried, None)
            if link(self._log.link, step) != new_link:
                await self._begin_again(
                    f"step {number} of the log does not follow those that were applied"
                )
                return None
        self._log.link, self._log.missed = new_link, None
        return step

    async def _handle_missing(self, entry: Entry, error: MessageError) -> None:
        """Go on to a newer header, or wait for a step's missing object.

        An object is missing where the server has gone back to an older store.
        """
        self._log.missed = self._log.missed or time.monotonic()
        headers = [
            place
            for place, later in enumerate(self._queue)
            if isinstance(later, Entry) and later.kind == "H"
        ]
        if headers:
            for _ in range(headers[0]):
                self._queue.popleft()
            self._log.missed = None
        elif time.monotonic() > self._log.missed + WEIGHTS_PATIENCE_SECONDS:
            raise NetworkError(f"a step of the log can't be had: {error}") from error
        else:
            self._queue.appendleft(entry)
            await asyncio.sleep(MISSED_SECONDS)

    async def _fits(self, header: Entry) -> bool:
        """Return whether a header is of this run.

        Raises FedseedError: it is not, although the coordinator has confirmed the log.
        """
        try:
            beginning, log_header, self._log.link = read_header(header)
            self._log.incarnation = beginning.epoch
            differences = log_header.differences(self.hosted.header)
            if differences:
                raise FedseedError(f"run {self.run} is another one: {differences[0]} here")
            if any(name not in beginning.names for name in self.hosted.items):
                raise FedseedError(
                    f"run {self.run} has no client {self.hosted.host}: it has "
                    f"{list_names(beginning.names)}"
                )
            check_fingerprint(self.hosted, beginning.fingerprint)
            self._check_data(beginning.epoch)
        except FedseedError as error:
            if not self._log.looking:
                raise
            self.progress.note(f"{error}: waiting for a coordinator")
            self._log.looking = None
            await self.stop()
            self._queue.clear()
            return False
        self.numbers = {name: number for number, name in enumerate(beginning.names)}
        return True

    def _check_data(self, epoch: str) -> None:
        """Compare the clients' data with those that they had in this log before.

        Raises:
            FedseedError: they have changed.
        """
        try:
            check_data(self.hosted, self.run, epoch)
        except StorageError as error:  # a machine that can't store files takes part, too
            self.progress.warn(
                f"{error}: if this process is started again with other data, nothing will say so"
            )

    async def _apply(self, steps: list[bytes]) -> None:
        """Apply consecutive steps: several are merged, as in a replay.

        Of whole weights only the newest are loaded.
        """
        self.version += 1
        if self.replaces:
            weights_steps = [step for step in steps if is_stored(step) or len(step) > FRAME_BYTES]
            if weights_steps:
                self._pending_weights = (time.monotonic(), weights_steps[-1])
        elif len(steps) == 1:
            await self._apply_one(steps[0])
        else:
            began = time.perf_counter()
            records = [
                Record(message.round, message.payload) for message in map(Message.decode, steps)
            ]
            await self.thread.run(self.hosted.worker.catch_up, records)
            self.norm = None
            self.spent.add(Cost({"rebuild": time.perf_counter() - began}))
        self.at += len(steps)
        self.progress.advance(self.at)

    async def _apply_one(self, step: bytes) -> None:
        began = time.perf_counter()
        self.norm = await self.thread.run(self.hosted.worker.apply, step)
        self.spent.add(Cost({"rebuild": time.perf_counter() - began}))

    async def _load_weights(self, since: float, carried: bytes) -> None:
        """Load the newest weights, if they are there.

        Raises NetworkError: they are missing for a minute.
        """
        try:
            step = await fetch(self.end, carried, None)
        except MessageError as error:  # deleted already: newer weights are on their way
            if time.monotonic() > since + WEIGHTS_PATIENCE_SECONDS:
                raise NetworkError(f"the newest weights can't be had: {error}") from error
        else:
            await self._apply_one(step)
            self._pending_weights = None

    async def digest(self) -> str:
        """Return the weights' digest."""
        version = self.version  # it may change during the await
        if self._digest[0] != version:
            self._digest = version, await self.thread.run(self.hosted.worker.space.digest)
        return self._digest[1]

    async def _compare(self, digest: str) -> None:
        """Compare the weights' digest with the others'; replay if it differs."""
        local_digest = await self.digest()
        if local_digest == digest:
            return
        self._repairs += 1
        difference = (
            f"after step {self.at} the weights' digest is {local_digest} here, {digest} elsewhere"
        )
        if self._repairs > MOST_REPAIRS:
            raise OrbitError(
                f"{difference}, and replay does not mend it: this machine computes differently"
            )
        await self._begin_again(difference)
