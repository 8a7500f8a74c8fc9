"""Streams of other programs on the same server, which store fedseed's messages as well.

The server confirms each message with a reply subject that such a stream has stored: to the place
where a question's answer is expected.
"""

import asyncio

import pytest

from fedseed.errors import NetworkError, RecipeError
from fedseed.transport import transport
from fedseed.transport.base import Access, Events, check_run
from fedseed.transport.nats import is_receipt
from fedseed.transport.nats_connection import connect
from fedseed.transport.subjects import Subjects
from support.network import Server, keyed_server

RUN = "watched"


@pytest.fixture(params=["without keys", "keyed"])
def reach(request, tmp_path):
    """Make the access of a party of a server with or without keys, and the audit's stream."""
    if request.param == "keyed":
        server = keyed_server(tmp_path, RUN, ["north"])
        ca = server.keys / "ca.pem"

        def access(name):
            return Access(server.url, server.keys / f"{name}.nk", ca)
    else:
        server = Server(tmp_path)

        def access(name):
            return Access(server.url)

    yield access
    server.kill()


async def add_stream(access, subjects):
    """Have the server store subjects in a stream that is not fedseed's."""
    connection = await connect(access("coordinator"), Subjects(RUN), "coordinator")
    try:
        await connection.jetstream().add_stream(name="audit", subjects=subjects)
    finally:
        await connection.close()


def test_its_receipts_are_no_answers(reach):
    notes = []

    async def talk():
        root = Subjects(RUN).root
        await add_stream(reach, [f"{root}.up.>", f"{root}.status"])
        client = await transport(reach("north"), RUN).client("north", Events(noted=notes.append))
        watcher = await transport(reach("watcher"), RUN).watcher()
        try:
            return await client.ask("north", "hello", b"{}", 2), await watcher.status(2)
        finally:
            await client.close()
            await watcher.close()

    assert asyncio.run(talk()) == (None, None)
    assert len(notes) == 1 and "stream audit stores the messages of run watched" in notes[0]


def test_one_that_holds_the_log_is_named_as_the_reason(tmp_path):
    server = Server(tmp_path)

    def access(_):
        return Access(server.url)

    async def begin():
        await add_stream(access, ["fedseed.>"])
        end = await transport(access(""), RUN).coordinator(Events())
        try:
            await end.writer(None)
        finally:
            await end.close()

    try:
        with pytest.raises(NetworkError, match=r"another stream of the server.*take these"):
            asyncio.run(begin())
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"stream": "audit", "seq": 3}', True),
        (b'{"error": {"code": 503}, "stream": "audit"}', True),
        (b'{"seq": 3}', False),
        (b'{"clients": 3, "beat": 1.0}', False),
        (b'["stream", "seq"]', False),
        (b"\xff", False),
        (b"[" * 100_000, False),
    ],
)
def test_what_is_a_receipt(data, expected):
    assert is_receipt(data) is expected


def test_a_run_has_a_name_that_a_stream_can_have():
    assert check_run("a" * 100) == "a" * 100
    with pytest.raises(RecipeError, match="101 characters, at most 100"):
        check_run("a" * 101)
