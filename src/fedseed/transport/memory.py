"""A transport inside one process.

Ends are connected by a `Hub`; each may have its own thread and event loop. As on a network, bytes
are copied, and a second writer of a log is refused.
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
    """The state that a server would hold for a run, and the connected ends."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.lock = threading.RLock()
        self.ends: list[MemoryEnd] = []
        self.forget()

    def forget(self) -> None:
        """Delete the log, all blobs and limits."""
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
            owner_blobs = self.blobs.setdefault(owner, {})
            check_room(
                name,
                data,
                self.limits[owner],
                {key: len(blob) for key, blob in owner_blobs.items()},
            )
            owner_blobs[name] = _copy(data)

    def drop(self, owner: str | None, name: str) -> None:
        """Delete a blob, if it is there."""
        with self.lock:
            self.blobs.get(owner, {}).pop(name, None)

    def listeners(self, kind: type[E]) -> list[E]:
        """Return the listening ends of a type."""
        with self.lock:
            return [end for end in self.ends if isinstance(end, kind) and end.hears]


def check_room(name: str, data: bytes, byte_limit: int | None, sizes: Mapping[str, int]) -> None:
    """Raise NetworkError if a blob does not fit beside those of other names.

    Args:
        name: the blob's name.
        data: its bytes.
        byte_limit: the most bytes of all blobs; None: no limit.
        sizes: the sizes of the stored blobs, by name.
    """
    others = sum(size for other_name, size in sizes.items() if other_name != name)
    if byte_limit is not None and others + len(data) > byte_limit:
        raise NetworkError(
            f"{len(data):,} bytes can't be stored as {name}: at most {byte_limit:,} bytes are kept"
        )


class Hub:
    """The meeting point of the ends of runs."""

    def __init__(self) -> None:
        self._runs: dict[str, MemoryTransport] = {}

    def transport(self, run: str) -> "MemoryTransport":
        """Return the transport of a run."""
        return self._runs.setdefault(run, MemoryTransport(run))


class MemoryTransport(base.Transport):
    """A transport of a run whose ends are all in this process."""

    def __init__(self, run: str) -> None:
        self._shared = Shared(run)

    async def coordinator(self, events: base.Events = base.QUIET) -> "MemoryCoordinator":
        return MemoryCoordinator(self._shared, None, events)

    async def client(self, name: str, events: base.Events = base.QUIET) -> "MemoryClient":
        return MemoryClient(self._shared, name, events)

    async def watcher(self) -> "MemoryEnd":
        return MemoryEnd(self._shared, None, base.QUIET)


class Beside(base.End):
    """An end in the process that holds the run's log and blobs."""

    largest = 256 * 1024

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        # the readers of the log, and the last entry that each has received
        self._following: dict[object, tuple[int, base.Take]] = {}
        self._closed = False

    def _open(self) -> None:
        if self._closed:
            raise NetworkError(f"the connection to run {self._shared.run} is closed")

    async def _reach(self) -> Shared:
        """Return the current state. Raises NetworkError: the end is closed."""
        self._open()
        return self._shared

    async def log(self) -> base.Log | None:
        shared = await self._reach()
        return None if shared.log is None else base.Log(len(shared.log), shared.over)

    async def entries(self, last: int | None = None) -> list[bytes]:
        return ((await self._reach()).log or [])[:last]

    async def follow(self, last_number: int, take: base.Take) -> base.Stop:
        follower = object()
        self._following[follower] = last_number, take
        self.hand_out()

        async def stop() -> None:
            self._following.pop(follower, None)

        return stop

    def hand_out(self) -> None:
        """Hand out new entries of the log."""
        for follower in list(self._following):
            while follower in self._following:
                last_number, take = self._following[follower]
                log = self._shared.log or []
                if len(log) <= last_number:
                    break
                self._following[follower] = last_number + 1, take
                take(last_number + 1, log[last_number])

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
        owner: the owner of blobs that are put here; None: the coordinator.
        events: called if the end can't continue; it is never interrupted.
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
        """Call a function in this end's event loop, from any thread, unless the end is closed."""
        with suppress(RuntimeError):  # the loop is closed, so the end is closed, too
            self._loop.call_soon_threadsafe(lambda: None if self._closed else act())

    async def status(self, seconds: float) -> bytes | None:
        return await self._answer(
            [coordinator.tell_status for coordinator in self._shared.listeners(MemoryCoordinator)],
            seconds,
        )

    async def _answer(
        self, questions: Sequence[Callable[[Reply], None]], seconds: float
    ) -> bytes | None:
        """Return the first answer to these questions.

        None: no answer in time, or no coordinator listens.
        """
        if not questions or self._closed:
            return None
        answer: asyncio.Future[bytes] = self._loop.create_future()

        def reply(data: bytes) -> None:
            self._call(lambda: None if answer.done() else answer.set_result(data))

        for ask in questions:
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
        """Deliver a broadcast."""
        self._call(lambda: self._take(data))

    def _inboxes(self, client: str, kind: str, data: bytes) -> list[Callable[[Reply | None], None]]:
        """Return functions that deliver a message to each coordinator."""
        copied = _copy(data)
        return [
            partial(coordinator.tell, client, kind, copied)
            for coordinator in self._shared.listeners(MemoryCoordinator)
        ]

    async def send(self, client: str, kind: str, data: bytes) -> None:
        self._open()
        for tell in self._inboxes(client, kind, data):
            tell(None)

    async def ask(self, client: str, kind: str, data: bytes, seconds: float) -> bytes | None:
        return await self._answer(self._inboxes(client, kind, data), seconds)


class MemoryCoordinator(MemoryEnd, base.CoordinatorEnd, base.Working):
    """The coordinator's end."""

    async def listen(
        self, receive: base.Receive, status: Callable[[], bytes], rejected: base.Rejected
    ) -> None:
        self._mail: asyncio.Queue[tuple[str, str, bytes, Reply | None]] = asyncio.Queue()
        self._status = status
        self.work(self._read_mail(receive))
        self.hears = True

    def tell(self, sender: str, kind: str, data: bytes, reply: Reply | None) -> None:
        """Queue a client's message."""
        self._call(lambda: self._mail.put_nowait((sender, kind, data, reply)))

    def tell_status(self, reply: Reply) -> None:
        """Answer a question for the status."""
        self._call(lambda: reply(self._status()))

    async def _read_mail(self, receive: base.Receive) -> None:
        while True:
            sender, kind, data, reply = await self._mail.get()
            answer = await receive(sender, kind, data)
            if answer is not None and reply is not None and not self._closed:
                reply(_copy(answer))

    async def broadcast(self, data: bytes, receivers: Collection[str] | None = None) -> None:
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

    async def allow(self, owner: str | None, byte_limit: int | None) -> None:
        shared = await self._reach()
        with shared.lock:
            shared.limits.setdefault(owner, byte_limit)

    async def delete(self) -> None:
        shared = await self._reach()
        with shared.lock:
            shared.forget()

    async def close(self) -> None:
        await super().close()
        await self.stop()


@dataclass
class MemoryLogWriter(base.LogWriter):
    """Appends to a log in a list, if the list has the expected length."""

    shared: Shared  # holds the list

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
    """Return a copy, so that a sender can't change data after sending it."""
    return bytes(memoryview(data))
