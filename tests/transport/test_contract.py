"""What every transport must do: the same tests for the one in memory, for Flower, and for NATS on a
real server.

A server elsewhere is tested by `FEDSEED_CONTRACT=nats://... pytest
tests/transport/test_contract.py`. Everything waits for what it expects, and for nothing else;
`SECONDS` only bounds how long a failure takes."""

import asyncio
import itertools
import os
from collections import Counter

import nkeys
import pytest

from fedseed.errors import MessageError, NetworkError
from fedseed.federation.coordinator.network import NetworkCoordinator
from fedseed.federation.coordinator.session import CoordinatorSettings
from fedseed.federation.coordinator.step_log import StepLog
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.methods.feedsign import FeedSign
from fedseed.orbit import Header
from fedseed.reports.progress import Progress
from fedseed.transport import transport
from fedseed.transport.base import Access, Events, Interrupted, Log
from fedseed.transport.memory import Hub
from fedseed.transport.signatures import key_file
from fedseed.weights.layout import Layout, TensorEntry
from support.flower_grid import OverFlower
from support.network import until_async as until

SECONDS = 60
RUNS = itertools.count()


class InMemory(Hub):
    """The transport in one process."""

    def interrupt(self, end):
        end._events.reconnected()  # nothing is ever lost


class AtAddress:
    """What an address asks for.

    `interrupt` breaks an end's connection, which comes back by itself.
    """

    def __init__(self, url, interrupt=None, key=None):
        self._access, self._interrupt = Access(url, key), interrupt

    def transport(self, run):
        return transport(self._access, run)

    def interrupt(self, end):
        if self._interrupt is None:
            pytest.skip("nothing here knows how to interrupt this transport")
        self._interrupt(end)


def abort(end):
    """Break a connection to a NATS server: the library makes a new one."""
    end.connection._transport._io_writer.transport.abort()


NAMES = (
    "north",
    "a b.c*>",
    "ä=41",
    "a",
    "a b",
    "b",
    "c",
    "one",
    "other",
    "left",
    "there",
    "early",
    "late",
    "stranger",
)


@pytest.fixture(scope="session")
def one_key(tmp_path_factory):
    """A key file for everybody: who has a key signs, and believes only what is signed."""
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(seed).public_key.decode()
    path = tmp_path_factory.mktemp("contract") / "everybody.nk"
    path.write_text(key_file(seed.decode(), public, [(name, public) for name in NAMES]))
    return path


def signed(request):
    return AtAddress(
        request.getfixturevalue("shared_server").url, abort, request.getfixturevalue("one_key")
    )


KINDS = {
    "memory": lambda request: InMemory(),
    "flower": lambda request: OverFlower(request.getfixturevalue("monkeypatch")),
    "nats": lambda request: AtAddress(request.getfixturevalue("shared_server").url, abort),
}
if url := os.environ.get("FEDSEED_CONTRACT"):
    KINDS = {"address": lambda request: AtAddress(url)}
else:
    KINDS["signed"] = signed


@pytest.fixture(
    params=[
        pytest.param(k, marks=pytest.mark.long) if k in ("nats", "signed") else k for k in KINDS
    ]
)
def kind(request):
    return KINDS[request.param](request)


def contract(test):
    """A test that is a coroutine; it gets a `Room` of a run of its own."""

    async def run(kind):
        room = Room(kind, f"contract-{next(RUNS)}")
        try:
            await asyncio.wait_for(test(room), 2 * SECONDS)
        finally:
            await room.close()

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


class Room:
    """The ends of one run."""

    def __init__(self, kind, run):
        self.kind, self.run, self._ends = kind, run, []

    async def coordinator(self, receive=None, status=lambda: b"", rejected=print):
        async def nothing(sender, what, data):
            return None

        end = await self.kind.transport(self.run).coordinator()
        self._ends.append(end)
        await end.listen(receive or nothing, status, rejected)
        return end

    async def client(self, name, take=lambda data: None, again=lambda: None):
        end = await self.kind.transport(self.run).client(name, Events(print, again))
        self._ends.append(end)
        await end.listen(take)
        return end

    async def watcher(self):
        end = await self.kind.transport(self.run).watcher()
        self._ends.append(end)
        return end

    async def log(self):
        """A coordinator's end with an empty log, and its writer."""
        end = await self.coordinator()
        return end, await end.writer(None)

    async def close(self):
        for end in self._ends:
            await end.close()


# -- messages that are not kept
# ------------------------------------------------------------------------------------


@contract
async def test_messages_come_in_order_and_say_who_sent_them(room):
    came = []

    async def receive(sender, what, data):
        came.append((sender, what, data))

    await room.coordinator(receive)
    names = ["north", "a b.c*>", "ä=41"]
    clients = [await room.client(name) for name in names]
    for number in range(50):
        for name, client in zip(names, clients, strict=True):
            await client.send(name, "update", b"%d" % number)
    await until(lambda: len(came) == 150)
    for name in names:
        mine = [(what, data) for sender, what, data in came if sender == name]
        assert mine == [("update", b"%d" % number) for number in range(50)]


@contract
async def test_a_broadcast_reaches_all_who_listen_in_order(room):
    coordinator = await room.coordinator()
    heard = [[], []]
    for name, mine in zip("ab", heard, strict=True):
        await room.client(name, mine.append)
    sent = [b"%d" % number for number in range(100)]
    for data in sent:
        await coordinator.broadcast(data)
    await until(lambda: all(len(mine) == 100 for mine in heard))
    assert heard == [sent, sent]


@contract
async def test_a_question_is_answered(room):
    async def receive(sender, what, data):
        return f"{sender} {what} ".encode() + data if what == "hello" else None

    await room.coordinator(receive)
    one, other = await room.client("one"), await room.client("other")
    answers = await asyncio.gather(
        *(
            end.ask(name, "hello", b"%d" % number, SECONDS)
            for number in range(20)
            for name, end in (("one", one), ("other", other))
        )
    )
    assert answers == [f"{name} hello {n}".encode() for n in range(20) for name in ("one", "other")]
    assert await one.ask("one", "other", b"", 0.05) is None  # nobody answers this


@contract
async def test_after_an_interruption_both_sides_hear_each_other(room):
    came, heard, again = [], [], []

    async def receive(sender, what, data):
        came.append(data)
        return b"yes"

    coordinator = await room.coordinator(receive)
    client = await room.client("a", heard.append, lambda: again.append(1))
    room.kind.interrupt(client)
    await until(lambda: again)
    while await client.ask("a", "hello", b"?", 0.2) is None:
        await asyncio.sleep(0.01)
    while not heard:
        await coordinator.broadcast(b"!")
        await asyncio.sleep(0.01)
    assert came and set(heard) == {b"!"}


@contract
async def test_an_end_that_is_closed_hears_nothing(room):
    came, heard = [], []

    async def receive(sender, what, data):
        came.append(data)

    first = await room.coordinator(receive)
    gone, stays = [], []
    left, there = await room.client("left", gone.append), await room.client("there", stays.append)
    await left.close()
    await first.broadcast(b"x")
    await until(lambda: stays)
    assert gone == []
    await first.close()

    async def hear(sender, what, data):
        heard.append(data)

    second = await room.coordinator(hear)
    await there.send("there", "update", b"y")
    await until(lambda: heard)
    assert came == []
    with pytest.raises(NetworkError):
        await first.broadcast(b"z")
    await left.close()  # again is fine
    assert await second.log() is None


# -- the log
# ------------------------------------------------------------------------------------------------


@contract
async def test_a_log_begins_empty_and_keeps_its_entries(room):
    end = await room.coordinator()
    assert await end.log() is None
    writer = await end.writer(None)
    assert await end.log() == Log(0, over=False)
    for number in range(1, 6):
        await writer.append(b"entry %d" % number)
        assert writer.last == number and await end.log() == Log(number, over=False)
    later = await room.coordinator()
    assert await later.log() == await (await room.watcher()).log() == Log(5, over=False)
    assert await later.entries(5) == [b"entry %d" % number for number in range(1, 6)]
    assert await later.entries(0) == []
    await writer.finish()  # which is told to whoever may not read it, too
    assert await later.log() == await (await room.watcher()).log() == Log(5, over=True)


@contract
async def test_followers_get_every_entry_once_whenever_they_begin(room):
    _, writer = await room.log()
    wanted = [(number, b"entry %d" % number) for number in range(1, 61)]
    found = {after: [] for after in (0, 7, 30, 59)}

    def take(after):
        return lambda number, data: found[after].append((number, data))

    early = await room.client("early")
    await early.follow(0, take(0))
    for _, data in wanted[:30]:
        await writer.append(data)
    late = await room.client("late")
    await late.follow(7, take(7))
    await late.follow(30, take(30))
    for _, data in wanted[30:]:
        await writer.append(data)
    await late.follow(59, take(59))
    await until(lambda: all(len(entries) == 60 - after for after, entries in found.items()))
    assert found == {after: wanted[after:] for after in found}


@contract
async def test_a_follower_misses_nothing_through_interruptions(room):
    _, writer = await room.log()
    found, again = [], []
    client = await room.client("a", again=lambda: again.append(1))
    await client.follow(0, lambda number, data: found.append((number, data)))
    for number in range(1, 41):
        await writer.append(b"entry %d" % number)
        if number in (10, 25):
            await until(lambda: found)
            seen = len(again)
            room.kind.interrupt(client)
            await until(lambda seen=seen: len(again) > seen)
    await until(lambda: len(found) == 40)
    assert found == [(number, b"entry %d" % number) for number in range(1, 41)]


@contract
async def test_of_two_writers_one_is_fenced_off(room):
    _, old = await room.log()
    await old.append(b"one")
    heir = await (await room.coordinator()).writer(1)
    await heir.append(b"mine")
    with pytest.raises(NetworkError, match="another coordinator has written"):
        await old.append(b"too late")
    with pytest.raises(NetworkError, match="another coordinator has written"):
        await old.append(b"once more")
    await heir.append(b"mine, too")
    assert await entries(room) == [b"one", b"mine", b"mine, too"]


@contract
async def test_who_only_waits_learns_that_another_coordinator_goes_on(room):
    """It was taken for dead.

    Its clients answer another one, and it would wait for them until its deadline.
    """
    layout = Layout((TensorEntry("w", (2,), "float32"),), (0, 2))
    begun = Header("base", "ab" * 16, "float32", layout, FeedSign(), 0)
    talk = NetworkCoordinator(
        await room.coordinator(), "run", FeedSign(), 0, 9, CoordinatorSettings(), Progress()
    )
    await talk.log.create(begun, ["a"], 9, 1)
    await talk.log.begin_session()
    await talk.log.publish(
        1, Message(MessageKind.STEP, FeedSign.code, 1, EVERYBODY, b"\1").encode()
    )
    watching = asyncio.create_task(talk._watch_log(interval_seconds=0.01))
    heir = StepLog(await room.coordinator(), replacing=False)
    await heir.load(3, "run")
    assert (
        not await heir.is_taken_over(3)
        and not await talk.log.is_taken_over(3)
        and talk.session.failure is None
    )
    await heir.begin_session()
    await asyncio.wait_for(watching, SECONDS)
    assert "another coordinator has written to run" in str(talk.session.failure)
    assert not await heir.is_taken_over(4)


@contract
async def test_an_entry_counts_once_whether_it_was_lost_or_its_receipt(room):
    _, writer = await room.log()
    store, tried = writer._store, Counter()

    async def losing(entry):
        tried[entry] += 1
        if entry != b"lost twice" or tried[entry] > 2:
            await store(entry)
        if tried[entry] <= 2:
            raise Interrupted("the entry is lost, or its receipt")

    writer._store = losing
    sent = [b"receipt lost", b"lost twice", b"receipt lost, too"]
    for entry in sent:
        await writer.append(entry)
    assert list(tried.values()) == [2, 3, 2] and writer.last == 3 and await entries(room) == sent
    tried.clear()
    with pytest.raises(NetworkError, match="can't be written"):
        await writer.append(b"lost twice", patience=-1)


@contract
async def test_a_log_that_is_deleted_can_be_made_again(room):
    end, writer = await room.log()
    await writer.append(b"old")
    await writer.finish()
    await end.allow(None, None)
    await end.put("blob", b"x")
    await end.delete()
    assert await end.log() is None
    with pytest.raises(NetworkError):
        await writer.append(b"nowhere", patience=0)
    await (await end.writer(None)).append(b"new")
    assert await entries(room) == [b"new"]
    with pytest.raises(MessageError):
        await end.get(None, "blob", 1)
    assert await end.log() == Log(1, over=False)


async def entries(room):
    """The whole log, as somebody reads it who comes now."""
    found = []
    client = await room.client(f"reader-{next(RUNS)}")
    last = (await client.log()).last
    stop = await client.follow(0, lambda number, data: found.append(data))
    await until(lambda: len(found) >= last)
    await stop()
    return found


# -- blobs
# ------------------------------------------------------------------------------------------------


@contract
async def test_large_messages_are_blobs_of_their_owners(room):
    end = await room.coordinator()
    await end.allow(None, None)
    await end.allow("a b", 8 << 20)
    await end.allow("a b", 1)  # again changes nothing
    client = await room.client("a b")
    large = bytes(range(256)) * (3 * client.largest // 256)
    await end.put("same", large)
    await client.put("same", large[::-1])
    assert await client.get(None, "same", len(large)) == large
    assert await end.get("a b", "same", len(large)) == large[::-1]
    await client.put("same", b"new")  # in its place
    assert await end.get("a b", "same", 3) == b"new"
    await end.drop("a b", "same")
    await end.drop("a b", "same")
    with pytest.raises(MessageError, match="can't be had"):
        await end.get("a b", "same", 3)
    assert await client.get(None, "same", len(large)) == large


@contract
async def test_an_owner_stores_no_more_than_it_may_and_nobody_finds_anything_else(room):
    end = await room.coordinator()
    await end.allow("a", 300_000)
    client = await room.client("a")
    await client.put("x", bytes(200_000))
    with pytest.raises(NetworkError, match="can't be stored"):
        await client.put("y", bytes(200_000))
    assert await end.get("a", "x", 200_000) == bytes(200_000)
    with pytest.raises(MessageError, match="200,000 bytes, 200,001 were announced"):
        await end.get("a", "x", 200_001)
    for owner, name in (("a", "z"), ("nobody", "x")):
        with pytest.raises(MessageError, match="can't be had"):
            await end.get(owner, name, 5)
    stranger = await room.client("stranger")  # it has no room at all
    with pytest.raises(NetworkError, match="can't be stored"):
        await stranger.put("x", b"1")
