"""A client's copy of the weights, which follows the run's log.

It applies each step once, and checks that the step is chained to the previous one.
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

# seconds to wait for newer weights if older ones have been deleted
WEIGHTS_PATIENCE_SECONDS = 60.0
MISSED_SECONDS = 0.1  # seconds between two requests for a missing object
MOST_REPAIRS = 3


@dataclass
class _Log:
    """The state of following a log."""

    link: bytes = b""  # link of the last step read from it
    incarnation: str = ""  # incarnation in its header; "": the header has not come yet
    following: Stop | None = None  # ends the subscription
    missed: float | None = None  # time since when a step's object is missing
    # True: followed before a coordinator has confirmed that it is this run's log; None: it turned
    # out to be another run's
    looking: bool | None = False


@dataclass
class Replica:
    """The weights, and the steps that bring them up to date."""

    end: ClientEnd
    run: str  # the run's name
    load: Callable[[], Hosted]  # loads the base model with the hosted clients' data
    hosted: Hosted  # the first result of `load`
    thread: WorkThread  # for long work
    progress: Progress
    wake: Callable[[], None]  # called when an entry comes
    at: int = 0  # the last step that was applied
    spent: Cost = field(default_factory=Cost)  # costs since the last report
    ended: bool = False
    version: int = 0  # counts changes of the weights
    norm: float | None = None  # norm of the newest step, if the method knows it
    # whole weights that have not been loaded yet, and since when they wait
    _pending_weights: tuple[float, bytes] | None = None
    _queue: deque[Entry | Exception] = field(default_factory=deque)
    # held while the log is read, or while reading restarts at its beginning
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _log: _Log = field(default_factory=_Log)
    _repairs: int = 0
    _digest: tuple[int, str] = (-1, "")  # version of the weights, and their digest

    def __post_init__(self) -> None:
        self.numbers = {name: number for number, name in enumerate(self.hosted.names)}
        # whether each step is whole weights; then only the newest are loaded
        self.replaces = self.hosted.worker.method.catch_up.replaces

    @property
    def waits(self) -> bool:
        """Whether there are entries that have not been applied yet."""
        return bool(self._queue)

    @property
    def current(self) -> bool:
        """Whether the weights are up to date with step `at`."""
        return self._pending_weights is None

    @property
    def has_header(self) -> bool:
        """Whether the log's header has come and fits this run.

        Before that, neither the run nor its clients' numbers are known.
        """
        return self._log.following is not None and self._log.incarnation != ""

    async def begin(self, incarnation: str) -> None:
        """Follow a new log from its beginning. The model is loaded again if steps were applied to
        it.
        """
        async with self._turn:
            self._log.looking = False
            if self._log.following is None or self._log.incarnation != incarnation:
                await self._begin()

    async def look(self) -> None:
        """Follow the log before a coordinator has confirmed it, because the run may be over
        already.
        """
        async with self._turn:
            if self._log.following is None and self._log.looking is not None:
                self._log.looking = True
                await self._begin()

    async def stop_looking(self) -> None:
        """Stop following an unconfirmed log, because a coordinator has come that will confirm
        one.
        """
        async with self._turn:
            if self._log.looking:
                self._log.looking = False
                await self.stop()

    async def return_to_base(self) -> None:
        """Load the base again if steps were applied, because the run begins again and its old log
        is gone.
        """
        async with self._turn:
            if self.at:
                await self._begin()

    async def _begin(self) -> None:
        await self.stop()
        self._queue.clear()
        self._log.incarnation, self._log.missed = "", None
        if self.at:
            # both are kept: memory is by round, and counted answers stay counted
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
            self._queue.append(NetworkError(f"entry {number} of the log is invalid: {error}"))
        self.wake()

    async def _begin_again(self, reason: str) -> None:
        self.progress.warn(f"{reason}: replaying from the base")
        await self._begin()

    async def advance(self) -> None:
        """Take all new entries of the log, and apply consecutive steps together.

        It also tries again to fetch whole weights that were missing earlier.

        Raises FedseedError if the log belongs to another run, is invalid or lacks steps, or if this
        machine computes differently.
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
        """Take a header, and return whether to continue reading this log."""
        if not self._log.incarnation:
            return await self._fits(entry)
        await self._begin_again(
            "the server lost the run and got it again, or went back to an older log"
        )
        return False

    async def _read_step(self, entry: Entry, number: int) -> bytes | None:
        """Return a step's message, or a reference to it if it is whole weights.

        None if the step does not follow the previous one; then the log is read again.

        Raises MessageError if its object is missing.
        """
        new_link, carried = read_step(entry)
        # whole weights are fetched later, once they are known to be the newest
        if self.replaces and is_stored(carried):
            step = carried
        else:
            step = await fetch(self.end, carried, None)
            if link(self._log.link, step) != new_link:
                await self._begin_again(
                    f"step {number} of the log does not follow the applied steps"
                )
                return None
        self._log.link, self._log.missed = new_link, None
        return step

    async def _handle_missing(self, entry: Entry, error: MessageError) -> None:
        """Continue with a newer header, or wait for a step's missing object.

        An object can be missing after the server went back to an older store.
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
            raise NetworkError(f"a step of the log can't be fetched: {error}") from error
        else:
            self._queue.appendleft(entry)
            await asyncio.sleep(MISSED_SECONDS)

    async def _fits(self, header: Entry) -> bool:
        """Return whether a header belongs to this run.

        Raises FedseedError if it does not although the coordinator has confirmed the log.
        """
        try:
            beginning, log_header, self._log.link = read_header(header)
            self._log.incarnation = beginning.epoch
            differences = log_header.differences(self.hosted.header)
            if differences:
                raise FedseedError(
                    f"run {self.run} differs from this recipe and base: {differences[0]} here"
                )
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
        """Compare the clients' data with their earlier data in this log.

        Raises:
            FedseedError: they have changed.
        """
        try:
            check_data(self.hosted, self.run, epoch)
        except StorageError as error:  # a machine that can't store files may still take part
            self.progress.warn(
                f"{error}: so nothing will notice if this process is restarted with other data"
            )

    async def _apply(self, steps: list[bytes]) -> None:
        """Apply consecutive steps, merged as in a replay.

        If steps are whole weights, only the newest are loaded.
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
        """Load the newest weights, if they are available.

        Raises NetworkError if they are still missing after a minute.
        """
        try:
            step = await fetch(self.end, carried, None)
        except MessageError as error:  # they are deleted already, because newer weights come
            if time.monotonic() > since + WEIGHTS_PATIENCE_SECONDS:
                raise NetworkError(f"the newest weights can't be fetched: {error}") from error
        else:
            await self._apply_one(step)
            self._pending_weights = None

    async def digest(self) -> str:
        """Return the weights' digest."""
        version = self.version  # because it may change during the await
        if self._digest[0] != version:
            self._digest = version, await self.thread.run(self.hosted.worker.space.digest)
        return self._digest[1]

    async def _compare(self, digest: str) -> None:
        """Compare the weights' digest with that of the other clients, and replay if it differs."""
        local_digest = await self.digest()
        if local_digest == digest:
            return
        self._repairs += 1
        difference = (
            f"after step {self.at} the weights' digest is {local_digest} here, {digest} elsewhere"
        )
        if self._repairs > MOST_REPAIRS:
            raise OrbitError(
                f"{difference}, also after a replay: this machine computes differently"
            )
        await self._begin_again(difference)
