"""What a coordinator on NATS hears: what clients send, and questions for the status.

Each comes over a connection of its own. A server keeps what was sent to a connection in order, so that on one for
everything a question, a receipt or an entry of the log would wait behind whatever one key can send.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from fedseed.transport.base import Receive, Rejected, end_task
from fedseed.transport.signatures import HEADER, Signatures, signature_in
from fedseed.transport.subjects import Subjects, name_of
from fedseed.transport.turns import Turns

IN_A_ROW = 8  # messages that are looked at before others get a turn, and more are read
PENDING_BYTES = 16 << 20  # of messages that wait to be looked at; what comes beyond is dropped, and said again
STATUS_SECONDS = 0.1  # for which an answer about the status is given again: many may ask
ANSWERS = 20  # that go to single askers in that time; beyond, one goes to all who ask
PENDING_QUESTIONS = 4 << 20  # bytes of questions for the status that wait: they need hold nothing
UNSENT_BYTES = 1 << 20  # of answers, beyond which nobody is answered until they are on their way
CONSUMER = "$JS"  # what the reply subject begins with of what a stream delivers
ELSEWHERE = "a question for the status that is to be answered elsewhere than in an inbox for it"
TOO_MANY = "one of too many messages at once: it was not looked at"

Answer = Callable[[str, bytes], Awaitable[None]]  # subject, data


class _Said(NamedTuple):
    """What has come in a client's name.

    Args:
        sender: the name.
        what: the kind of message.
        data: the message.
        subject: where it came.
        reply: where an answer is wanted; "": nowhere.
        signed: the header with its signature.
    """

    sender: str
    what: str
    data: bytes
    subject: str
    reply: str
    signed: Mapping[str, str]


class Hearing:
    """Takes what clients send. Those of each key take turns with the others'.

    Args:
        connection: for nothing else than this.
        subjects: the run's.
        signatures: say whose a message is.
        receive: gets what is somebody's.
        answer: sends an answer.
        rejected: told what is not let through.
    """

    def __init__(
        self, connection: Client, subjects: Subjects, signatures: Signatures, receive: Receive, answer: Answer,
        rejected: Rejected,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._subjects = subjects
        self._signatures = signatures
        self._receive = receive
        self._answer = answer
        self._rejected = rejected
        self._root = [*subjects.root.split("."), "up"]
        self._turns = Turns[_Said](PENDING_BYTES, lambda said: self.dropped(said.sender))
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Begin to listen."""
        up = f"{self._subjects.root}.up.*.*"
        await self._connection.subscribe(up, cb=self._take, pending_bytes_limit=PENDING_BYTES)
        self._task = asyncio.create_task(self._keep_looking())

    async def _take(self, message: Msg) -> None:
        """A message has come: it waits for its turn, if it can be somebody's."""
        parts = message.subject.split(".")
        heartbeat = message.headers is not None and "Status" in message.headers
        if message.reply.startswith(CONSUMER) or heartbeat or parts[:-2] != self._root:
            self._rejected("a consumer", "not sent by a client: delivered from a stream")
            return
        sender = name_of(parts[-2])
        if sender is None:
            self._rejected("somebody", "a message in the name of nobody")
            return
        signed = {HEADER: (message.headers or {}).get(HEADER, "")[:100]}
        if self._signatures.clients is not None and signature_in(signed) is None:  # it waits in nobody's line
            self._unsigned(sender)
            return
        said = _Said(sender, parts[-1], message.data, message.subject, message.reply, signed)
        size = len(message.data) + len(message.subject) + len(message.reply)
        self._turns.put(self._signatures.line(sender), said, size)

    def _unsigned(self, name: str) -> None:
        self._rejected("somebody", f"a message in the name of {name[:100]} without a signature of its key")

    def dropped(self, name: str | None) -> None:
        """There was no room for a message; that it is this client's is not proven."""
        self._rejected("somebody" if name is None else f"somebody as {name}", TOO_MANY)

    async def _keep_looking(self) -> None:
        turn = 0
        while True:
            if not self._turns:  # waiting for the next lets others have theirs
                turn = 0
            said = await self._turns.next()
            try:
                await self._look(said)
            except Exception as error:  # of one message: the next may be another's
                about = {"message": f"a message of {said.sender} can't be looked at", "exception": error}
                asyncio.get_running_loop().call_exception_handler(about)
            turn += 1
            if turn == IN_A_ROW:
                turn = 0
                await asyncio.sleep(0)

    async def _look(self, said: _Said) -> None:
        if not self._signatures.of_client(said.sender, said.subject, said.data, said.signed):
            self._unsigned(said.sender)
            return
        if said.reply and not said.reply.startswith(f"{self._subjects.inbox(said.sender)}."):
            self._rejected(said.sender, "its question is to be answered elsewhere than in its inbox")
            return
        reply = await self._receive(said.sender, said.what, said.data)
        if reply is not None and said.reply:
            await self._answer(said.reply, reply)

    async def stop(self) -> None:
        """Look at nothing any more; again is fine."""
        if self._task is not None:
            await end_task(self._task)


class Questions:
    """Answers questions for the status, at a cost that does not depend on how many there are.

    An answer is given again for a while: to the first who ask to themselves, and to all others together, once.

    Args:
        connection: for nothing else than this.
        subjects: the run's.
        status: makes an answer.
        answer: sends one.
        rejected: told what is not answered.
    """

    def __init__(
        self, connection: Client, subjects: Subjects, status: Callable[[], bytes], answer: Answer, rejected: Rejected
    ) -> None:
        self._connection = connection
        self._subjects = subjects
        self._status = status
        self._answer = answer
        self._rejected = rejected
        self._newest: tuple[float, bytes] | None = None  # and since when
        self._answered: set[str] = set()  # where that has been sent
        self._together: asyncio.Task[None] | None = None  # answers all who are waiting for it

    async def begin(self) -> None:
        """Begin to listen."""
        subject = self._subjects.status
        await self._connection.subscribe(subject, cb=self._take, pending_bytes_limit=PENDING_QUESTIONS)

    async def _take(self, message: Msg) -> None:
        coordinators = message.reply.startswith(f"{self._subjects.inbox('coordinator')}.")
        if not coordinators and not message.reply.startswith(f"{self._subjects.inbox('watcher')}."):
            self._rejected("somebody", ELSEWHERE)
            return
        answer = self._now()
        if message.reply in self._answered:  # whoever asks again at once has this answer already
            return
        if coordinators or len(self._answered) < ANSWERS:
            self._answered.add(message.reply)
            await self._answer(message.reply, answer)
        elif self._together is None or self._together.done():
            self._together = asyncio.create_task(self._answer_all())

    def _now(self) -> bytes:
        """The answer; a new one if that is old."""
        now = time.monotonic()
        if self._newest is None or now > self._newest[0] + STATUS_SECONDS:
            self._newest, self._answered = (now, self._status()), set()
        return self._newest[1]

    async def _answer_all(self) -> None:
        await asyncio.sleep(STATUS_SECONDS)
        await self._answer(self._subjects.statuses, self._now())

    async def stop(self) -> None:
        """Answer nobody any more; again is fine."""
        if self._together is not None:
            await end_task(self._together)


async def room_to_send(connection: Client) -> None:
    """Wait until the server has taken what it was sent: ten thousand answers go as fast as it reads."""
    while connection.pending_data_size > UNSENT_BYTES and connection.is_connected:
        await asyncio.sleep(0.001)
