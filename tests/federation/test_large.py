"""Messages that are too large for one piece."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from fedseed.federation.large import Room


@given(st.lists(st.integers(0, 10), max_size=20), st.randoms(use_true_random=False))
def test_all_get_room_in_turn_and_never_more_than_there_is(sizes, chance):
    """Whoever has room gives it back in any order.

    A task that is cancelled, or fails, gives it back too.
    """
    began, held, ends = [], {}, [asyncio.Event() for _ in sizes]

    async def takes(number, room):
        async with room.reserve(sizes[number]):
            began.append(number)
            held[number] = sizes[number]
            assert sum(held.values()) <= 10
            await ends[number].wait()
            del held[number]
            if chance.random() < 0.3:
                raise ValueError

    async def all_of_them():
        room = Room(10)
        tasks = [asyncio.create_task(takes(number, room)) for number in range(len(sizes))]
        given_up = set()
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            waiting = [n for n, task in enumerate(tasks) if n not in began and not task.done()]
            if waiting and chance.random() < 0.2:
                given_up.add(gone := chance.choice(waiting))
                tasks[gone].cancel()
            elif held:
                ends[chance.choice(sorted(held))].set()
        assert not held and given_up.isdisjoint(began)
        assert began == sorted(set(range(len(sizes))) - given_up)  # who comes first is first
        await asyncio.gather(*tasks, return_exceptions=True)
        async with room.reserve(10):  # all of it is there again
            pass

    asyncio.run(all_of_them())
