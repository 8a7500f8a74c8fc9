"""A client's end in a Flower node: it sends and receives only with exchanges.

It holds a copy of the log and of the coordinator's blobs, which Flower's state of the node keeps
from one process to the next. So following the log or fetching a blob needs no further exchange
(`fedseed.transport.flower_wire`).
"""

import itertools
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from fedseed.transport.base import QUIET, ClientEnd, Events
from fedseed.transport.flower_wire import Table
from fedseed.transport.memory import Beside, Shared, check_room


class NodeEnd(Beside, ClientEnd):
    """The end of one process of a node; a process may end after each exchange.

    Args:
        client: the first of the clients that the process speaks for.
        events: `reconnected` is called when an exchange was lost.
    """

    def __init__(self, client: str = "", events: Events = QUIET) -> None:
        super().__init__(Shared("flower"))
        self.client = client
        self._events = events
        self._hear: Callable[[bytes], None] | None = None
        self._stored_sizes: dict[str, int] = {}  # this end's own blobs, by name
        self._limit: int | None = 0  # most bytes of these blobs; None: no limit
        # answers to earlier questions, by kind and client
        self._answers: dict[str, bytes] = {}
        self._waits = False  # whether it waits for an answer
        self._number: int | None = None  # number of the last exchange
        self._names = (f"{secrets.token_hex(4)}-{number}" for number in itertools.count())
        self._clear()

    def _clear(self) -> None:
        self._outbox: Table = {"said": [], "data": [], "stored": [], "contents": [], "dropped": []}

    def take(self, body: Mapping[str, Any]) -> bool:
        """Process the data that the ServerApp sends.

        Returns:
            False if the node lacks log entries or blobs that the ServerApp expects here.
        """
        log = self._shared.log or []
        since = int(body["since"])
        own_blobs = self._shared.blobs.get(None, {})
        new_blobs = dict(zip(body.get("lacking", []), body.get("blobs", []), strict=True))
        blobs = {**own_blobs, **new_blobs}
        names = json.loads(body["names"])
        if len(log) < since or any(
            len(blobs.get(name, b"")) != size for name, size in names.items()
        ):
            return False
        if self._number is not None and int(body["number"]) != self._number + 1:
            self._events.reconnected()
        self._number = int(body["number"])
        log = log[:since] + [bytes(entry) for entry in body.get("entries", [])]
        self._shared.log = None if int(body["end"]) < 0 else log
        self._shared.over = bool(body["over"])
        self._shared.blobs = {None: {name: bytes(blobs[name]) for name in names}}
        self._limit = None if body["limit"] < 0 else int(body["limit"])
        self._stored_sizes = json.loads(body["kept"])
        for question, data in zip(body.get("asked", []), body.get("answers", []), strict=True):
            self._answered(question, bytes(data))
        self.hand_out()
        for data in body.get("told", []):
            if self._hear is not None and not self._closed:
                self._hear(bytes(data))
        return True

    def reply(self, is_processed: bool = True) -> Table:
        """Return the table that goes back with the exchange.

        Args:
            is_processed: whether the broadcasts were processed; otherwise they are sent again.
        """
        entry_count = len(self._shared.log or ())
        table = {
            "have": entry_count,
            "heard": is_processed,
            "waits": self._waits,
            "client": self.client,
            **self._outbox,
        }
        self._waits = False
        self._clear()
        return table

    def state(self) -> Table:
        """Return the state that a later process of this node needs."""
        blobs = self._shared.blobs.get(None, {})
        return {
            "log": list(self._shared.log or ()),
            "names": list(blobs),
            "blobs": list(blobs.values()),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore an earlier process' state, unless this one has more."""
        log = [bytes(entry) for entry in state.get("log", [])]
        if len(log) > len(self._shared.log or ()):
            self._shared.log = log
        blobs = zip(state.get("names", []), map(bytes, state.get("blobs", [])), strict=True)
        self._shared.blobs = {None: dict(blobs)}

    async def status(self, seconds: float) -> bytes | None:
        """Return None: nodes can't ask for the status."""
        return None

    async def put(self, name: str, data: bytes) -> None:
        self._open()
        check_room(name, data, self._limit, self._stored_sizes)
        self._stored_sizes[name] = len(data)
        self._outbox["stored"].append(name)
        self._outbox["contents"].append(bytes(data))

    async def drop(self, owner: str | None, name: str) -> None:
        self._outbox["dropped"].append(name)

    async def listen(self, take: Callable[[bytes], None]) -> None:
        self._hear = take

    async def send(self, client: str, kind: str, data: bytes) -> None:
        self._say({"client": client, "what": kind}, data)

    def _say(self, header: Mapping[str, str], data: bytes) -> None:
        self._open()
        self._outbox["said"].append(json.dumps(header))
        self._outbox["data"].append(bytes(data))

    async def ask(self, client: str, kind: str, data: bytes, seconds: float) -> bytes | None:
        """Send a question.

        The answer comes with a later exchange, and is returned when the question is repeated.
        """
        self._question(client, kind, data)
        answer = self._answers.pop(f"{kind} {client}", None)
        self._waits = self._waits or answer is None
        return answer

    def _question(self, client: str, kind: str, data: bytes) -> str:
        question = f"{next(self._names)} {kind} {client}"
        self._say({"client": client, "what": kind, "question": question}, data)
        return question

    def _answered(self, question: str, data: bytes) -> None:
        self._answers[question.partition(" ")[2]] = data
