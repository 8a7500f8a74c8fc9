"""A transport over Flower's Grid: a hub in the ServerApp (`fedseed.transport.memory`), and
exchanges with nodes.

Coordinators are at the hub. There a client stands in for each node: what it hears is sent to the
node with the next exchange, and what the node answers is sent at the hub
(`fedseed.transport.flower_wire`). Flower knows which nodes are there, so nothing has to be sent
twice, and no signs of life are needed.
"""

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedseed.errors import MessageError, NetworkError
from fedseed.text import shown
from fedseed.transport import flower_wire as wire
from fedseed.transport.base import QUIET, Events, Receive, Rejected, Working
from fedseed.transport.memory import MemoryClient, MemoryCoordinator, MemoryTransport, Shared

# seconds between looks for replies, which double from one to the other
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
AGAIN_SECONDS = 10.0  # until a node that has failed is asked again
MOST_FAILED = 3  # times in a row that every node has failed, which ends the run
MOST_RESTLESS = 8  # exchanges in a row that a node itself asks for; one that is new takes three
ANSWER_SECONDS = 5.0  # for the coordinator's answer to a node's question
# for which Flower keeps a message beyond the time that its answer is waited for
SPARE_SECONDS = 60.0
MOST_TOLD = 1000  # most broadcasts that wait for a node
MOST_CLIENTS = 100_000  # that all nodes speak for
# Flower's codes of an app that could not be loaded, or raised an exception
QUOTING_CODES = (1, 2)
_EXCEPTION = re.compile(r"<class '([\w.]{1,80})'>", re.ASCII)


def reported(error: Any) -> str:
    """Return what the coordinator's log says of an error that Flower sends in a reply's place.

    Of an exception in a node's ClientApp Flower sends the text, too, which may quote an example: no
    more than its kind is kept.

    Args:
        error: Flower's `Error`.
    """
    if error.code not in QUOTING_CODES:
        return str(error.reason)
    kind = _EXCEPTION.search(str(error.reason))
    raised = "an exception" if kind is None else kind[1]
    return f"{raised} in its ClientApp: the node's own output has its text"


@dataclass
class _Node:
    """A node, as far as the ServerApp knows it."""

    number: int  # Flower's
    proxy: MemoryClient | None = None  # stands for it at the hub; None: it has not said who it is
    have: int = 0  # the last log entry that it holds
    # the coordinator's blobs that it holds, by name and size
    blobs: dict[str, int] = field(default_factory=dict)
    # what it is to hear
    told: deque[bytes] = field(default_factory=lambda: deque(maxlen=MOST_TOLD))
    urgent: bool = True  # it needs an exchange soon: at first, as it has not been asked who it is
    # to its questions, by their numbers, with client and kind
    answers: dict[str, bytes] = field(default_factory=dict)
    # its questions that have no answer yet
    asking: set["asyncio.Task[None]"] = field(default_factory=set)
    # the message whose reply is waited for, with what it told
    exchange: tuple[str, list[bytes]] | None = None
    since: float = 0.0  # when that was sent
    exchanges: int = 0  # how many there were
    failed: int = 0  # how often in a row
    again: float = 0.0  # no other exchange is begun before this time
    restless: int = 0  # exchanges in a row that it has asked for itself
    why: str = ""  # why it has failed


class FlowerTransport(MemoryTransport, Working):
    """The way to one run, for its ServerApp: exchanges with Flower's nodes, as long as a
    coordinator listens.

    Args:
        grid: Flower's Grid.
        run: the run's name.
        patience: seconds after which a node that has not answered is given up.
    """

    def __init__(self, grid: Any, run: str, patience: float = 600.0) -> None:
        super().__init__(run)
        self._grid, self._patience = grid, patience
        self._nodes: dict[int, _Node] = {}
        self._node_of: dict[str, int] = {}  # by client
        self._listeners: dict[FlowerCoordinator, Rejected] = {}

    async def coordinator(self, events: Events = QUIET) -> "FlowerCoordinator":
        return FlowerCoordinator(self._shared, self, events)

    def begin(self, end: "FlowerCoordinator", rejected: Rejected) -> None:
        """Add a coordinator that listens; with the first one, exchanges begin."""
        self._listeners[end] = rejected
        if self._task is None:
            self.work(self._keep_going())

    async def end(self, end: "FlowerCoordinator") -> None:
        """Remove a coordinator that listened; with the last one, exchanges end."""
        if self._listeners.pop(end, None) is not None and not self._listeners:
            await self.stop()
            self._task = None
            for node in self._nodes.values():
                await self._forget(node)

    def present(self, name: str) -> bool:
        """Return whether the node that speaks for a client is there, and has not just failed."""
        node = self._nodes.get(self._node_of.get(name, -1))
        return node is not None and not node.failed

    def hurry(self, to: Collection[str] | None) -> None:
        """Make these clients (None: all) hear a broadcast soon.

        Others hear it when there is more to say.
        """
        for node in self._nodes.values():
            if to is None or any(self._node_of.get(name) == node.number for name in to):
                node.urgent = True

    def _reject(self, who: str, why: str) -> None:
        for rejected in self._listeners.values():
            rejected(who, why)

    async def _keep_going(self) -> None:
        pause = SHORTEST_PAUSE
        while True:
            try:
                moved = await self._round()
            except Exception as error:  # Flower's own, of whatever kind
                for end in self._listeners:
                    end.fail(f"Flower's Grid: {type(error).__name__}: {error}")
                return
            pause = SHORTEST_PAUSE if moved else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _round(self) -> bool:
        """Sees who is there, takes replies that have come, begins exchanges.

        Returns whether anything happened.
        """
        there = set(await asyncio.to_thread(self._grid.get_node_ids))
        for number in there - self._nodes.keys():
            self._nodes[number] = _Node(number)
        for number in self._nodes.keys() - there:
            await self._forget(self._nodes.pop(number))
        replies = await self._replies()
        for node, reply in replies:
            await self._take(node, reply)
        nodes = list(self._nodes.values())
        if nodes and all(node.failed >= MOST_FAILED for node in nodes):
            for end in self._listeners:
                end.fail(
                    f"every node has failed {MOST_FAILED} times; the first says: {nodes[0].why}"
                )
        begun = False
        for node in nodes:
            if (
                node.exchange is None
                and not node.asking
                and node.urgent
                and time.monotonic() >= node.again
            ):
                await self._send(node)
                begun = True
        return bool(replies) or begun

    async def _forget(self, node: _Node) -> None:
        for task in node.asking:
            task.cancel()
        if node.proxy is not None:
            await node.proxy.close()
            node.proxy = None

    async def _send(self, node: _Node) -> None:
        from flwr.app import Message

        shared = self._shared
        with shared.lock:
            log, blobs = shared.log, dict(shared.blobs.get(None, {}))
            node.have = min(node.have, len(log or ()))
            entries = [] if log is None else log[node.have :]
            name = None if node.proxy is None else node.proxy.owner
            most, mine = (
                shared.limits.get(name, 0) if name else 0,
                shared.blobs.get(name, {}) if name else {},
            )
            kept = {key: len(blob) for key, blob in mine.items()}
        lacking = [key for key, blob in blobs.items() if node.blobs.get(key) != len(blob)]
        told = list(node.told)  # more may be broadcast while this is sent
        node.told.clear()
        body = {
            "number": node.exchanges,
            "since": node.have,
            "entries": entries,
            "end": -1 if log is None else len(log),
            "over": shared.over,
            "told": told,
            "names": json.dumps({k: len(b) for k, b in blobs.items()}),
            "lacking": lacking,
            "blobs": [blobs[key] for key in lacking],
            "limit": -1 if most is None else most,
            "kept": json.dumps(kept),
            "asked": list(node.answers),
            "answers": list(node.answers.values()),
        }
        message = Message(
            wire.content(body), node.number, "query", ttl=self._patience + SPARE_SECONDS
        )
        node.exchanges, node.urgent, node.since = node.exchanges + 1, False, time.monotonic()
        sent = [
            identity
            for identity in await asyncio.to_thread(self._grid.push_messages, [message])
            if identity
        ]
        if sent:
            node.exchange = str(sent[0]), told
            node.blobs = {key: len(blob) for key, blob in blobs.items()}
        else:
            self._fail(node, "it can't be reached", told)

    async def _replies(self) -> list[tuple[_Node, Any]]:
        """Return replies that have come; None for a node whose time is over."""
        waited = {
            node.exchange[0]: node for node in self._nodes.values() if node.exchange is not None
        }
        if not waited:
            return []
        found: list[tuple[_Node, Any]] = []
        for message in await asyncio.to_thread(self._grid.pull_messages, list(waited)):
            node = waited.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                found.append((node, message))
        late = time.monotonic() - self._patience
        return found + [(node, None) for node in waited.values() if node.since < late]

    async def _take(self, node: _Node, message: Any) -> None:
        """Take a node's reply; None: there was none in time."""
        assert node.exchange is not None
        (_, told), node.exchange = node.exchange, None
        try:
            if message is None:
                raise MessageError(f"no answer within {self._patience:g} s")
            if message.has_error():
                raise MessageError(f"Flower reports: {reported(message.error)}")
            reply, said = wire.Reply.read(message)
            node.have = reply.have
            node.restless = node.restless + 1 if reply.waits or not reply.heard else 0
            if node.restless > MOST_RESTLESS:
                raise MessageError(f"it has asked to be asked again {node.restless} times in a row")
            await self._say(node, reply, said)
        except (MessageError, NetworkError) as error:
            self._fail(node, str(error), told)
            return
        if not node.restless:
            node.failed = 0
        if reply.heard:
            node.answers = {}
        else:
            node.urgent, node.blobs = True, {}
            self._tell_again(node, told)

    async def _say(
        self, node: _Node, reply: wire.Reply, said: list[tuple[wire.Said, bytes]]
    ) -> None:
        """Do at the hub what a node's reply asks: stores and drops blobs, sends messages and
        questions.
        """
        if node.proxy is None:
            if (other := self._speaks(node, reply.client)) is not None:
                raise MessageError(
                    f"it goes by the name of {reply.client}, for which node {other} speaks already"
                )
            node.proxy = MemoryClient(self._shared, reply.client, QUIET)
            await node.proxy.listen(node.told.append)
        for name, data in zip(reply.stored, reply.contents, strict=True):
            self._shared.store(node.proxy.owner, name, data)
        for name in reply.dropped:
            self._shared.drop(node.proxy.owner, name)
        for one, data in said:
            if (other := self._speaks(node, one.client)) is not None:
                self._reject(
                    one.client, f"node {node.number} speaks for it, as node {other} does already"
                )
            elif one.question is None:
                await node.proxy.send(one.client, one.what, data)
            else:
                task = asyncio.create_task(
                    self._answer(node, one.client, one.what, data, one.question)
                )
                node.asking.add(task)
                task.add_done_callback(node.asking.discard)
        node.urgent = node.urgent or reply.waits

    def _speaks(self, node: _Node, client: str) -> int | None:
        """Let a node speak for a client.

        Returns the node that does so already, if another one does.
        """
        owner = self._node_of.get(client)
        if owner is not None and owner != node.number and owner in self._nodes:
            return owner
        if owner is None and len(self._node_of) >= MOST_CLIENTS:
            raise MessageError(f"nodes speak for {MOST_CLIENTS:,} clients already")
        self._node_of[client] = node.number
        return None

    async def _answer(
        self, node: _Node, client: str, what: str, data: bytes, question: str
    ) -> None:
        assert node.proxy is not None
        answer = await node.proxy.ask(client, what, data, ANSWER_SECONDS)
        if answer is not None:
            node.answers[question] = answer

    def _tell_again(self, node: _Node, told: Sequence[bytes]) -> None:
        """Put what a node could make no use of before what is new to it."""
        new = list(node.told)
        node.told.clear()
        node.told.extend([*told, *new])

    def _fail(self, node: _Node, why: str, told: Sequence[bytes]) -> None:
        """Note that a node has not answered as it should.

        Asked again later, it hears what it has missed.
        """
        node.failed, node.restless = node.failed + 1, 0
        self._tell_again(node, told)
        node.urgent, node.again = True, time.monotonic() + AGAIN_SECONDS
        node.blobs, node.have = {}, 0
        node.why = shown(why)
        name = f"node {node.number}" if node.proxy is None else node.proxy.owner
        self._reject(str(name), node.why)


class FlowerCoordinator(MemoryCoordinator):
    """The coordinator's end, which is at the hub.

    While it listens, there are exchanges with the nodes.
    """

    lasting = False
    resend_seconds = float("inf")  # Flower delivers, or says that it can't

    def __init__(self, shared: Shared, nodes: FlowerTransport, events: Events) -> None:
        super().__init__(shared, None, events)
        self._nodes = nodes

    def fail(self, why: str) -> None:
        """Reports that the nodes can't be reached any more."""
        self._events.failed(NetworkError(why))

    async def listen(
        self, receive: Receive, status: Callable[[], bytes], rejected: Rejected
    ) -> None:
        await super().listen(receive, status, rejected)
        self._nodes.begin(self, rejected)

    async def broadcast(self, data: bytes, to: Collection[str] | None = None) -> None:
        await super().broadcast(data)
        self._loop.call_soon(self._nodes.hurry, to)  # once the nodes' proxies have heard it

    def present(self, name: str) -> bool | None:
        return self._nodes.present(name)

    async def close(self) -> None:
        await self._nodes.end(self)
        await super().close()
