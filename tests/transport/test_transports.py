"""Transports by the scheme of their addresses."""

import asyncio

import pytest

import fedseed
from fedseed.cli.network import ask
from fedseed.errors import NetworkError, RecipeError
from fedseed.transport import REGISTRY, nats, transport
from fedseed.transport.base import Access
from fedseed.transport.memory import Hub, MemoryTransport


@pytest.mark.parametrize("url", ["http://x", "x:4222", "", "memory://here"])
def test_what_there_is_not(url):
    with pytest.raises(RecipeError, match="write nats://HOST:PORT or tls://HOST:PORT"):
        transport(Access(url), "run")


async def test_another_package_adds_one(monkeypatch):
    hub = Hub()
    REGISTRY.names()  # all that is found later is there, and stays
    monkeypatch.setattr(REGISTRY, "_entries", dict(REGISTRY._entries))
    fedseed.register_transport("memory", lambda access, run: hub.transport(run))
    reach = Access("memory://here")
    assert isinstance(transport(reach, "run"), MemoryTransport)
    monkeypatch.setattr("fedseed.cli.network.STATUS_SECONDS", 0.1)
    with pytest.raises(NetworkError, match="knows no run"):
        await ask(reach, "run")
    end = await transport(reach, "run").coordinator()
    await end.writer(None)
    assert await ask(reach, "run") == {"run": "run", "entries": 0, "ended": False}
    await end.close()


@pytest.mark.long
async def test_a_coordinator_that_comes_back_meanwhile_is_heard(shared_server, monkeypatch):
    """The server says at once that nobody listens: also while a coordinator's connection is being made again."""
    monkeypatch.setattr(nats, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(nats.NatsEnd, "silences", 10**9)
    way = transport(Access(shared_server.url), "away")
    watcher, coordinator = await way.watcher(), await way.coordinator()
    asked = asyncio.create_task(watcher.status(60))
    await asyncio.sleep(0)
    await watcher.connection.flush()  # the question has been sent, and nobody has heard it
    await coordinator.listen(None, lambda: b"back", print)
    assert await asked == b"back"
    await watcher.close()
    await coordinator.close()
