"""A Grid whose nodes stay: each is a client's end in this process, for the tests that every transport must pass.

Messages are Flower's own where it is installed, otherwise the few classes here in their place.
"""

import asyncio
import importlib.util
import itertools
import sys
import types
from contextlib import suppress
from dataclasses import dataclass, field

from fedseed.transport import flower_wire as wire
from fedseed.transport.base import QUIET
from fedseed.transport.flower import FlowerTransport
from fedseed.transport.flower_node import NodeEnd


class ConfigRecord(dict):
    """Values as Flower's record takes them: numbers, texts, bytes, and lists of one of these."""

    def __init__(self, values):
        for value in values.values():
            parts = value if isinstance(value, list) else [value]
            assert (
                parts and len({type(part) for part in parts}) == 1 and type(parts[0]) in (int, float, str, bytes, bool)
            )
        super().__init__(values)

    def deflate(self):
        return repr(dict(self)).encode()


class RecordDict(dict):
    @property
    def config_records(self):
        return self

    def deflate(self):
        return b""


@dataclass
class Error:
    code: int
    reason: str


class Message:
    def __init__(self, content, dst_node_id=0, message_type="", ttl=0.0, reply_to=None):
        self.content = content
        self.error = content if isinstance(content, Error) else None
        answered = None if reply_to is None else reply_to.metadata.message_id
        self.metadata = types.SimpleNamespace(
            dst_node_id=dst_node_id, message_type=message_type, message_id="", reply_to_message_id=answered
        )

    def has_error(self):
        return self.error is not None

    def has_content(self):
        return self.error is None

    def deflate(self):
        return b""


def messages(monkeypatch):
    """Sees to it that there are Flower's messages."""
    if importlib.util.find_spec("flwr") is None:
        flwr, app = types.ModuleType("flwr"), types.ModuleType("flwr.app")
        app.ConfigRecord, app.RecordDict, app.Message, app.Error = ConfigRecord, RecordDict, Message, Error
        monkeypatch.setitem(sys.modules, "flwr", flwr)
        monkeypatch.setitem(sys.modules, "flwr.app", app)


@dataclass
class Staying:
    """A node whose process stays."""

    end: NodeEnd
    losing: bool = False


@dataclass
class Grid:
    """Carries messages to nodes that stay, each in the event loop in which it was made."""

    nodes: dict = field(default_factory=dict)
    _replies: dict = field(default_factory=dict)
    _ids: itertools.count = field(default_factory=itertools.count)
    _tasks: set = field(default_factory=set)

    def join(self, end):
        self.nodes[len(self.nodes) + 11] = Staying(end)
        self._loop = asyncio.get_running_loop()

    def get_node_ids(self):
        return [number for number, node in self.nodes.items() if not node.end._closed]

    def push_messages(self, messages):
        made = []
        for message in messages:
            identity = str(next(self._ids))
            vars(message.metadata)["_message_id" if "_message_id" in vars(message.metadata) else "message_id"] = (
                identity
            )
            made.append(identity)
            self._loop.call_soon_threadsafe(self._begin, identity, message)
        return made

    def _begin(self, identity, message):
        self._tasks.add(asyncio.create_task(self._answer(identity, message)))

    async def _answer(self, identity, message):
        from flwr.app import Error, Message

        node = self.nodes[message.metadata.dst_node_id]
        if node.losing:
            node.losing = False
            self._replies[identity] = Message(Error(0, "lost"), reply_to=message)
            return
        heard = node.end.take(wire.table(message))
        with suppress(TimeoutError):
            await asyncio.wait_for(node.end.said.wait(), 0.02)
        self._replies[identity] = Message(wire.content(node.end.reply(heard)), reply_to=message)

    def pull_messages(self, identities):
        return [self._replies.pop(identity) for identity in identities if identity in self._replies]


class AtGrid(FlowerTransport):
    """A ServerApp and its nodes in one process."""

    def __init__(self, run):
        self.at = Grid()
        super().__init__(self.at, run, again=0.01)

    async def client(self, name, events=QUIET):
        end = NodeEnd(name, resident=True, events=events)
        self.at.join(end)
        return end


class OverFlower:
    """The transport over Flower, for `tests/transport/test_contract.py`."""

    def __init__(self):
        self._runs = {}

    def transport(self, run):
        return self._runs.setdefault(run, AtGrid(run))

    def interrupt(self, end):
        for run in self._runs.values():
            for node in run.at.nodes.values():
                node.losing = node.losing or node.end is end
