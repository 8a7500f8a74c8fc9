"""Messages that wait in lines, which take turns.

And the clock that stands still while a server is silent.
"""

import asyncio
from types import SimpleNamespace

import pytest

from fedseed.transport import nats_hearing
from fedseed.transport.nats_hearing import (
    BEAT_SECONDS,
    DEAF_SECONDS,
    OVERHEAD_BYTES,
    RETURN_SECONDS,
    Pulse,
    Turns,
)


def taken(turns, count):
    async def take():
        return [await asyncio.wait_for(turns.next(), 60) for _ in range(count)]

    return asyncio.run(take())


def test_lines_take_turns_and_each_stays_in_order():
    turns = Turns(1 << 20, print)
    for whose, message in [
        ("a", "a1"),
        ("a", "a2"),
        ("a", "a3"),
        ("b", "b1"),
        ("a", "a4"),
        ("c", "c1"),
        ("b", "b2"),
    ]:
        turns.put(whose, message, 10)
    assert turns.bytes == 7 * (OVERHEAD_BYTES + 10)
    assert taken(turns, 7) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
    assert turns.bytes == 0


def test_a_long_line_gives_way_to_the_others():
    dropped = []
    turns = Turns(10 * (OVERHEAD_BYTES + 100), dropped.append)
    for number in range(15):
        turns.put("long", number, 100)
    assert dropped == [10, 11, 12, 13, 14]  # its own newest
    turns.put("short", "first", 100)
    turns.put("other", "second", 100)
    assert dropped[5:] == [9, 8]
    turns.put("long", "more", 100)
    assert dropped[7:] == ["more"]
    assert taken(turns, 10) == [0, "first", "second", *range(1, 8)]


def test_one_that_never_fits_is_dropped_and_a_line_may_be_dropped_whole():
    dropped = []
    turns = Turns(10_000, dropped.append)
    turns.put("a", "too large", 10_000)
    turns.put("a", "large", 6000)
    turns.put("b", "small", 100)
    assert dropped == ["too large"]
    turns.put("c", "also large", 4500)  # more than a share of three: it is not let in
    assert dropped == ["too large", "also large"]
    turns.put("b", "fits", 2000)
    assert dropped == ["too large", "also large", "large"]
    assert taken(turns, 2) == ["small", "fits"]


class Echo:
    """A connection over which everything comes back at once."""

    def new_inbox(self):
        return "inbox"

    async def subscribe(self, inbox, cb):
        self.hear = cb

    async def publish(self, inbox):
        await self.hear(None)


@pytest.fixture
def clock(monkeypatch):
    """Time that a test makes."""
    made = SimpleNamespace(now=100.0, monotonic=lambda: made.now)
    monkeypatch.setattr(nats_hearing, "time", made)
    return made


async def test_it_stands_while_nothing_comes_and_goes_on_where_it_stood(clock):
    echo = Echo()
    one = Pulse(echo)
    await one.begin()
    began = one.now()
    for _ in range(8):  # all is well
        clock.now += BEAT_SECONDS
        await echo.publish("inbox")
    assert one.now() - began == pytest.approx(8 * BEAT_SECONDS)
    stood = one.now() + DEAF_SECONDS
    for _ in range(240):  # a minute without a sign
        clock.now += BEAT_SECONDS
        assert began <= one.now() <= stood
    assert one.now() == pytest.approx(stood)
    await echo.publish("inbox")  # the server is back: the others get time to come back, too
    seen = []
    while clock.now < 100 + 2 + 60 + RETURN_SECONDS + 5:
        seen.append(one.now())
        clock.now += BEAT_SECONDS
        await echo.publish("inbox")
    assert seen == sorted(seen) and seen[0] == pytest.approx(stood)
    assert one.now() == pytest.approx(stood + 5, abs=2 * BEAT_SECONDS)
    await one.stop()
