"""Transports by the scheme of their addresses."""

import asyncio

import pytest

from fedseed.errors import RecipeError
from fedseed.transport import nats, transport
from fedseed.transport.base import Access


@pytest.mark.parametrize("url", ["http://x", "x:4222", "", "memory://here"])
def test_what_there_is_not(url):
    with pytest.raises(RecipeError, match="write nats://HOST:PORT or tls://HOST:PORT"):
        transport(Access(url), "run")


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
