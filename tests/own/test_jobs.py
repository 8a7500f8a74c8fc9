"""The queue of a server's work: one job at a time, and nothing is done for who has left."""

import asyncio
import threading

import pytest

from fedseed.own.jobs import JobCancelledError, JobQueue, QueueFullError


def with_queue(act):
    """Runs a coroutine function with a queue, which is ended."""

    async def run():
        queue = JobQueue()
        try:
            await asyncio.wait_for(act(queue), 60)
        finally:
            queue.end()

    asyncio.run(run())


async def events_of(job):
    return [event async for event in job.events()]


def blocker(began, may_end):
    """Work that says when it has begun, and goes on until it may end or is cancelled."""

    def work(job):
        began.set()
        while not (may_end.is_set() or job.is_cancelled()):
            may_end.wait(0.01)

    return work


def test_jobs_are_done_one_after_the_other_in_their_order():
    working, order = [], []

    def work(number):
        def do(job):
            working.append(number)
            assert working == [number]
            job.tell(number)
            order.append(number)
            working.remove(number)

        return do

    async def act(queue):
        jobs = [queue.submit(work(number), 10) for number in range(10)]
        assert len(queue) == 10
        told = await asyncio.gather(*map(events_of, jobs))
        assert told == [[number] for number in range(10)] and order == list(range(10))
        assert len(queue) == 0

    with_queue(act)


def test_what_work_raises_comes_after_its_events():
    def work(job):
        job.tell("a")
        raise ValueError("broken")

    async def act(queue):
        told = []
        with pytest.raises(ValueError, match="broken"):
            async for event in queue.submit(work, 1).events():
                told.append(event)
        assert told == ["a"] and len(queue) == 0

    with_queue(act)


def test_no_more_wait_than_may():
    async def act(queue):
        began, may_end = threading.Event(), threading.Event()
        jobs = [queue.submit(blocker(began, may_end), 3) for _ in range(3)]
        with pytest.raises(QueueFullError):
            queue.submit(lambda job: None, 3)
        assert 1 <= queue.retry_seconds <= 60
        jobs[1].cancel()  # its place is free at once
        with pytest.raises(JobCancelledError):
            await events_of(jobs[1])
        jobs.append(queue.submit(lambda job: job.tell("last"), 3))
        may_end.set()
        assert await events_of(jobs[-1]) == ["last"]

    with_queue(act)


def test_nothing_is_done_for_clients_who_have_left():
    done = []

    async def act(queue):
        began, never = threading.Event(), threading.Event()
        running = queue.submit(blocker(began, never), 100)
        waiting = [queue.submit(done.append, 100) for _ in range(50)]
        await asyncio.to_thread(began.wait)
        assert queue.working_seconds > 0
        last = queue.submit(lambda job: job.tell("last"), 100)
        for job in (*waiting, running):
            job.cancel()
        assert await events_of(last) == ["last"]  # the job that was running has ended
        assert done == [] and len(queue) == 0 and queue.working_seconds == 0

    with_queue(act)


def test_the_queues_end_ends_what_is_running():
    async def act(queue):
        began = threading.Event()
        queue.submit(blocker(began, threading.Event()), 1)
        await asyncio.to_thread(began.wait)

    with_queue(act)  # its end waits for the thread
