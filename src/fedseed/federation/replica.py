"""A client's copy of the weights: it follows the run's log from its beginning, each step once, chained to the last."""

import time
from collections import deque
from collections.abc import Callable

from fedseed.errors import FedseedError, MessageError, NetworkError, OrbitError
from fedseed.federation.cost import Cost
from fedseed.federation.hosted import Hosted, WorkThread
from fedseed.federation.large import fetch, is_stored
from fedseed.federation.messages import FRAME_BYTES, Message
from fedseed.federation.protocol import Entry, listed, read_header, read_mark, read_step
from fedseed.orbit import Record
from fedseed.orbit.file import scan
from fedseed.orbit.record import LINK_BYTES, link
from fedseed.reports.progress import Progress
from fedseed.transport.base import ClientEnd, Following

DENSE_PATIENCE_SECONDS = 60.0  # how long newer weights may take to come when older ones have been deleted
MOST_REPAIRS = 3


class Replica:
    """The weights, brought from step to step.

    Args:
        end: the transport.
        run: the run's name.
        load: makes the model at its base, with the hosted clients' data.
        hosted: what it made first.
        thread: where the work is done.
        progress: shows the run going on.
        wake: told when something has come.
    """

    def __init__(
        self, end: ClientEnd, run: str, load: Callable[[], Hosted], hosted: Hosted, thread: WorkThread,
        progress: Progress, wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self.end = end
        self.run = run
        self.hosted = hosted
        self.at = 0
        self.numbers = {name: number for number, name in enumerate(hosted.names)}
        self.norm: float | None = None  # of the newest step, where the method knows it
        self.spent = Cost()  # since the last report
        self.ended = False
        self.version = 0  # other weights, another version
        self._load = load
        self._thread = thread
        self._progress = progress
        self._wake = wake
        self._queue: deque[Entry | Exception] = deque()
        self._following: Following | None = None
        self._link = hosted.start[-LINK_BYTES:]
        self._repairs = 0
        self._digest: tuple[int, str] | None = None
        self._awaited: tuple[float, bytes] | None = None  # dense weights that could not be had yet, and since when

    # -- following -----------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether entries have come that are to be applied."""
        return bool(self._queue)

    @property
    def current(self) -> bool:
        """Whether the weights are those after step `at`."""
        return self._awaited is None

    async def follow(self) -> None:
        """Follow the log from its beginning."""
        await self.stop()
        self._queue.clear()
        self._following = await self.end.follow(0, self._take)

    async def stop(self) -> None:
        """Follow it no longer."""
        if self._following is not None:
            await self._following.stop()
            self._following = None

    def _take(self, number: int, data: bytes) -> None:
        try:
            self._queue.append(Entry.decode(data))
        except MessageError as error:
            self._queue.append(NetworkError(f"entry {number} of the log is not valid: {error}"))
        self._wake()

    async def begin_at_base(self) -> None:
        """Take a new model."""
        self.hosted = await self._thread.do(self._load)
        self.version += 1
        self.at = 0
        self.norm = None
        self.spent = Cost()
        self._link = self.hosted.start[-LINK_BYTES:]
        self._digest = None
        self._awaited = None

    async def _begin_again(self, why: str) -> None:
        self._progress.warn(f"{why}: replaying from the base")
        await self.begin_at_base()
        await self.follow()

    # -- applying -----------------------------------------------------------------------------------------------

    async def advance(self) -> None:
        """Take everything that has come from the log: steps that follow each other are applied together.

        Raises:
            FedseedError: the log is another run's, or not valid, or this machine computes differently.
        """
        steps: list[bytes] = []
        mark: tuple[int, str] | None = None
        while self._queue:
            entry = self._queue.popleft()
            if isinstance(entry, Exception):
                raise entry
            if entry.kind == "H":
                self._check(entry)
            elif entry.kind == "T":
                mark = None
                after, carried = read_step(entry)
                message = await self._message(carried)
                if message is not None and link(self._link, message) != after:
                    number = self.at + len(steps) + 1
                    await self._begin_again(f"step {number} of the log does not follow those that were applied")
                    return
                self._link = after
                steps.append(carried if message is None else message)
            elif entry.kind == "M":
                mark = read_mark(entry)
            elif entry.kind == "E":
                self.ended = True
        if steps:
            await self._apply(steps)
        if mark is not None and mark[0] == self.at and self.current:
            await self._compare(mark[1])

    def _check(self, entry: Entry) -> None:
        about, start = read_header(entry)
        differences = scan(start, "the log's header")[0].header.differences(self.hosted.header)
        if differences:
            raise FedseedError(f"run {self.run} is another one: {differences[0]} here")
        names = [str(name) for name in about["names"]]
        if any(name not in names for name in self.hosted.items):
            raise FedseedError(f"run {self.run} has no client {self.hosted.host}: it has {listed(names)}")
        self.numbers = {name: number for number, name in enumerate(names)}
        self._link = start[-LINK_BYTES:]

    @property
    def _newest_only(self) -> bool:
        """Whether each step is whole weights, so that only the newest is needed."""
        return self.hosted.worker.method.catch_up == "newest"

    async def _message(self, carried: bytes) -> bytes | None:
        """A step's message; None for weights that are a blob, of which only the newest are fetched."""
        if is_stored(carried) and self._newest_only:
            return None
        return await fetch(self.end, carried, None)

    async def _apply(self, steps: list[bytes]) -> None:
        self.version += 1
        if self._newest_only:
            self.at += len(steps)
            changed = [step for step in steps if is_stored(step) or len(step) > FRAME_BYTES]
            if changed:
                self._awaited = (time.monotonic(), changed[-1])
                await self.take_awaited()
        else:
            began = time.perf_counter()
            if len(steps) == 1:
                self.norm = await self._thread.do(self.hosted.worker.apply, steps[0])
            else:
                messages = [Message.decode(step) for step in steps]
                records = [Record(message.round, message.payload) for message in messages]
                await self._thread.do(self.hosted.worker.catch_up, records)
                self.norm = None
            self.at += len(steps)
            self.spent.add(Cost({"rebuild": time.perf_counter() - began}))
        self._progress.advance(self.at)

    async def take_awaited(self) -> None:
        """Load the newest weights; where they have been deleted already, newer ones are on their way."""
        if self._awaited is None:
            return
        since, carried = self._awaited
        try:
            message = await fetch(self.end, carried, None)
        except MessageError as error:
            if time.monotonic() > since + DENSE_PATIENCE_SECONDS:
                raise NetworkError(f"the newest weights can't be had: {error}") from error
            return
        began = time.perf_counter()
        self.norm = await self._thread.do(self.hosted.worker.apply, message)
        self.spent.add(Cost({"rebuild": time.perf_counter() - began}))
        self._awaited = None

    # -- comparing -----------------------------------------------------------------------------------------------

    async def digest(self) -> str:
        """The weights' digest."""
        if self._digest is None or self._digest[0] != self.at:
            self._digest = (self.at, await self._thread.do(self.hosted.worker.space.digest))
        return self._digest[1]

    async def _compare(self, digest: str) -> None:
        """Compare the weights with those of the others."""
        mine = await self.digest()
        if mine == digest:
            return
        self._repairs += 1
        differ = f"after step {self.at} the weights' digest is {mine} here, {digest} elsewhere"
        if self._repairs > MOST_REPAIRS:
            raise OrbitError(f"{differ}, and replay does not mend it: this machine computes differently")
        await self._begin_again(differ)
