"""The coordinator's list of clients, and who is let in by it."""

import asyncio
import itertools

from fedseed.federation.control import Attach
from fedseed.federation.coordinator.session import CoordinatorSettings, Rejected, Session
from fedseed.reports.progress import Progress
from fedseed.transport.memory import Hub
from support.reception import Talk


async def test_parties_need_only_know_themselves():
    one = await Talk(names=("north", "south")).start()
    assert "refused" not in await one.hello(["south"])
    assert (
        one.roster.names == ["north", "south"]
        and one.roster.present() == {1}
        and one.roster.away() == ["north"]
    )
    assert (
        "this run has no client west: it has north, south"
        in (await one.hello(["west"], attach=False))["refused"]
    )
    assert "another list of clients" in (await one.hello(["south"], party=False))["refused"]
    assert "refused" not in await one.hello(["north", "south"], party=False)
    assert one.roster.present() == {0, 1}


async def test_the_first_to_come_does_not_say_who_there_is_if_it_has_data_of_its_own():
    one = await Talk().start()
    refused = (await one.hello(["north"]))["refused"]
    assert "does not know which clients take part" in refused and "federation.clients" in refused
    assert one.roster.names == []


async def test_whoever_enrols_speaks_for_itself():
    one = await Talk(enrols=True, start_with=2).start()
    await one.hello(["south"])
    # it claims a client that another process speaks for, and one that nobody does
    one.reception.attach("north", Attach(client="north", host="north", examples=1))
    await one.hello(["mallory", "north", "nobody"], attach=False)
    assert one.roster.names == ["mallory", "south"] and one.roster.present() == {1}
    await one.hello(["north"])
    assert one.roster.names == ["mallory", "north", "south"] and one.roster.present() == {1, 2}
    one.roster.open = False
    assert "no more clients can enrol" in (await one.hello(["west"], attach=False))["refused"]
    assert "refused" not in await one.hello(["south"])  # one that was there comes back


async def test_a_stranger_has_everybody_called_less_and_less_often():
    """A process that is not known is called.

    One that goes on and says no hello costs the others little.
    """
    end = await Hub().transport("run").coordinator()
    called, now = [], 1000.0
    session = Session(
        end, CoordinatorSettings(), Progress(), Rejected(Progress(), "run"), "it", clock=lambda: now
    )

    async def call(soon=()):
        called.append(now)

    session.call = call
    while now < 1300.0:
        session.stranger = True
        await session.pause(0)
        now += 0.25
    gaps = [b - a for a, b in itertools.pairwise(called)]
    assert (
        called[0] == 1000.0
        and gaps[0] < 2
        and gaps == sorted(gaps)
        and gaps[-1] > 30
        and len(called) < 18
    )
    now += 100.0  # it has stopped; the next is called at once, and soon again
    for _ in range(10):
        session.stranger = True
        await session.pause(0)
        now += 0.25
    assert called[-2:] == [called[-2], called[-2] + 1.25] and called[-2] >= 1400.0


async def test_all_clients_are_not_looked_at_for_each_that_comes(monkeypatch):
    names = [f"client-{number:03d}" for number in range(200)]
    one, looks = await Talk(names=names).start(), []
    present = one.roster.present
    monkeypatch.setattr(one.roster, "present", lambda: looks.append(1) or present())
    start = asyncio.create_task(one.reception.assemble())
    for name in names:
        await one.hello([name])
    await start
    assert len(one.roster.present()) == 200 and len(looks) < 150  # two at each look at all
