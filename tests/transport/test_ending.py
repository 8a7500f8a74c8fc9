"""Work that is ended ends, also if what it waits for swallows a cancellation."""

import asyncio

from fedseed.transport.base import end_task


def test_a_swallowed_cancellation_is_repeated():
    """As nats-py's `publish` swallows one while it flushes."""
    swallowed = []

    async def work():
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if len(swallowed) == 2:
                    raise
                swallowed.append(1)

    async def end():
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        await end_task(task)
        return task.cancelled()

    assert asyncio.run(end()) and len(swallowed) == 2
