"""The coordinator's list of clients, and who is let in by it."""

import asyncio

import pytest

from fedseed.federation.membership import Roster
from support.reception import Talk


def test_parties_need_only_know_themselves():
    async def talk():
        one = Talk(names=("north", "south"))
        await one.start()
        assert "refused" not in await one.hello(["south"])
        assert one.roster.names == ["north", "south"] and one.roster.present() == {1} and one.roster.away() == ["north"]
        assert (
            "this run has no client west: it has north, south" in (await one.hello(["west"], attach=False))["refused"]
        )
        assert "another list of clients" in (await one.hello(["south"], party=False))["refused"]
        assert "refused" not in await one.hello(["north", "south"], party=False)
        assert one.roster.present() == {0, 1}

    asyncio.run(talk())


def test_the_first_to_come_does_not_say_who_there_is_if_it_has_data_of_its_own():
    async def talk():
        one = Talk()
        await one.start()
        refused = (await one.hello(["north"]))["refused"]
        assert "does not know who takes part" in refused and "federation.clients" in refused
        assert one.roster.names == []

    asyncio.run(talk())


def test_whoever_enrols_speaks_for_itself():
    async def talk():
        one = Talk(enrols=True, start_with=2)
        await one.start()
        await one.hello(["south"])
        # it claims a client that another process speaks for, and one that nobody does
        one.reception.attach("north", {"client": "north", "host": "north", "examples": 1})
        await one.hello(["mallory", "north", "nobody"], attach=False)
        assert one.roster.names == ["mallory", "south"] and one.roster.present() == {1}
        await one.hello(["north"])
        assert one.roster.names == ["mallory", "north", "south"] and one.roster.present() == {1, 2}
        one.roster.close()
        assert "nobody else can enrol" in (await one.hello(["west"], attach=False))["refused"]
        assert "refused" not in await one.hello(["south"])  # one that was there comes back

    asyncio.run(talk())


@pytest.mark.parametrize(("start_with", "wanted"), [(None, 3), (2, 2), (5, 5)])
def test_what_a_start_waits_for_is_never_less_than_was_asked(start_with, wanted):
    assert Roster(1.0, ["a", "b", "c"]).wanted(start_with) == wanted
