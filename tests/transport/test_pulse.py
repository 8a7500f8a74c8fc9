"""The clock that stands still while a server is silent."""

import pytest

from fedseed.transport import nats_hearing
from fedseed.transport.nats_hearing import BEAT_SECONDS, DEAF_SECONDS, RETURN_SECONDS, Pulse


class Echo:
    """A connection over which everything comes back at once, or is lost."""

    silent = False

    def new_inbox(self):
        return "inbox"

    async def subscribe(self, inbox, cb):
        self.hear = cb

    async def publish(self, inbox):
        if not self.silent:
            await self.hear(None)


@pytest.fixture
def clock(monkeypatch):
    """Time that a test makes."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    made = Clock()
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
