"""A client's end in a Flower node: it says and hears only what an exchange carries (`fedseed.transport.flower_wire`).

It has a copy of the log and of the coordinator's blobs, which Flower's state of the node keeps from one process to the
next. So whoever follows the log or fetches a blob finds it here, and need not wait for another exchange.
"""

import asyncio
import itertools
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from fedseed.errors import MessageError, NetworkError
from fedseed.transport.base import QUIET, ClientEnd, Events, Log, Stop, Take
from fedseed.transport.flower_wire import Table


class NodeEnd(ClientEnd):
    """The end of one process of a node.

    Args:
        client: the first of the clients that the process speaks for.
        resident: the process stays: what it asks for comes with one of the next exchanges. Otherwise it may end after
            each, and takes an answer to the same question of a process before it.
        events: told when an exchange was lost.
    """

    largest = 256 * 1024

    def __init__(self, client: str = "", resident: bool = False, events: Events = QUIET) -> None:
        self.client = client
        self.said = asyncio.Event()  # there is something for the next exchange to carry
        self._resident = resident
        self._events = events
        self._hear: Callable[[bytes], None] | None = None
        self._log: list[bytes] | None = None
        self._over = False
        self._blobs: dict[str, bytes] = {}  # the coordinator's
        self._kept: dict[str, int] = {}  # sizes of this end's own, by name
        self._limit = 0
        self._followers: list[_Follower] = []
        self._questions: dict[str, asyncio.Future[bytes]] = {}
        self._answers: dict[str, bytes] = {}  # to questions of a process before this one, by client and kind
        self._waits = False
        self._exchanges = 0  # that have begun
        self._next = asyncio.Event()
        self._number: int | None = None
        self._closed = False
        self._names = (f"{secrets.token_hex(4)}-{number}" for number in itertools.count())
        self._out: Table = {}
        self._clear()

    def _clear(self) -> None:
        self._out = {"said": [], "data": [], "stored": [], "contents": [], "dropped": []}
        self.said.clear()

    # -- exchanges -----------------------------------------------------------------------------------------------------

    def take(self, body: Mapping[str, Any]) -> bool:
        """Take what the ServerApp sends; False: the node lacks log entries or blobs that it thinks are here."""
        log, since, end = self._log or [], int(body["since"]), int(body["end"])
        blobs = {**self._blobs, **dict(zip(body.get("lacking", []), body.get("blobs", []), strict=True))}
        names = json.loads(body["names"])
        if len(log) < since or any(len(blobs.get(name, b"")) != size for name, size in names.items()):
            return False
        if self._number is not None and int(body["number"]) != self._number + 1:
            self._events.again()
        self._number = int(body["number"])
        log = log[:since] + [bytes(entry) for entry in body.get("entries", [])]
        self._log, self._over = None if end < 0 else log, bool(body["over"])
        self._blobs = {name: bytes(blobs[name]) for name in names}
        self._limit, self._kept = int(body["limit"]), json.loads(body["kept"])
        for question, data in zip(body.get("asked", []), body.get("answers", []), strict=True):
            waiting = self._questions.pop(question, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(bytes(data))
            elif waiting is None and not self._resident:
                self._answers[question.partition(" ")[2]] = bytes(data)
        self._exchanges += 1
        self._next.set()
        self._next = asyncio.Event()
        for follower in list(self._followers):
            follower.hand_out(log)
        for data in body.get("told", []):
            if self._hear is not None and not self._closed:
                self._hear(bytes(data))
        return True

    def reply(self, heard: bool = True) -> Table:
        """What the exchange carries back.

        Args:
            heard: whether use could be made of what was told; otherwise it is told again.
        """
        said = {"have": len(self._log or ()), "heard": heard, "waits": self._waits, "resident": self._resident}
        found = {**said, "client": self.client, **self._out}
        self._waits = False
        self._clear()
        return found

    def state(self) -> Table:
        """What a later process of this node needs."""
        return {
            "log": [] if self._log is None else list(self._log), "names": list(self._blobs),
            "blobs": list(self._blobs.values()),
        }  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what an earlier process had, unless this one has more."""
        log = [bytes(entry) for entry in state.get("log", [])]
        if len(log) > len(self._log or ()):
            self._log = log
        self._blobs = dict(zip(state.get("names", []), map(bytes, state.get("blobs", [])), strict=True))

    async def _freshly(self) -> None:
        """In a process that stays: wait for an exchange that begins after this, so that what is found is new."""
        if self._closed:
            raise NetworkError("the connection is closed")
        for _ in range(2 if self._resident else 0):  # what was said goes with the first, and is done by the second
            self.said.set()
            await self._next.wait()

    # -- End -----------------------------------------------------------------------------------------------------------

    async def status(self, seconds: float) -> bytes | None:
        """Nodes can't ask for it."""
        return None

    async def log(self) -> Log | None:
        await self._freshly()
        return None if self._log is None else Log(len(self._log), self._over)

    async def follow(self, after: int, take: Take) -> Stop:
        follower = _Follower(self._followers, after, take)
        follower.hand_out(self._log or [])
        return follower.stop

    async def put(self, name: str, data: bytes) -> None:
        if self._closed:
            raise NetworkError("the connection is closed")
        others = sum(size for other, size in self._kept.items() if other != name)
        if self._limit >= 0 and others + len(data) > self._limit:
            raise NetworkError(f"{len(data):,} bytes can't be stored as {name}: at most {self._limit:,} bytes are kept")
        self._kept[name] = len(data)
        self._out["stored"].append(name)
        self._out["contents"].append(bytes(data))
        await self._freshly()

    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        await self._freshly()
        blob = self._blobs.get(name) if owner is None else None
        if blob is None:
            raise MessageError(f"the object {name} can't be had: it is not there")
        if len(blob) != size:
            raise MessageError(f"an object of {len(blob)} bytes, {size:,} were announced")
        return blob

    async def drop(self, owner: str | None, name: str) -> None:
        self._out["dropped"].append(name)
        self.said.set()

    async def close(self) -> None:
        self._closed = True
        self._followers.clear()

    # -- ClientEnd -----------------------------------------------------------------------------------------------------

    async def listen(self, take: Callable[[bytes], None]) -> None:
        self._hear = take
        await self._freshly()

    async def send(self, client: str, what: str, data: bytes) -> None:
        self._say({"client": client, "what": what}, data)

    def _say(self, about: Mapping[str, str], data: bytes) -> None:
        if self._closed:
            raise NetworkError("the connection is closed")
        self._out["said"].append(json.dumps(about))
        self._out["data"].append(bytes(data))
        self.said.set()

    async def ask(self, client: str, what: str, data: bytes, seconds: float) -> bytes | None:
        question = f"{next(self._names)} {what} {client}"
        self._say({"client": client, "what": what, "question": question}, data)
        if not self._resident:
            answer = self._answers.pop(f"{what} {client}", None)
            self._waits = self._waits or answer is None
            return answer
        waiting = self._questions[question] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(waiting, seconds)
        except TimeoutError:
            return None
        finally:
            self._questions.pop(question, None)


class _Follower:
    """Hands out the log's entries from a number on."""

    def __init__(self, others: "list[_Follower]", after: int, take: Take) -> None:
        self._others, self._last, self._take = others, after, take
        others.append(self)

    def hand_out(self, log: list[bytes]) -> None:
        """Hand out those that are new."""
        while self in self._others and len(log) > self._last:
            self._last += 1
            self._take(self._last, log[self._last - 1])

    async def stop(self) -> None:
        if self in self._others:
            self._others.remove(self)
