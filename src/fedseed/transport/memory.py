"""A transport inside one process: ends that meet at a `Hub`, each in a thread and event loop of its own if need be.

It does what a network does: bytes are copied, writers fenced, and an end can be cut off (`MemoryEnd.cut`) and put back
(`heal`), so that what is not kept is lost meanwhile.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from fedseed.errors import MessageError, NetworkError
from fedseed.transport.base import (
    ClientEnd,
    CoordinatorEnd,
    End,
    Fenced,
    Following,
    Interrupted,
    LogWriter,
    Receive,
    Rejected,
    Take,
    Transport,
    end_task,
)

POLL_SECONDS = 0.01  # while an end is cut off


@dataclass
class _Run:
    """What a server would keep of a run, and who is connected."""

    log: list[bytes] | None = None
    blobs: dict[str | None, dict[str, bytes]] = field(default_factory=dict)
    limits: dict[str | None, int | None] = field(default_factory=dict)
    ends: list["MemoryEnd"] = field(default_factory=list)
    over: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def coordinators(self) -> list["MemoryCoordinator"]:
        """Those that listen and can be reached."""
        with self.lock:
            return [end for end in self.ends if isinstance(end, MemoryCoordinator) and end.hears]

    def clients(self) -> list["MemoryClient"]:
        """Those that listen and can be reached."""
        with self.lock:
            return [end for end in self.ends if isinstance(end, MemoryClient) and end.hears]


class Hub:
    """Where the ends of runs meet."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()

    def transport(self, run: str) -> "MemoryTransport":
        """The way to a run."""
        with self._lock:
            return MemoryTransport(run, self._runs.setdefault(run, _Run()))


class MemoryTransport(Transport):
    """The way to a run at a hub."""

    def __init__(self, run: str, shared: _Run) -> None:
        self._run = run
        self._shared = shared

    async def coordinator(self, refused: Callable[[str], None]) -> "MemoryCoordinator":
        """The coordinator's end; nothing is refused here."""
        return MemoryCoordinator(self._run, self._shared, None)

    async def client(self, name: str, refused: Callable[[str], None], again: Callable[[], None]) -> "MemoryClient":
        """A client's end."""
        return MemoryClient(self._run, self._shared, name, again)

    async def watcher(self) -> "MemoryEnd":
        """A watcher's end."""
        return MemoryEnd(self._run, self._shared, None)


class MemoryEnd(End):
    """What the ends have in common.

    Args:
        run: the run's name.
        shared: the run.
        owner: whose blobs are put here; None: the coordinator's.
        again: told when an interruption is over.
    """

    largest = 256 * 1024

    def __init__(self, run: str, shared: _Run, owner: str | None, again: Callable[[], None] | None = None) -> None:
        self._run = run
        self._shared = shared
        self._owner = owner
        self._again = again
        self._loop = asyncio.get_running_loop()
        self._stirred = asyncio.Event()  # the log has grown, or the connection is back
        self._followers: list[MemoryFollowing] = []
        self._cut = False
        self._closed = False
        with shared.lock:
            shared.ends.append(self)

    # -- interruptions -----------------------------------------------------------------------------------------------

    @property
    def reached(self) -> bool:
        """Whether anything can come or go."""
        return not self._cut and not self._closed

    def cut(self) -> None:
        """Cut this end off."""
        self._cut = True

    def heal(self) -> None:
        """Put it back."""
        self._cut = False
        self.stir()
        if self._again is not None:
            self._again()

    def call(self, act: Callable[[], object]) -> None:
        """Do something in this end's event loop, from whatever thread."""
        with suppress(RuntimeError):  # its loop is closed: nobody is there any more
            self._loop.call_soon_threadsafe(act)

    def stir(self) -> None:
        """Let those who follow the log look again."""
        self.call(self._stirred.set)

    async def _reach(self) -> None:
        """Wait until the end is not cut off. Raises NetworkError if it is closed."""
        while self._cut and not self._closed:
            await asyncio.sleep(POLL_SECONDS)
        if self._closed:
            raise NetworkError(f"the connection to run {self._run} is closed")

    # -- End -----------------------------------------------------------------------------------------------

    async def status(self, seconds: float) -> bytes | None:
        """Ask the coordinators; the first answer counts."""
        return await self._answer([one.tell_status for one in self._shared.coordinators()], seconds)

    async def _answer(self, asked: Sequence[Callable[[Callable[[bytes], None]], None]], seconds: float) -> bytes | None:
        """Ask with a way to answer; the first answer, or None: at once where nobody is there who could give one."""
        if self.reached and not asked:
            return None
        answer: asyncio.Future[bytes] = self._loop.create_future()

        def reply(data: bytes) -> None:
            self.call(lambda: None if answer.done() or not self.reached else answer.set_result(data))

        if self.reached:
            for ask in asked:
                ask(reply)
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            return None

    async def log_end(self) -> int | None:
        """How many entries there are."""
        await self._reach()
        return None if self._shared.log is None else len(self._shared.log)

    async def log_over(self) -> bool:
        """Whether it was ended."""
        await self._reach()
        return self._shared.over

    async def follow(self, after: int, take: Take) -> "MemoryFollowing":
        """Follow the log."""
        following = MemoryFollowing(self, after, take)
        self._followers.append(following)
        return following

    async def next_entry(self, after: int) -> bytes:
        """Wait for the entry after a number."""
        while True:
            self._stirred.clear()
            log = self._shared.log
            if self.reached and log is not None and len(log) > after:
                return log[after]
            await self._stirred.wait()

    async def put(self, name: str, data: bytes) -> None:
        """Store a copy, within the owner's limit."""
        await self._reach()
        with self._shared.lock:
            if self._owner not in self._shared.limits:
                raise NetworkError(f"{len(data):,} bytes can't be stored as {name}: {self._owner} may store nothing")
            mine, most = self._shared.blobs.setdefault(self._owner, {}), self._shared.limits[self._owner]
            if most is not None and sum(len(blob) for key, blob in mine.items() if key != name) + len(data) > most:
                raise NetworkError(f"{len(data):,} bytes can't be stored as {name}: at most {most:,} bytes are kept")
            mine[name] = _copy(data)

    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        """A blob of the right size."""
        await self._reach()
        blob = self._shared.blobs.get(owner, {}).get(name)
        if blob is None:
            raise MessageError(f"the object {name} can't be had: it is not there")
        if len(blob) != size:
            raise MessageError(f"an object of {len(blob)} bytes, {size:,} were announced")
        return blob

    async def drop(self, owner: str | None, name: str) -> None:
        """Forget a blob."""
        with self._shared.lock:
            self._shared.blobs.get(owner, {}).pop(name, None)

    async def close(self) -> None:
        """Leave the hub."""
        for following in list(self._followers):
            await following.stop()
        self._closed = True
        with self._shared.lock:
            if self in self._shared.ends:
                self._shared.ends.remove(self)


class MemoryFollowing(Following):
    """Hands out the log's entries from a number on."""

    def __init__(self, end: MemoryEnd, after: int, take: Take) -> None:
        self._end = end
        self._task = asyncio.create_task(self._keep_going(after, take))

    async def _keep_going(self, last: int, take: Take) -> None:
        while True:
            entry = await self._end.next_entry(last)
            last += 1
            take(last, entry)
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """End; again is fine."""
        await end_task(self._task)


class MemoryClient(MemoryEnd, ClientEnd):
    """A client's end."""

    hears = False

    async def listen(self, take: Callable[[bytes], None]) -> None:
        """Take what the coordinator broadcasts."""
        self._take = take
        self.hears = True

    def tell(self, data: bytes) -> None:
        """Something was broadcast."""
        self.call(lambda: self._take(data) if self.reached else None)

    async def send(self, client: str, what: str, data: bytes) -> None:
        """Tell the coordinators."""
        if self._closed:
            raise NetworkError(f"the connection to run {self._run} is closed")
        if self.reached:
            for one in self._shared.coordinators():
                one.tell(client, what, _copy(data), None)

    async def ask(self, client: str, what: str, data: bytes, seconds: float) -> bytes | None:
        """Tell the coordinators, with a way to answer."""
        copied = _copy(data)
        asked = [partial(one.tell, client, what, copied) for one in self._shared.coordinators()]
        return await self._answer(asked, seconds)

    async def flush(self) -> None:
        """Nothing waits here."""


class MemoryCoordinator(MemoryEnd, CoordinatorEnd):
    """The coordinator's end."""

    hears = False

    async def listen(self, receive: Receive, status: Callable[[], bytes], rejected: Rejected) -> None:
        """Take what clients send, one after the other."""
        self._mail: asyncio.Queue[tuple[str, str, bytes, Callable[[bytes], None] | None]] = asyncio.Queue()
        self._status = status
        self._reading = asyncio.create_task(self._read_mail(receive))
        self.hears = True

    def tell(self, sender: str, what: str, data: bytes, reply: Callable[[bytes], None] | None) -> None:
        """A client has sent something."""
        self.call(lambda: self._mail.put_nowait((sender, what, data, reply)) if self.reached else None)

    def tell_status(self, reply: Callable[[bytes], None]) -> None:
        """Somebody asks."""
        self.call(lambda: reply(self._status()) if self.reached else None)

    async def _read_mail(self, receive: Receive) -> None:
        while True:
            sender, what, data, reply = await self._mail.get()
            answer = await receive(sender, what, data)
            if answer is not None and reply is not None and self.reached:
                reply(_copy(answer))

    async def broadcast(self, data: bytes) -> None:
        """Tell the clients that are there."""
        if self._closed:
            raise NetworkError(f"the connection to run {self._run} is closed")
        if self.reached:
            copied = _copy(data)
            for client in self._shared.clients():
                client.tell(copied)

    async def create_log(self, copies: int) -> None:
        """Make an empty log."""
        await self._reach()
        with self._shared.lock:
            if self._shared.log is None:
                self._shared.log = []

    def writer(self, last: int) -> "MemoryLogWriter":
        """What appends to it."""
        return MemoryLogWriter(self._run, self, self._shared, last)

    async def allow(self, owner: str | None, most: int | None) -> None:
        """Note the owner's limit."""
        await self._reach()
        with self._shared.lock:
            self._shared.limits.setdefault(owner, most)

    async def mark_over(self) -> None:
        """Note it."""
        await self._reach()
        self._shared.over = True

    async def delete(self) -> None:
        """Forget the run."""
        await self._reach()
        with self._shared.lock:
            self._shared.log, self._shared.over = None, False
            self._shared.blobs.clear()
            self._shared.limits.clear()

    async def close(self) -> None:
        """Leave the hub."""
        await super().close()
        if self.hears:
            await end_task(self._reading)


class MemoryLogWriter(LogWriter):
    """Appends to a list if it is as long as it should be."""

    def __init__(self, run: str, end: MemoryEnd, shared: _Run, last: int) -> None:
        super().__init__(run, last)
        self._end = end
        self._shared = shared

    async def _store(self, entry: bytes) -> None:
        if not self._end.reached:
            raise Interrupted("it is cut off")
        with self._shared.lock:
            log = self._shared.log
            if log is None:
                raise NetworkError(f"the log of run {self.run} can't be written: it is gone")
            if len(log) != self.last:
                raise Fenced
            log.append(_copy(entry))
            for end in self._shared.ends:
                end.stir()

    async def _read(self, number: int) -> bytes | None:
        if not self._end.reached:
            raise Interrupted("it is cut off")
        log = self._shared.log or []
        return log[number - 1] if len(log) >= number else None


def _copy(data: bytes) -> bytes:
    """What arrives does not change when the sender changes what was sent."""
    return bytes(memoryview(data))
