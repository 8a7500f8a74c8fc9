"""What a client's key lets the server itself write where it should not: each is passed over, and nobody is harmed."""

import asyncio
import json

import pytest

from fedseed.transport import transport
from fedseed.transport.base import Access, Events
from support.hostile.wire import Wire
from support.network import keyed_server, until_async

SECONDS = 120


pytestmark = pytest.mark.long


@pytest.fixture
def keyed(tmp_path):
    server = keyed_server(tmp_path / "nats", "run", [f"client-{number}" for number in range(4)])
    yield server
    server.kill()


class Ends:
    """A coordinator, an honest client and a hostile key."""

    def __init__(self, server):
        self.server, self.refused, self.rejected = server, [], []

    async def __aenter__(self):
        self.coordinator = await self._way("coordinator").coordinator(Events(self.refused.append))
        await self.coordinator.allow(None, None)
        self.honest = await self._way("client-0").client("client-0", Events(self.refused.append))
        self.hostile = await self._way("client-3").client("client-3")
        keys = self.server.keys
        self.wire = Wire(self.server.url, self.hostile.subjects, "client-3", keys / "client-3.nk", keys / "ca.pem")
        return self

    def _way(self, name):
        keys = self.server.keys
        return transport(Access(self.server.url, keys / f"{name}.nk", keys / "ca.pem"), "run")

    async def __aexit__(self, *error):
        for end in (self.wire, self.honest, self.hostile, self.coordinator):
            await end.close()


def test_heartbeats_in_the_log_are_none_of_its_entries(keyed):
    async def run():
        async with Ends(keyed) as ends:
            subjects, entries = ends.hostile.subjects, []
            writer = await ends.coordinator.writer(None)
            await writer.append(b"first")
            stop = await ends.honest.follow(0, lambda number, data: entries.append(data))
            stream = f"OBJ_{subjects.bucket()}"
            config = {"name": "own", "deliver_subject": subjects.log, "ack_policy": "none", "mem_storage": True,
                      "flow_control": True, "idle_heartbeat": 100_000_000}  # fmt: skip
            request = json.dumps({"stream_name": stream, "config": config}).encode()
            await ends.wire.publish(f"$JS.API.CONSUMER.CREATE.{stream}.own", request, f"{ends.wire.inbox}.r")
            end = asyncio.get_running_loop().time() + SECONDS
            while (await ends.coordinator.log()).last < 5:
                assert asyncio.get_running_loop().time() < end
                await asyncio.sleep(0.1)
            await writer.append(b"second")
            await until_async(lambda: len(entries) == 2, SECONDS, f"what comes is {entries}")
            assert entries == [b"first", b"second"] and ends.refused == []
            await stop()

    asyncio.run(run())


@pytest.mark.parametrize("stream", ["log", "objects"])
def test_deliveries_to_others_are_ended(stream, keyed):
    """Again and again the whole log to everybody, say; those into an inbox go on."""

    async def run():
        async with Ends(keyed) as ends:
            subjects, rejected, entries = ends.hostile.subjects, [], []
            name = subjects.stream if stream == "log" else f"OBJ_{subjects.bucket()}"
            await (await ends.coordinator.writer(None)).append(b"first")
            stop = await ends.honest.follow(0, lambda number, data: entries.append(data))
            await until_async(lambda: entries, SECONDS, "nothing comes")
            manager = ends.coordinator.connection.jetstream()
            line = len(f"PUB $JS.API.CONSUMER.CREATE.{name}. {ends.wire.inbox}.r 1000000\r\n")
            names = ["some", "a" * (4096 - line), "own"]  # as long as the server takes a line
            targets = [subjects.down, f"$JS.API.INFO.{subjects.run}", f"{ends.wire.inbox}.own"]
            for own, target in zip(names, targets, strict=True):
                config = {"name": own, "deliver_subject": target, "ack_policy": "explicit", "ack_wait": 100_000_000,
                          "mem_storage": True, "inactive_threshold": 3600 * 10**9}  # fmt: skip
                request = json.dumps({"stream_name": name, "config": config}).encode()
                await ends.wire.publish(f"$JS.API.CONSUMER.CREATE.{name}.{own}", request, f"{ends.wire.inbox}.r")
            await until_async(lambda: len(ends.wire.came) >= 3, SECONDS, "the server does not answer")
            made = len(await manager.consumers_info(name))
            assert made == (4 if stream == "log" else 3), [bytes(message.data) for message in ends.wire.came]
            await ends.coordinator.listen(None, bytes, lambda who, why: rejected.append((who, why)))
            await until_async(lambda: len(rejected) == 2, SECONDS, "not both are told")
            left = [info.config.deliver_subject for info in await manager.consumers_info(name)]
            assert len(left) == made - 2 and all(subject.startswith(f"{subjects.root}.in.") for subject in left)
            await stop()

    asyncio.run(run())
