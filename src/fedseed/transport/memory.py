"""A transport inside one process: ends that meet at a `Hub`, each in a thread and event loop of its
own if need be.

It does what a network does: bytes are copied, and writers fenced.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fedseed.errors import MessageError, NetworkError
from fedseed.transport import base

E = TypeVar("E", bound="MemoryEnd")
Reply = Callable[[bytes], None]


class Shared:
    """What a server would keep of a run, and who is connected."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.lock = threading.RLock()
        self.ends: list[MemoryEnd] = []
        self.forget()

    def forget(self) -> None:
        """Delete all that is kept."""
        self.log: list[bytes] | None = None
        self.over = False
        self.blobs: dict[str | None, dict[str, bytes]] = {}
        self.limits: dict[str | None, int | None] = {}

    def store(self, owner: str | None, name: str, data: bytes) -> None:
        """Store a copy of a blob, within its owner's limit. Raises NetworkError."""
        with self.lock:
            if owner not in self.limits:
                raise NetworkError(
                    f"{len(data):,} bytes can't be stored as {name}: {owner} may store nothing"
                )
            mine = self.blobs.setdefault(owner, {})
            check_room(
                name, data, self.limits[owner], {key: len(blob) for key, blob in mine.items()}
            )
            mine[name] = _copy(data)

    def drop(self, owner: str | None, name: str) -> None:
        """Delete a blob, if it is there."""
        with self.lock:
            self.blobs.get(owner, {}).pop(name, None)

    def listeners(self, kind: type[E]) -> list[E]:
        """Return the ends of a kind that listen."""
        with self.lock:
            return [end for end in self.ends if isinstance(end, kind) and end.hears]


def check_room(name: str, data: bytes, most: int | None, kept: Mapping[str, int]) -> None:
    """Raises NetworkError if a blob does not fit beside those of other names.

    None: any number of bytes may be kept.
    """
    others = sum(size for other, size in kept.items() if other != name)
    if most is not None and others + len(data) > most:
        raise NetworkError(
            f"{len(data):,} bytes can't be stored as {name}: at most {most:,} bytes are kept"
        )


class Hub:
    """Where the ends of runs meet."""

    def __init__(self) -> None:
        self._runs: dict[str, MemoryTransport] = {}

    def transport(self, run: str) -> "MemoryTransport":
        """Return the way to a run."""
        return self._runs.setdefault(run, MemoryTransport(run))


class MemoryTransport(base.Transport):
    """The way to a run whose ends are all in this process."""

    def __init__(self, run: str) -> None:
        self._shared = Shared(run)

    async def coordinator(self, events: base.Events = base.QUIET) -> "MemoryCoordinator":
        return MemoryCoordinator(self._shared, None, events)

    async def client(self, name: str, events: base.Events = base.QUIET) -> "MemoryClient":
        return MemoryClient(self._shared, name, events)

    async def watcher(self) -> "MemoryEnd":
        return MemoryEnd(self._shared, None, base.QUIET)


class Beside(base.End):
    """An end in the process that keeps what it reads: a run's log, and blobs."""

    largest = 256 * 1024

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        # who reads the log: the last entry it has had
        self._following: dict[object, tuple[int, base.Take]] = {}
        self._closed = False

    def _open(self) -> None:
        if self._closed:
            raise NetworkError(f"the connection to run {self._shared.run} is closed")

    async def _reach(self) -> Shared:
        """Return what is kept, once it is sure to be the newest.

        Raises NetworkError if the end is closed.
        """
        self._open()
        return self._shared

    async def log(self) -> base.Log | None:
        shared = await self._reach()
        return None if shared.log is None else base.Log(len(shared.log), shared.over)

    async def entries(self, last: int | None = None) -> list[bytes]:
        return ((await self._reach()).log or [])[:last]

    async def follow(self, after: int, take: base.Take) -> base.Stop:
        follower = object()
        self._following[follower] = after, take
        self.hand_out()

        async def stop() -> None:
            self._following.pop(follower, None)

        return stop

    def hand_out(self) -> None:
        """Hand out what is new in the log."""
        for follower in list(self._following):
            while follower in self._following:
                after, take = self._following[follower]
                log = self._shared.log or []
                if len(log) <= after:
                    break
                self._following[follower] = after + 1, take
                take(after + 1, log[after])

    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        blob = (await self._reach()).blobs.get(owner, {}).get(name)
        if blob is None:
            raise MessageError(f"the object {name} can't be had: it is not there")
        if len(blob) != size:
            raise MessageError(f"an object of {len(blob):,} bytes, {size:,} were announced")
        return blob

    async def close(self) -> None:
        self._closed = True
        self._following.clear()


class MemoryEnd(Beside):
    """An end at a hub.

    Args:
        shared: the run.
        owner: whose blobs are put here; None: the coordinator's.
        events: told if the end can't go on; it is never interrupted.
    """

    hears = False  # whether it listens

    def __init__(self, shared: Shared, owner: str | None, events: base.Events) -> None:
        super().__init__(shared)
        self.owner = owner
        self._events = events
        self._loop = asyncio.get_running_loop()
        with shared.lock:
            shared.ends.append(self)

    def _call(self, act: Callable[[], object]) -> None:
        """Do something in this end's event loop, from whatever thread, unless it is closed by
        then.
        """
        with suppress(RuntimeError):  # its loop is closed: nobody is there any more
            self._loop.call_soon_threadsafe(lambda: None if self._closed else act())

    async def status(self, seconds: float) -> bytes | None:
        return await self._answer(
            [one.tell_status for one in self._shared.listeners(MemoryCoordinator)], seconds
        )

    async def _answer(
        self, asked: Sequence[Callable[[Reply], None]], seconds: float
    ) -> bytes | None:
        """Ask with a way to answer.

        The first answer, or None: at once where nobody is there who could give one.
        """
        if not asked or self._closed:
            return None
        answer: asyncio.Future[bytes] = self._loop.create_future()

        def reply(data: bytes) -> None:
            self._call(lambda: None if answer.done() else answer.set_result(data))

        for ask in asked:
            ask(reply)
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            return None

    async def put(self, name: str, data: bytes) -> None:
        (await self._reach()).store(self.owner, name, data)

    async def drop(self, owner: str | None, name: str) -> None:
        self._shared.drop(owner, name)

    async def close(self) -> None:
        await super().close()
        with self._shared.lock, suppress(ValueError):
            self._shared.ends.remove(self)


class MemoryClient(MemoryEnd, base.ClientEnd):
    """A client's end."""

    async def listen(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self.hears = True

    def tell(self, data: bytes) -> None:
        """Something was broadcast."""
        self._call(lambda: self._take(data))

    def _asked(self, client: str, what: str, data: bytes) -> list[Callable[[Reply | None], None]]:
        """Return what tells each coordinator."""
        copied = _copy(data)
        return [
            partial(one.tell, client, what, copied)
            for one in self._shared.listeners(MemoryCoordinator)
        ]

    async def send(self, client: str, what: str, data: bytes) -> None:
        self._open()
        for tell in self._asked(client, what, data):
            tell(None)

    async def ask(self, client: str, what: str, data: bytes, seconds: float) -> bytes | None:
        return await self._answer(self._asked(client, what, data), seconds)


class MemoryCoordinator(MemoryEnd, base.CoordinatorEnd, base.Working):
    """The coordinator's end."""

    async def listen(
        self, receive: base.Receive, status: Callable[[], bytes], rejected: base.Rejected
    ) -> None:
        self._mail: asyncio.Queue[tuple[str, str, bytes, Reply | None]] = asyncio.Queue()
        self._status = status
        self.work(self._read_mail(receive))
        self.hears = True

    def tell(self, sender: str, what: str, data: bytes, reply: Reply | None) -> None:
        """Put what a client has sent into the mail."""
        self._call(lambda: self._mail.put_nowait((sender, what, data, reply)))

    def tell_status(self, reply: Reply) -> None:
        """Somebody asks."""
        self._call(lambda: reply(self._status()))

    async def _read_mail(self, receive: base.Receive) -> None:
        while True:
            sender, what, data, reply = await self._mail.get()
            answer = await receive(sender, what, data)
            if answer is not None and reply is not None and not self._closed:
                reply(_copy(answer))

    async def broadcast(self, data: bytes, to: Collection[str] | None = None) -> None:
        self._open()
        copied = _copy(data)
        for client in self._shared.listeners(MemoryClient):
            client.tell(copied)

    async def writer(self, last: int | None, copies: int = 1) -> "MemoryLogWriter":
        shared = await self._reach()
        with shared.lock:
            if last is None and shared.log is None:
                shared.log = []
        return MemoryLogWriter(shared.run, last or 0, shared)

    async def allow(self, owner: str | None, most: int | None) -> None:
        shared = await self._reach()
        with shared.lock:
            shared.limits.setdefault(owner, most)

    async def delete(self) -> None:
        shared = await self._reach()
        with shared.lock:
            shared.forget()

    async def close(self) -> None:
        await super().close()
        await self.stop()


@dataclass
class MemoryLogWriter(base.LogWriter):
    """Appends to a list if it is as long as it should be."""

    shared: Shared  # has the list

    async def _store(self, entry: bytes) -> None:
        with self.shared.lock:
            log = self.shared.log
            if log is None:
                raise NetworkError(f"the log of run {self.run} can't be written: it is gone")
            if len(log) != self.last:
                raise base.Fenced(log[self.last] if len(log) > self.last else None)
            log.append(_copy(entry))
            for end in self.shared.ends:
                end._call(end.hand_out)

    async def finish(self) -> None:
        self.shared.over = True


def _copy(data: bytes) -> bytes:
    """Return a copy: what arrives does not change when the sender changes what was sent."""
    return bytes(memoryview(data))
