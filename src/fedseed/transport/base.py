"""What carries a federation's bytes: one interface, which knows no rounds, no methods and no torch.

A run on a transport has

    messages that are not kept    the coordinator's `broadcast`; a client's `send`, and its `ask`, which is answered;
                                  anybody's question for the coordinator's `status`
    a log                         entries in order, numbered from 1, durable. Only the coordinator appends, and only if
                                  nobody else has since (`LogWriter`); anybody follows it, from any entry on
    blobs                         what is too large for a message: put by its owner, read by the other side

Messages may be lost when a connection is interrupted; an entry or blob that was stored is not. Who sent a message is
told by the transport, which has made sure of it. Errors are fedseed's own, whatever library is underneath. What an
implementation must do, tests/transport/test_contract.py says.
"""

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedseed.errors import NetworkError, RecipeError

RETRY_SECONDS = 0.1
_RUN = re.compile(r"[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*")

Receive = Callable[[str, str, bytes], Awaitable[bytes | None]]  # sender, what, data -> the answer to a question
Rejected = Callable[[str, str], None]  # who, and what the transport did not let through
Take = Callable[[int, bytes], None]  # an entry's number and bytes


def check_run(name: str) -> str:
    """A run's name, as every transport takes it.

    Raises:
        RecipeError: it has other characters than letters, digits, - and _.
    """
    if not _RUN.fullmatch(name):
        raise RecipeError(f"run name {name!r}: letters, digits, _ and single - in between (choose one with --run)")
    return name


@dataclass(frozen=True)
class Access:
    """How to reach a transport.

    Args:
        url: where it is; the scheme says which transport it is.
        key: file with this side's secret.
        ca: file with the certificates to trust.
        server_log: where a server between the two sides writes what it refuses.
    """

    url: str
    key: Path | None = None
    ca: Path | None = None
    server_log: Path | None = None


class Interrupted(Exception):  # noqa: N818  # no error: it is tried again
    """No receipt came: what was sent may have arrived or not."""


class LogLostError(NetworkError):
    """The log was there, and is not there any more."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the server has lost the log of run {run}")


class Fenced(Exception):  # noqa: N818
    """The log has an entry of this number already."""


class LogWriter(ABC):
    """Appends to a run's log, fenced: only if nobody else has.

    Args:
        run: the run's name, for saying what can't be written.
        last: the number of the last entry.
    """

    def __init__(self, run: str, last: int) -> None:
        self.run = run
        self.last = last

    async def append(self, entry: bytes, patience: float = 3600) -> None:
        """Append an entry; it is stored when this returns, once, whatever happened to the connection.

        Args:
            entry: its bytes.
            patience: seconds to go on trying.

        Raises:
            NetworkError: somebody else has written; LogLostError: the log is gone.
        """
        give_up = time.monotonic() + patience
        while True:
            try:
                await self._store(entry)
                break
            except Interrupted as error:
                if time.monotonic() > give_up:
                    raise NetworkError(f"the log of run {self.run} can't be written: {error}") from error
                await asyncio.sleep(RETRY_SECONDS)
            except Fenced as error:
                if await self._there() == entry:  # it arrived, its receipt did not
                    break
                raise NetworkError(
                    f"another coordinator has written to run {self.run} since: this one stops"
                ) from error
        self.last += 1

    async def _there(self) -> bytes | None:
        while True:
            with suppress(Interrupted):
                return await self._read(self.last + 1)
            await asyncio.sleep(RETRY_SECONDS)

    @abstractmethod
    async def _store(self, entry: bytes) -> None:
        """Store an entry as number `last` + 1.

        Raises:
            Fenced: there is one of this number, or more.
            Interrupted: no receipt came.
            NetworkError: it can't be stored.
        """

    @abstractmethod
    async def _read(self, number: int) -> bytes | None:
        """The entry of a number, None if there is none. Raises Interrupted."""


class Following(ABC):
    """What follows a log, until it is stopped."""

    @abstractmethod
    async def stop(self) -> None:
        """No entry is handed out after this."""


class End(ABC):
    """One end of a run: what the coordinator's, a client's and a watcher's have in common.

    Every method may raise NetworkError.
    """

    largest: int  # bytes of a message that need not become a blob
    lasting: ClassVar[bool] = True  # whether the log outlives the coordinator
    noted: Callable[[str], None] = staticmethod(lambda text: None)  # told once of what a person should know
    failed: Callable[[NetworkError], None] = staticmethod(lambda error: None)  # told what is not waited for longer

    @property
    def unproven(self) -> str | None:
        """Why it is not proven here who sends a message, in a line; None: it is."""
        return None

    def now(self) -> float:
        """Seconds on a clock that stands still while nothing can come from the other side."""
        return time.monotonic()

    @abstractmethod
    async def status(self, seconds: float) -> bytes | None:
        """What the coordinator answers to a question for its status; None: none answers within so many seconds."""

    @abstractmethod
    async def log_end(self) -> int | None:
        """The number of the log's last entry, None if there is no log."""

    async def log_over(self) -> bool:
        """Whether the log was ended; a transport that keeps no such mark says no."""
        return False

    async def entries(self, last: int) -> list[bytes]:
        """The log's entries up to number `last`, from the first on."""
        found: list[bytes] = []
        done = asyncio.Event()

        def take(number: int, data: bytes) -> None:
            if number <= last:
                found.append(data)
            if number >= last:
                done.set()

        if last:
            following = await self.follow(0, take)
            await done.wait()
            await following.stop()
        return found

    @abstractmethod
    async def follow(self, after: int, take: Take) -> Following:
        """Hand out every entry after a number once, in order, whatever happens to the connection.

        What others than the coordinator have written there is passed over, where that can be told; `noted` is told. It
        is also told when the log was there and is not any more; `failed`, when it has not come back for very long.

        Args:
            after: the last entry that is known already.
            take: called with each entry's number and bytes.
        """

    @abstractmethod
    async def put(self, name: str, data: bytes) -> None:
        """Store a blob of this end's own, in place of one of the same name."""

    @abstractmethod
    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        """A blob.

        Args:
            owner: the client whose it is; None: the coordinator's.
            name: what it was stored as.
            size: how many bytes it must have; one of another size is not fetched.

        Raises:
            MessageError: it is not there, of another size, or does not come.
        """

    @abstractmethod
    async def drop(self, owner: str | None, name: str) -> None:
        """Delete a blob that nobody needs any more; fine if it is gone."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the connection; nothing is handed out after this."""


class CoordinatorEnd(End):
    """The coordinator's end."""

    @abstractmethod
    async def listen(self, receive: Receive, status: Callable[[], bytes], rejected: Rejected) -> None:
        """Begin to take what clients send, one after the other in each client's order.

        Args:
            receive: called with sender, kind and data of every message; its result answers an `ask`.
            status: the answer to a question for the status.
            rejected: told what the transport itself did not let through, and of whom.
        """

    @abstractmethod
    async def broadcast(self, data: bytes) -> None:
        """Send to every client that listens now; not kept."""

    @abstractmethod
    async def create_log(self, copies: int) -> None:
        """Make the run's log, empty, on so many servers if there are several."""

    @abstractmethod
    def writer(self, last: int) -> LogWriter:
        """What appends to the log after entry `last`."""

    @abstractmethod
    async def allow(self, owner: str | None, most: int | None) -> None:
        """Let an owner store blobs of so many bytes together (None: any number); again changes nothing."""

    @abstractmethod
    async def delete(self) -> None:
        """Delete the run: its log and all blobs."""

    async def mark_over(self) -> None:
        """Note that the log was ended, for those who may not read it (`log_over`)."""

    def together(self, one: str, other: str) -> bool:
        """Whether two clients may be in one process, as far as is known: they have the same key."""
        return True

    def poll(self) -> None:  # most transports have nothing
        """Look whether a server has refused something meanwhile; `rejected` is told."""


class ClientEnd(End):
    """The end of a process that speaks for some clients."""

    @abstractmethod
    async def listen(self, take: Callable[[bytes], None]) -> None:
        """Begin to take what the coordinator broadcasts."""

    @abstractmethod
    async def send(self, client: str, what: str, data: bytes) -> None:
        """Send to the coordinator, for a client of this process; not kept."""

    @abstractmethod
    async def ask(self, client: str, what: str, data: bytes, seconds: float) -> bytes | None:
        """Send, and wait for the answer; None: there is none within so many seconds."""

    @abstractmethod
    async def flush(self) -> None:
        """What was sent is on its way when this returns."""


class Transport(ABC):
    """A way to reach a run. Every method connects, and raises RecipeError or NetworkError where it can't.

    One with `schemes` is made with an `Access` and the run's name.
    """

    schemes: ClassVar[Sequence[str]] = ()  # what its addresses begin with, before "://"

    @abstractmethod
    async def coordinator(self, refused: Callable[[str], None]) -> CoordinatorEnd:
        """The coordinator's end.

        Args:
            refused: told when the other side does not let this end do something.
        """

    @abstractmethod
    async def client(self, name: str, refused: Callable[[str], None], again: Callable[[], None]) -> ClientEnd:
        """A client's end.

        Args:
            name: the client; the first of several in one process.
            refused: told when the other side does not let this end do something.
            again: told when an interruption is over.
        """

    @abstractmethod
    async def watcher(self) -> End:
        """The end of somebody who only asks."""


async def end_task(task: "asyncio.Task[None]") -> None:
    """Cancel a task until it is over.

    Before Python 3.12 `wait_for` swallows a cancellation now and then, and nats-py's `publish` does while it flushes.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)
