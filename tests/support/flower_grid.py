"""A Grid whose nodes stay: each is a client's end in this process, for the tests that every
transport must pass.

The few classes here stand for Flower's messages; where Flower is installed, tests/flower takes its
own."""

import asyncio
import itertools
import math
import pickle
import sys
from contextlib import suppress
from types import ModuleType, SimpleNamespace

from fedseed.transport import flower
from fedseed.transport import flower_wire as wire
from fedseed.transport.base import QUIET
from fedseed.transport.flower import FlowerTransport
from fedseed.transport.flower_node import NodeEnd


class ConfigRecord(dict):
    """Values as Flower's record takes them: numbers, texts, bytes, and lists of one of these."""

    def __init__(self, values):
        for value in values.values():
            kinds = {type(part) for part in (value if isinstance(value, list) else [value])}
            assert len(kinds) == 1 and kinds <= {int, float, str, bytes, bool}
        super().__init__(values)

    def deflate(self):
        return pickle.dumps(dict(self))

    @classmethod
    def inflate(cls, data):
        return cls(pickle.loads(data))


class RecordDict(dict):
    deflate = lambda self: b""  # noqa: E731
    config_records = property(lambda self: self)


class Context:
    """A node's configuration, and what is kept of it; or the ServerApp's."""

    def __init__(self, run_id, node_id, node_config, state, run_config):
        self.run_id, self.node_config, self.state, self.run_config = (
            run_id,
            node_config,
            state,
            run_config,
        )


class Error:
    """Why there is no answer."""

    def __init__(self, code, reason):
        self.code, self.reason = code, reason


class Message:
    """What carries records, or an error's text."""

    def __init__(self, content, dst_node_id=0, message_type="", ttl=0.0, reply_to=None):
        self.error = content if isinstance(content, Error) else None
        self.content = None if self.error else content
        answered = None if reply_to is None else reply_to.metadata._message_id
        self.metadata = SimpleNamespace(
            dst_node_id=dst_node_id,
            message_type=message_type,
            _message_id="",
            reply_to_message_id=answered,
        )

    has_error = lambda self: self.error is not None  # noqa: E731
    has_content = lambda self: self.error is None  # noqa: E731
    deflate = lambda self: b""  # noqa: E731


def messages(monkeypatch):
    """These in place of Flower's."""
    app = ModuleType("flwr.app")
    app.ConfigRecord, app.RecordDict, app.Message = ConfigRecord, RecordDict, Message
    monkeypatch.setitem(sys.modules, "flwr", ModuleType("flwr"))
    monkeypatch.setitem(sys.modules, "flwr.app", app)


class Resident(NodeEnd):
    """The end of a process that stays, and says at the next exchange what it has to say."""

    def __init__(self, client, events):
        super().__init__(client, events)
        self.said, self._next, self._waiting = asyncio.Event(), asyncio.Event(), {}

    def take(self, body):
        heard = super().take(body)
        if heard:
            self._next.set()
            self._next = asyncio.Event()
        return heard

    def reply(self, heard=True):
        self.said.clear()
        return {**super().reply(heard), "waits": True}

    async def _reach(self):
        """What was said goes with the next exchange, and is done by the one after it."""
        self._open()
        for _ in range(2):
            self.said.set()
            await self._next.wait()
        return self._shared

    async def put(self, name, data):
        await super().put(name, data)
        await self._reach()

    async def drop(self, owner, name):
        await super().drop(owner, name)
        self.said.set()

    async def listen(self, take):
        await super().listen(take)
        await self._reach()

    def _say(self, about, data):
        super()._say(about, data)
        self.said.set()

    async def ask(self, client, what, data, seconds):
        waiting = self._waiting[self._question(client, what, data)] = (
            asyncio.get_running_loop().create_future()
        )
        with suppress(TimeoutError):
            return await asyncio.wait_for(waiting, seconds)

    def _answered(self, question, data):
        if not self._waiting[question].done():
            self._waiting[question].set_result(data)


class Grid:
    """Carries messages to nodes that stay, each in the event loop in which it was made."""

    def __init__(self):
        # ends by their numbers; ends whose next message is lost
        self.nodes, self.losing = {}, set()
        self._replies, self._ids, self._tasks = {}, itertools.count(), set()

    def join(self, end):
        self.nodes[len(self.nodes) + 11] = end
        self._loop = asyncio.get_running_loop()

    def get_node_ids(self):
        return [number for number, end in self.nodes.items() if not end._closed]

    def push_messages(self, messages):
        for message in messages:
            message.metadata._message_id = str(next(self._ids))
            self._loop.call_soon_threadsafe(
                lambda m=message: self._tasks.add(asyncio.create_task(self._answer(m)))
            )
        return [message.metadata._message_id for message in messages]

    async def _answer(self, message):
        end = self.nodes[message.metadata.dst_node_id]
        if end in self.losing:
            self.losing.discard(end)
            reply = Message(Error(0, "lost"), reply_to=message)
        else:
            heard = end.take(wire.table(message))
            with suppress(TimeoutError):
                await asyncio.wait_for(end.said.wait(), 0.02)
            reply = Message(wire.content(end.reply(heard)), reply_to=message)
        self._replies[message.metadata._message_id] = reply

    def pull_messages(self, identities):
        return [self._replies.pop(identity) for identity in identities if identity in self._replies]


class AtGrid(FlowerTransport):
    """A ServerApp and its nodes in one process."""

    def __init__(self, run):
        self.at = Grid()
        super().__init__(self.at, run)

    async def client(self, name, events=QUIET):
        end = Resident(name, events)
        self.at.join(end)
        return end


class OverFlower:
    """The transport over Flower, for `tests/transport/test_contract.py`."""

    def __init__(self, monkeypatch):
        messages(monkeypatch)
        monkeypatch.setattr(flower, "AGAIN_SECONDS", 0.01)
        # nodes that stay ask to be asked without end
        monkeypatch.setattr(flower, "MOST_RESTLESS", math.inf)
        self._runs = {}

    def transport(self, run):
        return self._runs.setdefault(run, AtGrid(run))

    def interrupt(self, end):
        for run in self._runs.values():
            run.at.losing |= {end} & set(run.at.nodes.values())
