"""Bytes that are no text, on a real connection: whoever may publish at all must not end another's."""

import asyncio

import pytest

from fedseed.transport import transport
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

    await end.listen(receive, lambda: asked.append(1) or b"{}", lambda who, why: heard.append((who, b"odd")))
    bad = await way.client("client-1")
    size = b"3" if headers is None else b"%d %d" % (len(headers), len(headers) + 3)
    command = b" ".join([b"PUB" if headers is None else b"HPUB", subject, *([reply] if reply else []), size])
    await bad.connection._send_command(command + b"\r\n" + (headers or b"") + b"odd\r\n")
    await bad.send("client-1", "beat", b"good")
    await until_async(lambda: heard[-1:] == [("client-1", b"good")], SECONDS, f"it hears no more: {heard}")
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
    assert connection.is_connected and connection.stats["reconnects"] == 0 and connection.stats["errors_received"] == 0
    await end.close()
