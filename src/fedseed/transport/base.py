"""The interface of transports, which carry a federation's bytes.

A transport knows nothing of rounds, methods, members or torch.

    messages     the coordinator's `broadcast`, a client's `send`; they are not stored
    questions    a client's `ask`, anybody's `status`: the coordinator answers
    a log        durable entries in order, numbered from 1. Only the coordinator appends, and only
                 while no other one does (`LogWriter`); everybody can follow it from any entry on
    blobs        data too large for a message: stored by their owner, read by the other side

Messages may be lost when a connection is interrupted; stored entries and blobs are not. The
transport verifies who sent a message. All errors are fedseed's own classes, also those of
libraries. tests/transport/test_contract.py is the suite that every implementation must pass.
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
# a server's stream has a name of at most 255 characters: it has this one, a client's of 128, and
# parts by fedseed
LONGEST_RUN = 100

# sender, kind, data -> the answer to a question
Receive = Callable[[str, str, bytes], Awaitable[bytes | None]]
Rejected = Callable[[str, str], None]  # sender, reason
Take = Callable[[int, bytes], None]  # an entry's number and bytes
Stop = Callable[[], Awaitable[None]]  # ends a subscription; may be called twice


def check_run(name: str) -> str:
    """Check and return a run's name, which is valid on every transport.

    Raises:
        RecipeError: it has other characters than letters, digits, - and _, or too many of them.
    """
    if len(name) > LONGEST_RUN:
        raise RecipeError(
            f"run name {name[:20]}...: {len(name):,} characters, at most {LONGEST_RUN} "
            "(choose one with --run)"
        )
    if not _RUN.fullmatch(name):
        raise RecipeError(
            f"run name {name!r}: letters, digits, _ and single - in between (choose one with --run)"
        )
    return name


@dataclass(frozen=True)
class Access:
    """The way to reach a transport."""

    url: str  # the address; its scheme selects the transport
    key: Path | None = None  # file with this side's secret key
    ca: Path | None = None  # file with trusted certificates


@dataclass(frozen=True)
class Events:
    """Callbacks for events of an end's connection."""

    # called with the reason when the other side refuses an action
    refused: Callable[[str], None] = lambda reason: None
    reconnected: Callable[[], None] = lambda: None  # an interruption is over
    noted: Callable[[str], None] = lambda text: None  # called once with each note for people
    # called when the connection is given up
    failed: Callable[[NetworkError], None] = lambda error: None


QUIET = Events()


class Log(NamedTuple):
    """The state of a run's log."""

    last: int  # the number of its last entry
    over: bool  # whether it was ended
    cut: bool = False  # whether its first entries are gone, so that it can't be read


class Interrupted(Exception):  # noqa: N818  # not an error: the caller tries again
    """No receipt came: the data may have arrived or not."""


class LogLostError(NetworkError):
    """The log is gone."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the server has lost the log of run {run}")


class LogOlderError(NetworkError):
    """The log ends before entries that it had."""

    def __init__(self, run: str) -> None:
        super().__init__(
            f"the server has come back with an older log of run {run}: start `fedseed serve` again "
            "with the same --out: it continues from the log and its files"
        )


class LogUnusableError(NetworkError):
    """The run can't continue with this log, which has to be replaced."""


class LogCutError(LogUnusableError):
    """The log lacks its beginning."""

    def __init__(self, run: str) -> None:
        super().__init__(
            f"the log of run {run} lacks its beginning: a limit of the stream, or a purge, has "
            "deleted it"
        )


class LogSealedError(LogUnusableError):
    """The log takes no entries any more."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the log of run {run} was sealed: the server refuses further entries")


class TakenOverError(NetworkError):
    """Another coordinator continues the run."""

    def __init__(self, run: str) -> None:
        super().__init__(f"another coordinator has written to run {run} since: this one stops")


class Fenced(Exception):  # noqa: N818
    """The log has an entry of this number already; its bytes are the argument, None if unknown."""


@dataclass
class LogWriter(ABC):
    """Appends to a run's log while no other coordinator does."""

    run: str  # its name, for errors
    last: int  # the number of the last entry

    async def append(self, entry: bytes, patience: float = 3600) -> None:
        """Append an entry; it is stored exactly once when this returns.

        Args:
            entry: its bytes.
            patience: seconds to keep trying.

        Raises:
            TakenOverError: another coordinator has written to the log.
            LogLostError, LogOlderError: the log is gone, or has lost entries.
            LogUnusableError: the log takes no entries any more.
            NetworkError: writing has failed for `patience` seconds.
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
                if error.args[0] == entry:  # it was stored, but the receipt was lost
                    break
                raise TakenOverError(self.run) from error
        self.last += 1

    @abstractmethod
    async def finish(self) -> None:
        """Mark the log as ended, for clients that may not read it (`Log.over`)."""

    @abstractmethod
    async def _store(self, entry: bytes) -> None:
        """Store an entry as number `last` + 1.

        Raises:
            Fenced: the log has an entry of this number.
            Interrupted: no receipt came.
            NetworkError: it can't be stored.
        """


class End(ABC):
    """One end of a run. Every method may raise NetworkError."""

    largest: int  # most bytes of a message; larger data becomes a blob
    lasting: ClassVar[bool] = True  # whether the log outlives the coordinator
    # one line on why senders are not verified; None: they are
    unproven: str | None = None

    @abstractmethod
    async def status(self, seconds: float) -> bytes | None:
        """Ask for the coordinator's status; None: no answer within `seconds`."""

    @abstractmethod
    async def log(self) -> Log | None:
        """Return the state of the log; None: there is none."""

    @abstractmethod
    async def follow(self, last_number: int, take: Take) -> Stop:
        """Pass on every entry after `last_number` once, in order, until it is stopped.

        Interruptions are bridged. If a server comes back with an older log, or another one, all its
        entries are handed out again from the first on.

        Entries of others than the coordinator are skipped, where they can be recognised;
        `Events.noted` reports that, and a log that is lost or lacks its beginning. `Events.failed`
        is called if the log stays away for very long.
        """

    @abstractmethod
    async def entries(self, last: int | None = None) -> list[bytes]:
        """Return the log's entries up to number `last`; None: all present ones."""

    @abstractmethod
    async def put(self, name: str, data: bytes) -> None:
        """Store a blob of this end, in place of one of the same name.

        Raises NetworkError ("... can't be stored ...") if its owner may not store so much
        (`CoordinatorEnd.allow`).
        """

    @abstractmethod
    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        """Fetch a blob.

        Args:
            owner: the client that owns it; None: the coordinator.
            name: its name.
            size: its bytes; a blob of another size is not fetched.

        Raises:
            MessageError: it is not there or does not come ("... can't be had ..."), or has another
                size ("... 200,000 bytes, 200,001 were announced").
        """

    @abstractmethod
    async def drop(self, owner: str | None, name: str) -> None:
        """Delete a blob; nothing happens if it is gone."""

    @abstractmethod
    async def close(self) -> None:
        """Send pending messages, and close the connection; nothing is handed out after that.

        It may be called again. A closed end sends nothing: that raises NetworkError.
        """


class ClientEnd(End):
    """The end of a process that speaks for some clients."""

    @abstractmethod
    async def listen(self, take: Callable[[bytes], None]) -> None:
        """Subscribe to the coordinator's broadcasts; all later ones are received."""

    @abstractmethod
    async def send(self, client: str, kind: str, data: bytes) -> None:
        """Send a message to the coordinator, for a client of this process."""

    @abstractmethod
    async def ask(self, client: str, kind: str, data: bytes, seconds: float) -> bytes | None:
        """Send a question, and return the answer; None: no answer within `seconds`."""


class CoordinatorEnd(End):
    """The coordinator's end."""

    # public keys that speak for each client; None: not known
    keys: Mapping[str, frozenset[bytes]] | None = None
    # an unanswered message is sent again after this time, because it may be lost
    resend_seconds: ClassVar[float] = 2.0

    @abstractmethod
    async def listen(
        self, receive: Receive, status: Callable[[], bytes], rejected: Rejected
    ) -> None:
        """Receive the clients' messages, those of a client in order, one at a time.

        Args:
            receive: called with sender, kind and data of every message; its result answers an
                `ask`.
            status: returns the answer to a question for the status.
            rejected: called for messages that the transport rejects.
        """

    @abstractmethod
    async def broadcast(self, data: bytes, receivers: Collection[str] | None = None) -> None:
        """Send a message to every client that listens now.

        Args:
            data: the message.
            receivers: the clients that must receive it soon; None: all.
        """

    @abstractmethod
    async def writer(self, last: int | None, copies: int = 1) -> LogWriter:
        """Return a writer for the log.

        Args:
            last: the number of the last entry; None: make an empty log.
            copies: how many servers keep it, where there are several.
        """

    @abstractmethod
    async def allow(self, owner: str | None, byte_limit: int | None) -> None:
        """Let an owner store blobs of `byte_limit` bytes in total (None: any number).

        A second call for the same owner changes nothing.
        """

    @abstractmethod
    async def delete(self) -> None:
        """Delete the run: its log and all blobs. Writers of this log raise NetworkError then."""

    def now(self) -> float:
        """Return the seconds of a clock that stands still while nothing can be received."""
        return time.monotonic()

    def present(self, name: str) -> bool | None:
        """Return whether a client's process is connected; None: the transport does not know."""
        return None


class Transport(ABC):
    """A way to reach a run.

    Every method connects, and raises RecipeError or NetworkError if it can't. A transport with
    `schemes` is made with an `Access` and the run's name.
    """

    schemes: ClassVar[Sequence[str]] = ()  # schemes of its addresses

    @abstractmethod
    async def coordinator(self, events: Events = QUIET) -> CoordinatorEnd:
        """Return the coordinator's end."""

    @abstractmethod
    async def client(self, name: str, events: Events = QUIET) -> ClientEnd:
        """Return the end of a client, the first of several in one process."""

    @abstractmethod
    async def watcher(self) -> End:
        """Return an end that can only ask for the status."""


async def end_task(task: "asyncio.Task[Any]") -> None:
    """Cancel a task, and wait until it has ended.

    One cancellation may be lost: `wait_for` swallows some before Python 3.12, and so does nats-py's
    `publish` while it flushes.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)


class Working:
    """Base of objects that work in a task of their own."""

    _task: "asyncio.Task[None] | None" = None

    def work(self, work: Coroutine[Any, Any, None]) -> None:
        """Start the work."""
        self._task = asyncio.create_task(work)

    async def stop(self) -> None:
        """End the work; may be called again."""
        if self._task is not None:
            await end_task(self._task)
