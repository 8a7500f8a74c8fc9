"""A transport over Flower's Grid: a hub in the ServerApp, and exchanges with nodes.

Coordinators are at the hub (`fedseed.transport.memory`), where a proxy client stands for each node.
What the proxy receives goes to the node with the next exchange, and the node's answer is sent at
the hub (`fedseed.transport.flower_wire`). Flower knows which nodes are connected, so nothing is
sent twice, and no heartbeats are needed.
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
from fedseed.text import show_text
from fedseed.transport import flower_wire as wire
from fedseed.transport.base import QUIET, Events, Receive, Rejected, Working
from fedseed.transport.memory import MemoryClient, MemoryCoordinator, MemoryTransport, Shared

# seconds between two checks for replies; the pause doubles while nothing happens
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
AGAIN_SECONDS = 10.0  # seconds until a failed node is asked again
MOST_FAILED = 3  # failures in a row of every node, which end the run
MOST_RESTLESS = 8  # most exchanges in a row that a node itself requests; a new node needs three
ANSWER_SECONDS = 5.0  # seconds for the coordinator's answer to a node's question
# seconds that Flower keeps a message beyond the wait for its answer
SPARE_SECONDS = 60.0
MOST_TOLD = 1000  # broadcasts that wait for a node
MOST_CLIENTS = 100_000  # of all nodes
# Flower's codes of an app that could not be loaded, or raised an exception
QUOTING_CODES = (1, 2)
_EXCEPTION = re.compile(r"<class '([\w.]{1,80})'>", re.ASCII)


def describe_error(error: Any) -> str:
    """Return the text in the coordinator's log for an error that Flower sends in place of a reply.

    For an exception in a node's ClientApp Flower sends its text, too, which may quote an example:
    only the exception's type is logged.

    Args:
        error: Flower's `Error`.
    """
    if error.code not in QUOTING_CODES:
        return str(error.reason)
    kind = _EXCEPTION.search(str(error.reason))
    exception = "an exception" if kind is None else kind[1]
    return f"{exception} in its ClientApp: see the text in the node's own output"


@dataclass
class _Node:
    """The ServerApp's state of a node."""

    number: int  # Flower's
    proxy: MemoryClient | None = None  # its client at the hub; None: its name is not known yet
    have: int = 0  # the last log entry that it holds
    # sizes of the coordinator's blobs that it holds, by name
    blobs: dict[str, int] = field(default_factory=dict)
    # broadcasts that wait for it
    broadcasts: deque[bytes] = field(default_factory=lambda: deque(maxlen=MOST_TOLD))
    urgent: bool = True  # whether it needs an exchange soon; a new node is asked for its name
    # answers to its questions, by their numbers, with client and kind
    answers: dict[str, bytes] = field(default_factory=dict)
    # its questions without an answer
    asking: set["asyncio.Task[None]"] = field(default_factory=set)
    # the message whose reply is waited for, and the broadcasts in it
    exchange: tuple[str, list[bytes]] | None = None
    since: float = 0.0  # when that message was sent
    exchanges: int = 0
    failed: int = 0  # failures in a row
    retry_at: float = 0.0  # the next exchange begins after this time
    restless: int = 0  # exchanges in a row that it has requested itself
    problem: str = ""  # description of its last failure


class FlowerTransport(MemoryTransport, Working):
    """A run's transport in its ServerApp: it makes exchanges with Flower's nodes while a
    coordinator listens.

    Args:
        grid: Flower's Grid.
        run: the run's name.
        patience: seconds after which a node that does not answer is given up.
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
        """Add a listening coordinator; exchanges begin with the first one."""
        self._listeners[end] = rejected
        if self._task is None:
            self.work(self._keep_going())

    async def end(self, end: "FlowerCoordinator") -> None:
        """Remove a listening coordinator; exchanges end with the last one."""
        if self._listeners.pop(end, None) is not None and not self._listeners:
            await self.stop()
            self._task = None
            for node in self._nodes.values():
                await self._forget(node)

    def present(self, name: str) -> bool:
        """Return whether the node of a client is connected, and its last exchange did not fail."""
        node = self._nodes.get(self._node_of.get(name, -1))
        return node is not None and not node.failed

    def hurry(self, receivers: Collection[str] | None) -> None:
        """Deliver a broadcast soon to these clients (None: all).

        Others receive it with a later exchange.
        """
        for node in self._nodes.values():
            if receivers is None or any(
                self._node_of.get(name) == node.number for name in receivers
            ):
                node.urgent = True

    def _reject(self, sender: str, reason: str) -> None:
        for rejected in self._listeners.values():
            rejected(sender, reason)

    async def _keep_going(self) -> None:
        pause = SHORTEST_PAUSE
        while True:
            try:
                is_active = await self._round()
            except Exception as error:  # Flower's errors are of many types
                for end in self._listeners:
                    end.fail(f"Flower's Grid: {type(error).__name__}: {error}")
                return
            pause = SHORTEST_PAUSE if is_active else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _round(self) -> bool:
        """Update the nodes, take their replies, begin exchanges; return whether there was any."""
        node_ids = set(await asyncio.to_thread(self._grid.get_node_ids))
        for number in node_ids - self._nodes.keys():
            self._nodes[number] = _Node(number)
        for number in self._nodes.keys() - node_ids:
            await self._forget(self._nodes.pop(number))
        replies = await self._replies()
        for node, reply in replies:
            await self._take(node, reply)
        nodes = list(self._nodes.values())
        if nodes and all(node.failed >= MOST_FAILED for node in nodes):
            for end in self._listeners:
                end.fail(
                    f"every node has failed {MOST_FAILED} times; the first node's reason: "
                    f"{nodes[0].problem}"
                )
        has_sent = False
        for node in nodes:
            if (
                node.exchange is None
                and not node.asking
                and node.urgent
                and time.monotonic() >= node.retry_at
            ):
                await self._send(node)
                has_sent = True
        return bool(replies) or has_sent

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
            byte_limit: int | None = 0
            node_blobs: dict[str, bytes] = {}
            if name:
                byte_limit = shared.limits.get(name, 0)
                node_blobs = shared.blobs.get(name, {})
            stored_sizes = {key: len(blob) for key, blob in node_blobs.items()}
        lacking = [key for key, blob in blobs.items() if node.blobs.get(key) != len(blob)]
        broadcasts = list(node.broadcasts)  # more broadcasts may be added meanwhile
        node.broadcasts.clear()
        body = {
            "number": node.exchanges,
            "since": node.have,
            "entries": entries,
            "end": -1 if log is None else len(log),
            "over": shared.over,
            "told": broadcasts,
            "names": json.dumps({key: len(blob) for key, blob in blobs.items()}),
            "lacking": lacking,
            "blobs": [blobs[key] for key in lacking],
            "limit": -1 if byte_limit is None else byte_limit,
            "kept": json.dumps(stored_sizes),
            "asked": list(node.answers),
            "answers": list(node.answers.values()),
        }
        message = Message(
            wire.content(body), node.number, "query", ttl=self._patience + SPARE_SECONDS
        )
        node.exchanges, node.urgent, node.since = node.exchanges + 1, False, time.monotonic()
        identities = [
            identity
            for identity in await asyncio.to_thread(self._grid.push_messages, [message])
            if identity
        ]
        if identities:
            node.exchange = str(identities[0]), broadcasts
            node.blobs = {key: len(blob) for key, blob in blobs.items()}
        else:
            self._fail(node, "it can't be reached", broadcasts)

    async def _replies(self) -> list[tuple[_Node, Any]]:
        """Return the replies that have come; None for a node that has not answered in time."""
        waited = {
            node.exchange[0]: node for node in self._nodes.values() if node.exchange is not None
        }
        if not waited:
            return []
        replies: list[tuple[_Node, Any]] = []
        for message in await asyncio.to_thread(self._grid.pull_messages, list(waited)):
            node = waited.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                replies.append((node, message))
        oldest = time.monotonic() - self._patience
        return replies + [(node, None) for node in waited.values() if node.since < oldest]

    async def _take(self, node: _Node, message: Any) -> None:
        """Take a node's reply; None: it has not answered in time."""
        assert node.exchange is not None
        (_, broadcasts), node.exchange = node.exchange, None
        try:
            if message is None:
                raise MessageError(f"no answer within {self._patience:g} s")
            if message.has_error():
                raise MessageError(f"Flower reports: {describe_error(message.error)}")
            reply, messages = wire.NodeReply.parse(message)
            node.have = reply.have
            node.restless = node.restless + 1 if reply.waits or not reply.heard else 0
            if node.restless > MOST_RESTLESS:
                raise MessageError(
                    f"it has requested another exchange {node.restless} times in a row"
                )
            await self._say(node, reply, messages)
        except (MessageError, NetworkError) as error:
            self._fail(node, str(error), broadcasts)
            return
        if not node.restless:
            node.failed = 0
        if reply.heard:
            node.answers = {}
        else:
            node.urgent, node.blobs = True, {}
            self._requeue(node, broadcasts)

    async def _say(
        self, node: _Node, reply: wire.NodeReply, messages: list[tuple[wire.Said, bytes]]
    ) -> None:
        """Carry out a node's reply at the hub: blobs, messages and questions."""
        if node.proxy is None:
            other_node = self._speaks(node, reply.client)
            if other_node is not None:
                raise MessageError(
                    f"it has the name {reply.client}, but node {other_node} already speaks for "
                    "this client"
                )
            node.proxy = MemoryClient(self._shared, reply.client, QUIET)
            await node.proxy.listen(node.broadcasts.append)
        for name, data in zip(reply.stored, reply.contents, strict=True):
            self._shared.store(node.proxy.owner, name, data)
        for name in reply.dropped:
            self._shared.drop(node.proxy.owner, name)
        for message, data in messages:
            other_node = self._speaks(node, message.client)
            if other_node is not None:
                self._reject(
                    message.client,
                    f"node {node.number} speaks for it, but node {other_node} already does",
                )
            elif message.question is None:
                await node.proxy.send(message.client, message.what, data)
            else:
                task = asyncio.create_task(
                    self._answer(node, message.client, message.what, data, message.question)
                )
                node.asking.add(task)
                task.add_done_callback(node.asking.discard)
        node.urgent = node.urgent or reply.waits

    def _speaks(self, node: _Node, client: str) -> int | None:
        """Let a node speak for a client; return another node that already does, if any."""
        owner = self._node_of.get(client)
        if owner is not None and owner != node.number and owner in self._nodes:
            return owner
        if owner is None and len(self._node_of) >= MOST_CLIENTS:
            raise MessageError(f"nodes speak for {MOST_CLIENTS:,} clients already")
        self._node_of[client] = node.number
        return None

    async def _answer(
        self, node: _Node, client: str, kind: str, data: bytes, question: str
    ) -> None:
        assert node.proxy is not None
        answer = await node.proxy.ask(client, kind, data, ANSWER_SECONDS)
        if answer is not None:
            node.answers[question] = answer

    def _requeue(self, node: _Node, broadcasts: Sequence[bytes]) -> None:
        """Put broadcasts that a node has not processed before the newer ones."""
        newer = list(node.broadcasts)
        node.broadcasts.clear()
        node.broadcasts.extend([*broadcasts, *newer])

    def _fail(self, node: _Node, reason: str, broadcasts: Sequence[bytes]) -> None:
        """Record that a node's exchange has failed, so that everything is sent to it again."""
        node.failed, node.restless = node.failed + 1, 0
        self._requeue(node, broadcasts)
        node.urgent, node.retry_at = True, time.monotonic() + AGAIN_SECONDS
        node.blobs, node.have = {}, 0
        node.problem = show_text(reason)
        name = f"node {node.number}" if node.proxy is None else node.proxy.owner
        self._reject(str(name), node.problem)


class FlowerCoordinator(MemoryCoordinator):
    """The coordinator's end at the hub; nodes have exchanges while it listens."""

    lasting = False
    resend_seconds = float("inf")  # Flower delivers, or reports that it can't

    def __init__(self, shared: Shared, nodes: FlowerTransport, events: Events) -> None:
        super().__init__(shared, None, events)
        self._nodes = nodes

    def fail(self, reason: str) -> None:
        """Report that the nodes can't be reached any more."""
        self._events.failed(NetworkError(reason))

    async def listen(
        self, receive: Receive, status: Callable[[], bytes], rejected: Rejected
    ) -> None:
        await super().listen(receive, status, rejected)
        self._nodes.begin(self, rejected)

    async def broadcast(self, data: bytes, receivers: Collection[str] | None = None) -> None:
        await super().broadcast(data)
        # after the nodes' proxies have received it
        self._loop.call_soon(self._nodes.hurry, receivers)

    def present(self, name: str) -> bool | None:
        return self._nodes.present(name)

    async def close(self) -> None:
        await self._nodes.end(self)
        await super().close()
