"""A Grid whose nodes stay: each is a client's end in this process, for the tests that every transport must pass.

The few classes here stand for Flower's messages, which tests/flower has where Flower is installed.
"""

import asyncio
import itertools
import sys
from contextlib import suppress
from types import ModuleType, SimpleNamespace

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
        return repr(dict(self)).encode()


class RecordDict(dict):
    deflate = lambda self: b""  # noqa: E731
    config_records = property(lambda self: self)


class Message:
    """What carries records, or an error's text."""

    def __init__(self, content, dst_node_id=0, message_type="", ttl=0.0, reply_to=None, error=None):
        self.content, self.error = content, error
        answered = None if reply_to is None else reply_to.metadata.message_id
        self.metadata = SimpleNamespace(
            dst_node_id=dst_node_id, message_type=message_type, message_id="", reply_to_message_id=answered
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


class Grid:
    """Carries messages to nodes that stay, each in the event loop in which it was made."""

    def __init__(self):
        self.nodes, self.losing = {}, set()  # ends by their numbers; ends whose next message is lost
        self._replies, self._ids, self._tasks = {}, itertools.count(), set()

    def join(self, end):
        self.nodes[len(self.nodes) + 11] = end
        self._loop = asyncio.get_running_loop()

    def get_node_ids(self):
        return [number for number, end in self.nodes.items() if not end._closed]

    def push_messages(self, messages):
        for message in messages:
            message.metadata.message_id = str(next(self._ids))
            self._loop.call_soon_threadsafe(lambda m=message: self._tasks.add(asyncio.create_task(self._answer(m))))
        return [message.metadata.message_id for message in messages]

    async def _answer(self, message):
        end = self.nodes[message.metadata.dst_node_id]
        if end in self.losing:
            self.losing.discard(end)
            reply = Message(None, reply_to=message, error=SimpleNamespace(code=0, reason="lost"))
        else:
            heard = end.take(wire.table(message))
            with suppress(TimeoutError):
                await asyncio.wait_for(end.said.wait(), 0.02)
            reply = Message(wire.content(end.reply(heard)), reply_to=message)
        self._replies[message.metadata.message_id] = reply

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
            run.at.losing |= {end} & set(run.at.nodes.values())
