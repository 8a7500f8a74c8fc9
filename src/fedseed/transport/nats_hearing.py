"""The inputs of a coordinator on NATS: clients' messages, questions for the status, and the
server's pulse.

Each has a connection of its own. A server keeps the messages of a connection in order. On a single
connection a question, a receipt or an entry of the log would wait behind everything that one key
can send.
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

OVERHEAD_BYTES = 1000  # bytes counted for a message besides its contents
BEAT_SECONDS = 0.25
DEAF_SECONDS = 1.0  # seconds without a message of the server after which the clock stops
# seconds that the clock stays stopped after the server is back, as others have to return, too
RETURN_SECONDS = 3.0

IN_A_ROW = 8  # number of messages that are processed before other tasks get a turn
# most bytes of messages that wait to be processed; further messages are dropped, and sent again
PENDING_BYTES = 16 << 20
STATUS_SECONDS = 0.1  # seconds between two status answers, as many may ask
PENDING_QUESTIONS = 4 << 20  # most bytes of waiting questions for the status
TOO_MANY = "dropped unread, as too many messages arrived at once"

Answer = Callable[[str, bytes], Awaitable[None]]  # subject, data


@dataclass
class Turns(Generic[T]):
    """Queues of messages that are served in turn.

    If there is no room for a message, the newest of the longest line is dropped.
    """

    byte_limit: int  # most bytes of all waiting messages, with `OVERHEAD_BYTES` for each
    dropped: Callable[[T], None]  # called with a dropped message
    bytes: int = 0
    # lines with messages, in turn
    _lines: dict[Hashable, deque[tuple[T, int]]] = field(default_factory=dict)
    _sizes: Counter[Hashable] = field(default_factory=Counter)  # bytes of each line
    _not_empty: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, line_name: Hashable, message: T, size: int) -> None:
        """Add a message; if there is no room, drop it or others.

        Args:
            line_name: the line's name.
            message: the message.
            size: its bytes.
        """
        size += OVERHEAD_BYTES
        while self.bytes + size > self.byte_limit:
            longest = line_name
            line_size = self._sizes[line_name] + size
            # a line below its share loses no message
            if self._lines and line_size * len(self._lines) <= self.byte_limit:
                longest = max(self._lines, key=self._sizes.__getitem__)
            if longest == line_name:
                self.dropped(message)
                return
            self.dropped(self._take(longest, newest=True))
        self._lines.setdefault(line_name, deque()).append((message, size))
        self._sizes[line_name] += size
        self.bytes += size
        self._not_empty.set()

    def _take(self, line_name: Hashable, newest: bool = False) -> T:
        line = self._lines[line_name]
        message, size = line.pop() if newest else line.popleft()
        self.bytes -= size
        self._sizes[line_name] -= size
        if not line:
            del self._lines[line_name], self._sizes[line_name]
        return message

    async def next(self) -> T:
        """Return the first message of the line whose turn it is; wait until there is one."""
        while not self._lines:
            self._not_empty.clear()
            await self._not_empty.wait()
        line_name = next(iter(self._lines))
        message = self._take(line_name)
        if line_name in self._lines:
            self._lines[line_name] = self._lines.pop(line_name)  # behind the others
        return message


class _Received(NamedTuple):
    """A message that has come in a client's name."""

    sender: str
    kind: str
    data: bytes
    subject: str
    reply: str  # the subject for an answer; "": none
    signed: Mapping[str, str]  # header with the signature


@dataclass
class Hearing(Working):
    """Receives the clients' messages; the messages of each key take turns with the others'."""

    connection: Client  # a connection of its own
    subjects: Subjects  # the run's subjects
    signatures: Signatures  # verify the senders
    receive: Receive  # gets accepted messages
    answer: Answer  # sends an answer
    rejected: Rejected  # called for rejected messages

    def __post_init__(self) -> None:
        self._turns = Turns[_Received](
            PENDING_BYTES, lambda received: self.dropped(received.sender)
        )

    async def begin(self) -> None:
        """Start to listen."""
        subject = f"{self.subjects.root}.up.*.*"
        await self.connection.subscribe(subject, cb=self._take, pending_bytes_limit=PENDING_BYTES)
        self.work(self._keep_looking())

    async def _take(self, message: Msg) -> None:
        """Queue a message in its sender's line, or reject it."""
        parts = message.subject.split(".")
        sender = name_of(parts[-2])
        if sender is None:
            self.rejected("somebody", "a message without a client's name")
            return
        signed = {HEADER: (message.headers or {}).get(HEADER, "")[:100]}
        # a message without a signature must not enter a client's queue
        if self.signatures.clients is not None and signature_in(signed) is None:
            self._unsigned(sender)
            return
        received = _Received(
            sender, parts[-1], message.data, message.subject, message.reply, signed
        )
        size = len(message.data) + len(message.subject) + len(message.reply)
        self._turns.put(self.signatures.line(sender), received, size)

    def _unsigned(self, name: str) -> None:
        self.rejected(
            "somebody", f"a message in the name of {name[:100]} without a signature of its key"
        )

    def dropped(self, name: str | None) -> None:
        """Report a message that was dropped for lack of room. Its sender is not verified."""
        self.rejected("somebody" if name is None else f"somebody as {name}", TOO_MANY)

    async def _keep_looking(self) -> None:
        turn = 0
        while True:
            # waiting for the next message lets other tasks run
            if not self._turns.bytes:
                turn = 0
            received = await self._turns.next()
            try:
                await self._look(received)
            except Exception as error:  # it concerns one message only
                context = {
                    "message": f"a message of {received.sender} can't be processed",
                    "exception": error,
                }
                asyncio.get_running_loop().call_exception_handler(context)
            turn += 1
            if turn == IN_A_ROW:
                turn = 0
                await asyncio.sleep(0)

    async def _look(self, received: _Received) -> None:
        if not self.signatures.of_client(
            received.sender, received.subject, received.data, received.signed
        ):
            self._unsigned(received.sender)
            return
        if received.reply and not received.reply.startswith(
            f"{self.subjects.inbox(received.sender)}."
        ):
            self.rejected(received.sender, "its question asks for an answer outside of its inbox")
            return
        reply = await self.receive(received.sender, received.kind, received.data)
        if reply is not None and received.reply:
            await self.answer(received.reply, reply)


@dataclass
class Questions(Working):
    """Answers questions for the status, at a cost that does not depend on their number.

    An answer goes to all who may ask, whatever reply subject a question has; the next one follows
    after a pause.
    """

    connection: Client  # a connection of its own
    subjects: Subjects  # the run's subjects
    status: Callable[[], bytes]  # makes an answer
    answer: Answer  # sends an answer
    _is_pending: bool = False  # whether a question has come since the newest answer

    async def begin(self) -> None:
        """Start to listen."""
        await self.connection.subscribe(
            self.subjects.status, cb=self._take, pending_bytes_limit=PENDING_QUESTIONS
        )

    async def _take(self, message: Msg) -> None:
        self._is_pending = True
        if self._task is None or self._task.done():
            self.work(self._answer_all())

    async def _answer_all(self) -> None:
        while self._is_pending:
            self._is_pending = False
            answer = self.status()
            for name in RESERVED:
                await self.answer(self.subjects.statuses(name), answer)
            await asyncio.sleep(STATUS_SECONDS)


@dataclass(eq=False)
class Pulse(Working):
    """A clock that stands still while the server is silent, or this process receives nothing.

    So clients are not late because of messages that can't arrive. The clock continually sends
    messages to itself over the server.
    """

    connection: Client  # to the server
    _lost: float = 0.0  # seconds during which the clock stood still

    def __post_init__(self) -> None:
        self._last_heard = self._last_time = time.monotonic()

    def now(self) -> float:
        """Return the time in seconds, which never decreases."""
        if self._task is None:
            return time.monotonic()
        real = min(time.monotonic(), self._last_heard + DEAF_SECONDS)
        self._last_time = max(self._last_time, real - self._lost)
        return self._last_time

    async def begin(self) -> None:
        """Start to listen."""
        inbox = self.connection.new_inbox()
        await self.connection.subscribe(inbox, cb=self._hear)
        self._last_heard = self._last_time = time.monotonic()
        self.work(self._beat(inbox))

    async def _beat(self, inbox: str) -> None:
        while True:
            with suppress(nats.errors.Error):
                await self.connection.publish(inbox)
            await asyncio.sleep(BEAT_SECONDS)

    async def _hear(self, message: Msg) -> None:
        real = time.monotonic()
        if real > self._last_heard + DEAF_SECONDS:
            self._lost = real + RETURN_SECONDS - self.now()
        self._last_heard = real
