"""Which transport an address means.

And a real connection: whoever may publish at all must not end another's.
"""

import asyncio

import pytest

from fedseed.errors import RecipeError
from fedseed.transport import nats, transport
from fedseed.transport.base import Access
from support.network import until_async

UP = b"fedseed.wire.up.client-1."
SECONDS = 60


@pytest.mark.parametrize(
    ("subject", "reply", "headers"),
    [
        (UP + b"\xff\xfe", b"", None),
        (UP + b"beat", b"\xff", None),
        (UP + b"a\x0bb", b"", None),  # spaces to Python, not to the server
        (UP + b"a\x0c1", b"", None),  # the number of another subscription
        (UP + b"beat", b"x\x0by", None),
        (UP + b"beat", b"", b"NATS/1.0 \xff\xfe\r\n\r\n"),
        (UP + b"beat", b"", b"NATS/1.0"),
        (UP + b"beat", b"x\x0by", b"NATS/1.0\r\n\xff: y\r\n\r\n"),
    ],
)
async def test_a_message_of_any_bytes_is_one_message(subject, reply, headers, shared_server):
    way = transport(Access(shared_server.url), "wire")
    end, heard, asked = await way.coordinator(), [], []

    async def receive(sender, what, data):
        heard.append((sender, data))

    await end.listen(
        receive, lambda: asked.append(1) or b"{}", lambda who, why: heard.append((who, b"odd"))
    )
    bad = await way.client("client-1")
    size = b"3" if headers is None else b"%d %d" % (len(headers), len(headers) + 3)
    command = b" ".join(
        [b"PUB" if headers is None else b"HPUB", subject, *([reply] if reply else []), size]
    )
    await bad.connection._send_command(command + b"\r\n" + (headers or b"") + b"odd\r\n")
    await bad.send("client-1", "beat", b"good")
    await until_async(
        lambda: heard[-1:] == [("client-1", b"good")], SECONDS, f"it hears no more: {heard}"
    )
    assert heard[:-1] in ([], [("client-1", b"odd")]) and not asked
    assert end.connection.stats["reconnects"] == 0
    await bad.close()
    await end.close()


async def test_an_answer_that_nobody_waits_for_any_more_ends_no_connection(shared_server):
    end = await transport(Access(shared_server.url), "wire").client("client-2")
    connection, given_up = end.connection, asyncio.get_running_loop().create_future()
    given_up.cancel()
    await connection._send_ping(given_up)
    await connection.flush(SECONDS)
    assert (
        connection.is_connected
        and connection.stats["reconnects"] == 0
        and connection.stats["errors_received"] == 0
    )
    await end.close()


@pytest.mark.parametrize("url", ["http://x", "x:4222", "", "memory://here"])
def test_what_there_is_not(url):
    with pytest.raises(RecipeError, match="write nats://HOST:PORT or tls://HOST:PORT"):
        transport(Access(url), "run")


@pytest.mark.long
async def test_a_coordinator_that_comes_back_meanwhile_is_heard(shared_server, monkeypatch):
    """The server says at once that nobody listens: also while a coordinator's connection is being
    made again.
    """
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
