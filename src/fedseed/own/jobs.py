"""A queue of work on one model: one job at a time, each for a client who may leave."""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fedseed.federation.client.state import WorkThread

# most seconds that a client is asked to wait
LONGEST_RETRY = 60


class QueueFullError(Exception):
    """The queue is full: no further job may wait."""


class JobCancelledError(Exception):
    """The client has left, or the server ends."""


class Job:
    """The work for one client, which reports events, and ends early if it is cancelled.

    It is made by `JobQueue.submit` within an event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._was_cancelled = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def tell(self, event: Any) -> None:
        """Pass an event to the reader of `events`; may be called in any thread."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def is_cancelled(self) -> bool:
        """Return whether the job is cancelled; may be called in any thread."""
        return self._was_cancelled.is_set()

    def cancel(self) -> None:
        """End the job: at once if it has not begun, otherwise when it calls `is_cancelled`."""
        self._was_cancelled.set()
        if self._task is not None:
            self._task.cancel()

    def start(self, task: "asyncio.Task[None]") -> None:
        """Set the task that does the work."""
        self._task = task
        task.add_done_callback(self._finish)

    def _finish(self, task: "asyncio.Task[None]") -> None:
        # the server may end it while the thread still works
        if task.cancelled():
            self._was_cancelled.set()
        self._events.put_nowait(task)

    def on_end(self, act: Callable[[], Any]) -> None:
        """Call a function once the job is over."""
        assert self._task is not None
        self._task.add_done_callback(lambda _: act())

    async def events(self) -> AsyncIterator[Any]:
        """Yield the events until the work is done.

        Raises:
            JobCancelledError: the job was cancelled.
            Exception: what the work has raised.
        """
        while (event := await self._events.get()) is not self._task:
            yield event
        assert self._task is not None
        if self._task.cancelled() or self.is_cancelled():
            raise JobCancelledError
        self._task.result()


class JobQueue:
    """A queue that runs jobs in their order of arrival, one at a time, in a thread of its own."""

    def __init__(self) -> None:
        self._thread = WorkThread()
        self._jobs = set[Job]()
        # mean seconds of a job, with more weight on newer jobs
        self._seconds = 1.0
        self._started: float | None = None  # when the current job was begun

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def working_seconds(self) -> float:
        """Return the seconds since the current job began; 0 without a job."""
        started = self._started
        if started is None:
            return 0.0
        return time.monotonic() - started

    @property
    def retry_seconds(self) -> int:
        """Return the seconds after which the queue is likely to have room again."""
        expected = max(self._seconds, self.working_seconds)
        return min(LONGEST_RETRY, max(1, math.ceil(expected)))

    def submit(self, work: Callable[[Job], None], limit: int) -> Job:
        """Put work into the queue.

        Args:
            work: is called in the queue's thread with its job.
            limit: the most jobs at a time, the running one included.

        Raises:
            QueueFullError: too many jobs are waiting.
        """
        if len(self._jobs) >= limit:
            raise QueueFullError
        job = Job()
        self._jobs.add(job)
        job.start(asyncio.ensure_future(self._thread.run(self._run, work, job)))
        job.on_end(lambda: self._jobs.discard(job))
        return job

    def _run(self, work: Callable[[Job], None], job: Job) -> None:
        if job.is_cancelled():
            return
        self._started = time.monotonic()
        try:
            work(job)
        finally:
            self._seconds += 0.2 * (self.working_seconds - self._seconds)
            self._started = None

    def cancel_all(self) -> None:
        """Cancel all jobs."""
        for job in list(self._jobs):
            job.cancel()

    def end(self) -> None:
        """Cancel all jobs, and begin nothing more."""
        self.cancel_all()
        self._thread.end()
