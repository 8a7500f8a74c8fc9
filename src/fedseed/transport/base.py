"""What carries a federation's bytes: one interface, which knows no rounds, no methods, no members
and no torch.

    messages     the coordinator's `broadcast`, a client's `send`; nothing keeps them
    questions    a client's `ask`, anybody's `status`: the coordinator answers
    a log        entries in order, numbered from 1, durable. Only the coordinator appends, and only
    if nobody else has
                 since (`LogWriter`); anybody follows it, from any entry on
    blobs        what is too large for a message: put by its owner, read by the other side

Messages may be lost when a connection is interrupted; an entry or blob that was stored is not. The
transport says who sent a message, and has made sure of it. Errors are fedseed's own, whatever
library is underneath. tests/transport/test_contract.py is what every implementation must pass.
"""

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from fedseed.errors import NetworkError, RecipeError

RETRY_SECONDS = 0.1
_RUN = re.compile(r"[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*")

# sender, what, data -> the answer to a question
Receive = Callable[[str, str, bytes], Awaitable[bytes | None]]
Rejected = Callable[[str, str], None]  # who, and what the transport did not let through
Take = Callable[[int, bytes], None]  # an entry's number and bytes
Stop = Callable[[], Awaitable[None]]  # ends what was begun; may be called again


def check_run(name: str) -> str:
    """Return a run's name, as every transport takes it.

    Raises:
        RecipeError: it has other characters than letters, digits, - and _.
    """
    if not _RUN.fullmatch(name):
        raise RecipeError(
            f"run name {name!r}: letters, digits, _ and single - in between (choose one with --run)"
        )
    return name


@dataclass(frozen=True)
class Access:
    """How to reach a transport."""

    url: str  # where it is; the scheme says which transport it is
    key: Path | None = None  # file with this side's secret
    ca: Path | None = None  # file with the certificates to trust


@dataclass(frozen=True)
class Events:
    """Whom an end tells what happens to its connection."""

    # the other side does not let this end do something
    refused: Callable[[str], None] = lambda why: None
    again: Callable[[], None] = lambda: None  # an interruption is over
    noted: Callable[[str], None] = lambda what: None  # what a person should know; each is said once
    failed: Callable[[NetworkError], None] = lambda error: None  # what is not waited for any longer


QUIET = Events()


class Log(NamedTuple):
    """Says how a run's log stands."""

    last: int  # the number of its last entry
    over: bool  # whether it was ended
    cut: bool = False  # whether its first entries are gone, so that nobody can begin with it


class Interrupted(Exception):  # noqa: N818  # no error: it is tried again
    """No receipt came: what was sent may have arrived or not."""


class LogLostError(NetworkError):
    """The log was there, and is not there any more."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the server has lost the log of run {run}")


class LogOlderError(NetworkError):
    """The log ends before entries that stood in it."""

    def __init__(self, run: str) -> None:
        super().__init__(
            f"the server has come back with an older log of run {run}: start `fedseed serve` again "
            "with the same --out, it goes on from what log and files have"
        )


class LogUnusableError(NetworkError):
    """The log is there, and the run can't go on with it: it has to be made anew."""


class LogCutError(LogUnusableError):
    """The log lacks its beginning."""

    def __init__(self, run: str) -> None:
        super().__init__(
            f"the log of run {run} lacks its beginning: a limit of the stream, or a purge, has cut "
            "it off"
        )


class LogSealedError(LogUnusableError):
    """Nothing can be added to the log any more."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the log of run {run} was sealed: the server adds nothing to it any more")


class TakenOverError(NetworkError):
    """Another coordinator goes on with the run."""

    def __init__(self, run: str) -> None:
        super().__init__(f"another coordinator has written to run {run} since: this one stops")


class Fenced(Exception):  # noqa: N818
    """The log has an entry of this number already.

    Its bytes are given, None where they are not known.
    """


@dataclass
class LogWriter(ABC):
    """Appends to a run's log, as long as nobody else does (it is fenced)."""

    run: str  # its name, for saying what can't be written
    last: int  # the number of the last entry

    async def append(self, entry: bytes, patience: float = 3600) -> None:
        """Append an entry.

        It is stored when this returns, once, whatever happened to the connection.

        Args:
            entry: its bytes.
            patience: seconds to go on trying.

        Raises:
            TakenOverError: another coordinator has written.
            LogLostError, LogOlderError: the log is gone, or has lost entries.
            LogUnusableError: it takes no entries any more.
            NetworkError: it can't be written for that long.
        """
        give_up = time.monotonic() + patience
        while True:
            try:
                await self._store(entry)
                break
            except Interrupted as error:
                if time.monotonic() > give_up:
                    raise NetworkError(
                        f"the log of run {self.run} can't be written: {error}"
                    ) from error
                await asyncio.sleep(RETRY_SECONDS)
            except Fenced as error:
                if error.args[0] == entry:  # it arrived, its receipt did not
                    break
                raise TakenOverError(self.run) from error
        self.last += 1

    @abstractmethod
    async def finish(self) -> None:
        """Note that the log was ended, for those who may not read it (`Log.over`)."""

    @abstractmethod
    async def _store(self, entry: bytes) -> None:
        """Store an entry as number `last` + 1.

        Raises:
            Fenced: there is one of this number, or more.
            Interrupted: no receipt came.
            NetworkError: it can't be stored.
        """


class End(ABC):
    """One end of a run. Every method may raise NetworkError."""

    largest: int  # bytes of a message that need not become a blob
    lasting: ClassVar[bool] = True  # whether the log outlives the coordinator
    # why it is not proven here who sends a message, in a line; None: it is
    unproven: str | None = None

    @abstractmethod
    async def status(self, seconds: float) -> bytes | None:
        """Ask for the coordinator's status; None: nobody answers within so many seconds."""

    @abstractmethod
    async def log(self) -> Log | None:
        """Return how the log stands, None if there is none."""

    @abstractmethod
    async def follow(self, after: int, take: Take) -> Stop:
        """Hand out every entry after a number once, in order, whatever happens to the connection,
        until it is stopped.

        Where a server comes back with an older log, or another, all of it is handed out again, from
        the first on.

        What others than the coordinator have written there is passed over, where that can be told;
        `Events.noted` is told. It is also told when the log was lost, or its beginning;
        `Events.failed`, when it has not come back for very long.
        """

    @abstractmethod
    async def entries(self, last: int | None = None) -> list[bytes]:
        """Return the log's entries up to number `last`; None: all that it has now."""

    @abstractmethod
    async def put(self, name: str, data: bytes) -> None:
        """Store a blob of this end's own, in place of one of the same name."""

    @abstractmethod
    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        """Fetch a blob.

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
        """Send what is on its way, and let go of the connection: nothing more is handed out.

        May be called again.
        """


class ClientEnd(End):
    """The end of a process that speaks for some clients."""

    @abstractmethod
    async def listen(self, take: Callable[[bytes], None]) -> None:
        """Begin to take what the coordinator broadcasts.

        When this returns, everything that follows comes.
        """

    @abstractmethod
    async def send(self, client: str, what: str, data: bytes) -> None:
        """Send to the coordinator, for a client of this process."""

    @abstractmethod
    async def ask(self, client: str, what: str, data: bytes, seconds: float) -> bytes | None:
        """Send, and wait for the answer; None: there is none within so many seconds."""


class CoordinatorEnd(End):
    """The coordinator's end."""

    # public keys that speak for each client, if known
    keys: Mapping[str, frozenset[bytes]] | None = None
    # after which what is not answered is sent again, because it may be lost
    resend_seconds: ClassVar[float] = 2.0

    @abstractmethod
    async def listen(
        self, receive: Receive, status: Callable[[], bytes], rejected: Rejected
    ) -> None:
        """Begin to take what clients send, one after the other in each client's order.

        Args:
            receive: called with sender, kind and data of every message; its result answers an
                `ask`.
            status: the answer to a question for the status.
            rejected: told what the transport itself did not let through, and of whom.
        """

    @abstractmethod
    async def broadcast(self, data: bytes, to: Collection[str] | None = None) -> None:
        """Send to every client that listens now.

        Args:
            data: what is sent.
            to: the clients that it is for; others need not hear it soon. None: all.
        """

    @abstractmethod
    async def writer(self, last: int | None, copies: int = 1) -> LogWriter:
        """Make what appends to the log.

        Args:
            last: the number of the last entry; None: the log is made, empty.
            copies: on how many servers, where there are several.
        """

    @abstractmethod
    async def allow(self, owner: str | None, most: int | None) -> None:
        """Let an owner store blobs of so many bytes together (None: any number).

        Again changes nothing.
        """

    @abstractmethod
    async def delete(self) -> None:
        """Delete the run: its log and all blobs."""

    def now(self) -> float:
        """Seconds on a clock that stands still while nothing can come from the other side."""
        return time.monotonic()

    def present(self, name: str) -> bool | None:
        """Return whether a client's process is connected, where the transport knows.

        None: only signs of life tell.
        """
        return None


class Transport(ABC):
    """A way to reach a run.

    Every method connects, and raises RecipeError or NetworkError where it can't.

    One with `schemes` is made with an `Access` and the run's name.
    """

    schemes: ClassVar[Sequence[str]] = ()  # what its addresses begin with, before "://"

    @abstractmethod
    async def coordinator(self, events: Events = QUIET) -> CoordinatorEnd:
        """Return the coordinator's end."""

    @abstractmethod
    async def client(self, name: str, events: Events = QUIET) -> ClientEnd:
        """Return the end of a client, the first of several in one process."""

    @abstractmethod
    async def watcher(self) -> End:
        """Return the end of somebody who only asks."""


async def end_task(task: "asyncio.Task[Any]") -> None:
    """Cancel a task until it is over.

    Before Python 3.12 `wait_for` swallows a cancellation now and then, and nats-py's `publish` does
    while it flushes.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)


class Working:
    """Does its work in a task of its own."""

    _task: "asyncio.Task[None] | None" = None

    def work(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin some work."""
        self._task = asyncio.create_task(work)

    async def stop(self) -> None:
        """End the work; may be called again."""
        if self._task is not None:
            await end_task(self._task)
