"""Hears, for a coordinator on NATS: what clients send, questions for the status, and whether the
server is there.

Each comes over a connection of its own. A server keeps what was sent to a connection in order, so
that on a single one for all, a question, a receipt or an entry of the log would wait behind
whatever one key can send.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from fedseed.transport.base import Receive, Rejected, Working
from fedseed.transport.signatures import HEADER, Signatures, signature_in
from fedseed.transport.subjects import RESERVED, Subjects, name_of

T = TypeVar("T")

EACH = 1000  # bytes that a message takes besides what it holds
BEAT_SECONDS = 0.25
DEAF_SECONDS = 1.0  # without a sign of the server, after which the clock stands still
# for which it still stands when the server is back: the others have to come back, too
RETURN_SECONDS = 3.0

IN_A_ROW = 8  # messages that are looked at before others get a turn, and more are read
# of messages that wait to be looked at; what exceeds them is dropped, and sent again
PENDING_BYTES = 16 << 20
STATUS_SECONDS = 0.1  # between two answers about the status: many may ask
PENDING_QUESTIONS = 4 << 20  # bytes of questions for the status that wait: questions may be empty
TOO_MANY = "one of too many messages at once: it was not looked at"

Answer = Callable[[str, bytes], Awaitable[None]]  # subject, data


@dataclass
class Turns(Generic[T]):
    """Lines of messages that take turns.

    Without room for one more, the newest of the longest line is dropped.
    """

    most: int  # bytes of all messages that wait, each counted with `EACH` more
    dropped: Callable[[T], None]  # is told which message is dropped
    bytes: int = 0
    # those with messages, in turn
    _lines: dict[Hashable, deque[tuple[T, int]]] = field(default_factory=dict)
    _sizes: Counter[Hashable] = field(default_factory=Counter)  # bytes of each line
    _some: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, whose: Hashable, message: T, size: int) -> None:
        """Add a message that waits, or drops this one or others where there is no room.

        Args:
            whose: the line's name.
            message: what waits.
            size: its bytes.
        """
        size += EACH
        while self.bytes + size > self.most:
            longest = whose
            # less than its share
            if self._lines and (self._sizes[whose] + size) * len(self._lines) <= self.most:
                longest = max(self._lines, key=self._sizes.__getitem__)
            if longest == whose:
                self.dropped(message)
                return
            self.dropped(self._take(longest, newest=True))
        self._lines.setdefault(whose, deque()).append((message, size))
        self._sizes[whose] += size
        self.bytes += size
        self._some.set()

    def _take(self, whose: Hashable, newest: bool = False) -> T:
        line = self._lines[whose]
        message, size = line.pop() if newest else line.popleft()
        self.bytes -= size
        self._sizes[whose] -= size
        if not line:
            del self._lines[whose], self._sizes[whose]
        return message

    async def next(self) -> T:
        """Return the first message of the line whose turn it is; waits until there is one."""
        while not self._lines:
            self._some.clear()
            await self._some.wait()
        whose = next(iter(self._lines))
        message = self._take(whose)
        if whose in self._lines:
            self._lines[whose] = self._lines.pop(whose)  # behind the others
        return message


class _Said(NamedTuple):
    """A message that has come in a client's name."""

    sender: str
    what: str
    data: bytes
    subject: str
    reply: str  # where an answer is wanted; "": nowhere
    signed: Mapping[str, str]  # the header with its signature


@dataclass
class Hearing(Working):
    """Takes what clients send. Messages of each key take turns with the others'."""

    connection: Client  # a connection that is used for nothing else
    subjects: Subjects  # the run's subjects
    signatures: Signatures  # say whose a message is
    receive: Receive  # gets what is let through
    answer: Answer  # sends an answer
    rejected: Rejected  # is told what is not let through

    def __post_init__(self) -> None:
        self._turns = Turns[_Said](PENDING_BYTES, lambda said: self.dropped(said.sender))

    async def begin(self) -> None:
        """Begin to listen."""
        up = f"{self.subjects.root}.up.*.*"
        await self.connection.subscribe(up, cb=self._take, pending_bytes_limit=PENDING_BYTES)
        self.work(self._keep_looking())

    async def _take(self, message: Msg) -> None:
        """Put a message that has come in its line, if it can be somebody's.

        Rejects it otherwise.
        """
        parts = message.subject.split(".")
        sender = name_of(parts[-2])
        if sender is None:
            self.rejected("somebody", "a message in the name of nobody")
            return
        signed = {HEADER: (message.headers or {}).get(HEADER, "")[:100]}
        # it waits in nobody's line
        if self.signatures.clients is not None and signature_in(signed) is None:
            self._unsigned(sender)
            return
        said = _Said(sender, parts[-1], message.data, message.subject, message.reply, signed)
        size = len(message.data) + len(message.subject) + len(message.reply)
        self._turns.put(self.signatures.line(sender), said, size)

    def _unsigned(self, name: str) -> None:
        self.rejected(
            "somebody", f"a message in the name of {name[:100]} without a signature of its key"
        )

    def dropped(self, name: str | None) -> None:
        """Reports that there was no room for a message, which is not proven to be this client's."""
        self.rejected("somebody" if name is None else f"somebody as {name}", TOO_MANY)

    async def _keep_looking(self) -> None:
        turn = 0
        while True:
            if not self._turns.bytes:  # waiting for the next message lets others have their turn
                turn = 0
            said = await self._turns.next()
            try:
                await self._look(said)
            except Exception as error:  # it concerns one message: the next may be another's
                about = {
                    "message": f"a message of {said.sender} can't be looked at",
                    "exception": error,
                }
                asyncio.get_running_loop().call_exception_handler(about)
            turn += 1
            if turn == IN_A_ROW:
                turn = 0
                await asyncio.sleep(0)

    async def _look(self, said: _Said) -> None:
        if not self.signatures.of_client(said.sender, said.subject, said.data, said.signed):
            self._unsigned(said.sender)
            return
        if said.reply and not said.reply.startswith(f"{self.subjects.inbox(said.sender)}."):
            self.rejected(said.sender, "its question is to be answered elsewhere than in its inbox")
            return
        reply = await self.receive(said.sender, said.what, said.data)
        if reply is not None and said.reply:
            await self.answer(said.reply, reply)


@dataclass
class Questions(Working):
    """Answers questions for the status, at a cost that does not depend on how many there are.

    An answer goes to all who may ask, wherever a question wants it, and for a while there is no
    other.
    """

    connection: Client  # a connection that is used for nothing else
    subjects: Subjects  # the run's subjects
    status: Callable[[], bytes]  # makes an answer
    answer: Answer  # sends an answer
    _asked: bool = False  # since the newest answer

    async def begin(self) -> None:
        """Begin to listen."""
        await self.connection.subscribe(
            self.subjects.status, cb=self._take, pending_bytes_limit=PENDING_QUESTIONS
        )

    async def _take(self, message: Msg) -> None:
        self._asked = True
        if self._task is None or self._task.done():
            self.work(self._answer_all())

    async def _answer_all(self) -> None:
        while self._asked:
            self._asked, answer = False, self.status()
            for name in RESERVED:
                await self.answer(self.subjects.statuses(name), answer)
            await asyncio.sleep(STATUS_SECONDS)


@dataclass(eq=False)
class Pulse(Working):
    """A clock that stands still while the server is silent, or this process hears nothing.

    So nobody is late for what can't arrive. It sends itself a message over the server all the time.
    """

    connection: Client  # to the server
    _lost: float = 0.0  # seconds that do not count

    def __post_init__(self) -> None:
        self._heard = self._at = time.monotonic()

    def now(self) -> float:
        """Return the time in seconds, which is never less than before."""
        if self._task is None:
            return time.monotonic()
        self._at = max(self._at, min(time.monotonic(), self._heard + DEAF_SECONDS) - self._lost)
        return self._at

    async def begin(self) -> None:
        """Begin to listen."""
        inbox = self.connection.new_inbox()
        await self.connection.subscribe(inbox, cb=self._hear)
        self._heard = self._at = time.monotonic()
        self.work(self._beat(inbox))

    async def _beat(self, inbox: str) -> None:
        while True:
            with suppress(nats.errors.Error):
                await self.connection.publish(inbox)
            await asyncio.sleep(BEAT_SECONDS)

    async def _hear(self, message: Msg) -> None:
        real = time.monotonic()
        if real > self._heard + DEAF_SECONDS:
            self._lost = real + RETURN_SECONDS - self.now()
        self._heard = real
