"""What the server's own answers, sent to where a question names, can do to others: nothing.

A real nats-server with the keys and permissions of `fedseed keys`. Everything here is allowed by
it."""

import asyncio
import gc
import json
import os
import time
import tracemalloc

import pytest

from fedseed.errors import MessageError, NetworkError
from fedseed.federation.coordinator.network import NetworkCoordinator
from fedseed.federation.coordinator.session import CoordinatorSettings
from fedseed.methods import FeedSign
from fedseed.reports.progress import Progress
from fedseed.transport import transport
from fedseed.transport.base import Access, Events
from fedseed.transport.nats import UNSENT_BYTES
from fedseed.transport.nats_connection import connect
from fedseed.transport.nats_objects import CHUNK_BYTES, PLACE
from fedseed.transport.signatures import Signatures
from fedseed.transport.subjects import Subjects
from support.network import keyed_server
from support.network import until_async as until

RUN = "hostile"
SUBJECTS = Subjects(RUN)
GET = f"$JS.API.STREAM.MSG.GET.{SUBJECTS.stream}"
SECONDS = 60
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = keyed_server(
        tmp_path_factory.mktemp("keyed"), RUN, ["honest", "mallory", "ward=bed1,bed 2"]
    )
    yield made
    made.kill()


class Room:
    """The ends of the run, and a hostile client's bare connection."""

    def __init__(self, server):
        self.url, self.keys = server.url, server.keys
        self.came, self.rejected, self.noted, self._ends = [], [], [], []
        self.answer = b"yes"  # to a hello

    def access(self, name):
        return Access(self.url, self.keys / f"{name}.nk", self.keys / "ca.pem")

    def way(self, name):
        return transport(self.access(name), RUN)

    def signed(self, subject, data):
        """The header that Mallory's key makes."""
        return Signatures.from_key_file(self.keys / "mallory.nk").headers(subject, data)

    async def open(self):
        async def receive(sender, what, data):
            self.came.append((sender, what, data))
            return self.answer if what == "hello" else None

        self.coordinator = await self.way("coordinator").coordinator()
        self._ends.append(self.coordinator)
        if await self.coordinator.log() is not None:
            await self.coordinator.delete()
        await self.coordinator.allow(None, None)
        await self.coordinator.listen(
            receive, lambda: b"fine", lambda who, why: self.rejected.append((who, why))
        )
        self.writer = await self.coordinator.writer(None)
        for name in ("honest", "mallory"):
            await self.coordinator.allow(name, 1 << 20)
        self.honest = await self.way("honest").client("honest", Events(noted=self.noted.append))
        self._ends.append(self.honest)
        await self.honest.listen(lambda data: None)
        self.mallory = await self.bare("mallory")

    async def bare(self, name):
        made = await connect(self.access(name), SUBJECTS, name)
        self._ends.append(made)
        return made

    async def reply_to(self, subject, reply, data=b""):
        """Ask, and have the answer sent to another's subject."""
        await self.mallory.publish(subject, data, reply=reply, headers=self.signed(subject, data))

    async def close(self):
        for end in self._ends:
            await end.close()


def hostile(test):
    """A test that is a coroutine; it gets an open `Room`."""

    async def run(server):
        room = Room(server)
        try:
            await room.open()
            await asyncio.wait_for(test(room), 2 * SECONDS)
        finally:
            await room.close()

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@hostile
async def test_nobody_else_writes_into_the_log(room):
    entries = [b"Hone", b"Stwo", b"Tthree", b"Tfour"]
    await room.writer.append(entries[0])
    await room.coordinator.put("large", bytes(300_000))
    down, own = f"OBJ_{SUBJECTS.bucket()}", SUBJECTS.bucket("mallory")
    log = SUBJECTS.log
    await room.reply_to(GET, log, b'{"seq": 1}')  # the server's answers
    await room.reply_to(f"$JS.API.STREAM.MSG.GET.{down}", log, b'{"seq": 1}')
    # its receipt for something stored
    await room.reply_to(f"$O.{own}.C.mine", log, b"T" + bytes(60))
    await room.reply_to(SUBJECTS.from_client("mallory", "hello"), log)  # the coordinator's answer
    await room.reply_to(GET, SUBJECTS.entries, b'{"seq": 1}')  # where the server repeats entries
    watcher = await room.bare("watcher")
    await watcher.publish(SUBJECTS.status, b"{}", reply=log)
    await until(lambda: "mallory" in dict(room.rejected))
    while (await room.coordinator.log()).last < 4:  # there is something to be passed over
        await asyncio.sleep(0.01)
    for entry in entries[1:]:
        await room.writer.append(entry)
    assert await room.honest.entries() == entries
    assert any(
        "a message in the log that is not the coordinator's" in why for _, why in room.rejected
    )
    assert len([text for text in room.noted if "that are not the coordinator's" in text]) == 1
    assert not any("signature" in why for _, why in room.rejected)
    # another coordinator takes it up, and fences this one off
    heir = await room.way("coordinator").coordinator()
    room._ends.append(heir)
    last = (await heir.log()).last
    assert await heir.entries(last) == entries
    assert not any(entry == b"yes" or entry == b"fine" for entry in await heir.entries(last))
    await (await heir.writer(last)).append(b"heir")
    with pytest.raises(NetworkError, match="another coordinator has written"):
        await room.writer.append(b"too late")
    assert await room.honest.entries() == [*entries, b"heir"]


@hostile
async def test_a_clients_key_makes_no_consumer(room):
    """Ten that were delivered again each millisecond took nine tenths of a run's rounds a
    second.
    """
    await room.writer.append(b"Hone")
    streams = [SUBJECTS.stream, *(f"OBJ_{SUBJECTS.bucket(owner)}" for owner in (None, "mallory"))]
    config = {
        "ack_policy": "explicit",
        "ack_wait": 1_000_000,
        "deliver_subject": room.mallory.new_inbox(),
    }
    for stream in streams:
        named = {"stream_name": stream, "config": {**config, "durable_name": "x", "name": "x"}}
        for subject, asked in (
            (f"CREATE.{stream}", {"stream_name": stream, "config": config}),
            (f"CREATE.{stream}.x", named),
            (f"CREATE.{stream}.x.{SUBJECTS.log}", named),
            (f"DURABLE.CREATE.{stream}.x", named),
        ):
            await room.mallory.publish(f"$JS.API.CONSUMER.{subject}", json.dumps(asked).encode())
    await room.mallory.flush()
    assert await room.honest.entries() == [b"Hone"]  # which takes none, either
    manager = room.coordinator.connection.jetstream()
    assert [len(await manager.consumers_info(stream)) for stream in streams] == [0, 0, 0]


@hostile
async def test_nobody_speaks_in_anothers_name(room):
    await room.writer.append(b"Hone")
    theirs = SUBJECTS.from_client("honest", "update")
    await room.reply_to(GET, theirs)
    await room.reply_to(f"$O.{SUBJECTS.bucket('mallory')}.C.mine", theirs, b"x")
    # as if the server had let it through
    await room.coordinator.connection.publish(theirs, b"x", headers=room.signed(theirs, b"x"))
    await until(lambda: len(room.rejected) == 3)
    # a broadcast that is none, and an answer to a question that was not asked
    heard = []
    end = await room.way("honest").client("honest")
    room._ends.append(end)
    await end.listen(heard.append)
    await room.reply_to(GET, SUBJECTS.down)
    await room.reply_to(GET, SUBJECTS.status)
    await room.coordinator.broadcast(b"Cx")
    await until(lambda: heard and room.noted)
    assert heard == [b"Cx"] and "broadcasts that are not the coordinator's" in room.noted[0]
    await room.honest.send("honest", "update", b"mine")
    assert await room.honest.ask("honest", "hello", b"", SECONDS) == b"yes"
    assert [sender for sender, _, data in room.came] == ["honest", "honest"]
    unsigned = {why for who, why in room.rejected if "in the name of" in why}
    assert unsigned == {"a message in the name of honest without a signature of its key"}
    assert not any(who == "honest" for who, _ in room.rejected)


@hostile
async def test_answers_go_to_the_askers_inbox_only(room):
    watcher = await room.way("watcher").watcher()
    room._ends.append(watcher)
    assert await watcher.status(SECONDS) == b"fine"
    hello = SUBJECTS.from_client("mallory", "hello")
    for reply in (
        SUBJECTS.inbox("honest") + ".x",
        SUBJECTS.down,
        SUBJECTS.from_client("honest", "hello"),
        "else",
    ):
        await room.reply_to(hello, reply)
    await until(lambda: len(room.rejected) == 4)
    assert {who for who, _ in room.rejected} == {"mallory"} and not room.came
    own = await room.mallory.request(hello, b"", timeout=SECONDS, headers=room.signed(hello, b""))
    assert own.data == b"yes"


@hostile
async def test_objects_are_their_owners(room):
    data = os.urandom(300_000)
    await room.honest.put("update", data)
    await room.coordinator.put("step", data[::-1])
    js = room.mallory.jetstream()
    # answers where another's chunks are
    for subject in (SUBJECTS.chunks("honest", "update"), SUBJECTS.chunks(None, "step")):
        await room.reply_to(GET, subject)
    await room.mallory.flush()
    signatures = Signatures.from_key_file(room.keys / "mallory.nk")
    for name, place in (
        ("bad", "x"),
        ("bad", "a.0.99999999999999999999"),
        ("bad", "a.0.-1"),
        ("other", "a.0.5"),
    ):
        subject = SUBJECTS.chunks("mallory", name)
        headers = {PLACE: place, **signatures.headers(subject, b"1234567890", place.encode())}
        await js.publish(subject, b"1234567890", headers=headers)
    unretrieved = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: unretrieved.append(context)
    )
    for name in ("bad", "other", "nothing"):
        with pytest.raises(MessageError, match=r"can't be had|were announced"):
            await room.coordinator.get("mallory", name, len(data))
        await room.coordinator.drop("mallory", name)
    assert await room.coordinator.get("honest", "update", len(data)) == data
    assert await room.honest.get(None, "step", len(data)) == data[::-1]
    # another's object under one's own name: its chunks are not signed so
    await room.coordinator.drop("honest", "update")
    with pytest.raises(MessageError, match="it is not there"):
        await room.coordinator.get("honest", "update", len(data))
    await asyncio.sleep(0)
    assert not unretrieved


@hostile
async def test_nothing_is_left_of_an_object_that_was_fetched(room):
    """The collector comes when it likes.

    Several objects that wait for it would be what memory there is.
    """
    size = 600_000
    await room.honest.put("update", bytes(size))
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(3):
            assert await room.coordinator.get("honest", "update", size) == bytes(size)
            with pytest.raises(MessageError, match="were announced"):
                await room.coordinator.get("honest", "update", size + 1)
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left < size / 2


@hostile
async def test_what_others_write_into_a_store_takes_no_room_from_its_owner(room):
    kept = os.urandom(200_000)
    await room.honest.put("kept", kept)
    await room.coordinator.put("large", bytes(CHUNK_BYTES))
    for _ in range(5):  # the server's answer is the large message
        await room.reply_to(
            f"$JS.API.STREAM.MSG.GET.OBJ_{SUBJECTS.bucket()}",
            SUBJECTS.chunks("honest", "junk"),
            b'{"seq": 1}',
        )
    theirs = f"OBJ_{SUBJECTS.bucket('honest')}"
    while (await room.coordinator.connection.jetstream().stream_info(theirs)).state.bytes < 800_000:
        await asyncio.sleep(0.01)
    data = os.urandom(500_000)
    await room.honest.put("update", data)
    assert await room.coordinator.get("honest", "update", len(data)) == data
    assert await room.coordinator.get("honest", "kept", len(kept)) == kept
    with pytest.raises(NetworkError, match="can't be stored"):
        await room.honest.put("more", bytes(500_000))  # what is its own takes its room


@hostile
async def test_a_flood_of_questions_is_answered_once_for_all(room):
    """Two thousand answers of their own would keep others waiting.

    Everybody has an answer all the same.
    """
    watcher, calls = await room.bare("watcher"), []
    room.coordinator._questions.status = lambda: calls.append(1) or b"newest"
    for _ in range(2000):
        # which none goes to
        await watcher.publish(SUBJECTS.status, b"{}", reply=SUBJECTS.from_client("honest", "hello"))
    for _ in range(2):
        assert await (await room.way("watcher").watcher()).status(SECONDS) == b"newest"
    assert len(calls) < 1000 and not room.came


@hostile
async def test_answers_wait_for_the_server(room):
    """Two hundred questions are two hundred answers: not all at once in the coordinator's
    memory.
    """
    connection, unsent = room.coordinator.connection, []
    publish, room.answer = connection.publish, bytes(100_000)

    async def watched(*arguments, **more):
        await publish(*arguments, **more)
        unsent.append(connection.pending_data_size)

    connection.publish = watched
    inbox, heard = room.mallory.new_inbox(), []

    async def hear(message):
        heard.append(len(message.data))

    await room.mallory.subscribe(f"{inbox}.*", cb=hear)
    for number in range(200):
        await room.reply_to(SUBJECTS.from_client("mallory", "hello"), f"{inbox}.{number}")
    await until(lambda: len(heard) == 200)
    assert set(heard) == {100_000} and max(unsent) < 2 * UNSENT_BYTES


@hostile
async def test_a_status_does_not_wait_behind_what_clients_send(room):
    """However much a key sends: questions come over a connection of their own, and get their
    turn.
    """

    async def look(said):
        time.sleep(0.01)  # as long as a large message takes

    room.coordinator._hearing._look = look
    subject, data = SUBJECTS.from_client("mallory", "beat"), bytes(3000)
    headers = room.signed(subject, data)
    for _ in range(3000):
        await room.mallory.publish(subject, data, headers=headers)
    await room.mallory.flush()
    waited = room.coordinator._hearing._turns
    await until(lambda: waited.bytes > 100 * len(data))
    assert await (await room.way("watcher").watcher()).status(SECONDS) == b"fine"
    assert waited.bytes > 100 * len(data)


@hostile
async def test_nobody_is_attached_to_anothers_process(room):
    """What comes for it would be read, and deleted, there."""
    settings = CoordinatorSettings(names=("mallory", "honest", "bed1", "bed 2"))
    talk = NetworkCoordinator(room.coordinator, RUN, FeedSign(), 0, 1, settings, Progress())
    for client, host in (("mallory", "honest"), ("bed 2", "bed1")):
        about = {"client": client, "host": host, "examples": 1}
        await talk.receive(client, "attach", json.dumps(about).encode())
    host_of = talk.roster.host_of
    assert (host_of("mallory"), host_of("bed 2")) == ("mallory", "bed1")
    assert talk.session.rejected.counts() == {
        "mallory": {"it names a process with a different key": 1}
    }
