"""Worker processes that share the clients of a simulation (`fedseed run --workers N`), on this
machine or on Ray.

Each worker holds the model with the run's weights: it loads the base itself, and each piece of work
comes with the steps that it has not applied yet. A client's answer depends only on (seed, round,
client) and the weights, so it does not matter which process computes it, or when. If a worker dies,
the run ends, and `--resume` continues it. On a Ray cluster, where machines come and go, another
worker takes over.

This process has one thread for each worker. A thread takes a free worker, sends it a piece of work
and waits for the result, even while the main thread evaluates.
"""

import pickle
import queue
import signal
import threading
import traceback
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedseed.actors import LIVES, Actor, Cluster
from fedseed.errors import FedseedError, RecipeError
from fedseed.orbit.record import NO_DIGEST, Record
from fedseed.processes import start, tell
from fedseed.reports.machine import resident_memory

if TYPE_CHECKING:
    from fedseed.federation.client.state import Hosted


# a worker's work, called with what the worker has loaded: `train` or `look` with their other
# arguments bound
Work = Callable[["Hosted"], Any]


class _DiedError(FedseedError):
    """A worker has died.

    Args:
        description: which worker, and how it ended.
    """

    def __init__(self, description: str) -> None:
        self.description = description
        super().__init__(
            f"{description}: continue with --resume. Each worker holds its own copy of the model: "
            "try fewer --workers, or smaller batches (method.training.batch, method.batch)"
        )


class Order(NamedTuple):
    """A message to a worker: first apply these steps, then do the work."""

    records: Sequence[Record]
    # folder of what clients keep from round to round; None: they keep nothing
    memory: Path | None
    work: Work


class Done(NamedTuple):
    """A worker's reply: the result of its work, or the error that ended it."""

    # first message: the start of an orbit of the loaded model; later: an `Answer`, or what `look`
    # measured
    result: Any = None
    memory: int = 0  # the worker's peak memory so far, in bytes
    error: Exception | None = None


@dataclass
class Seat:
    """The place of one worker; a replacement takes the same seat."""

    number: int
    process: BaseProcess | Actor | None = None
    connection: "Connection[Any, Any] | Actor" = field(init=False)
    # the start of an orbit of the model that the worker has loaded; None: it is still loading
    start: bytes | None = None
    # the round of the newest step that the worker was sent
    last_round: int = 0


class Workers:
    """The workers of one run.

    Args:
        load: returns the base model with the examples of all clients. It is pickled for the
            workers, so it must be a module's function or a `functools.partial` of one.
        count: number of workers.
        threads: threads of each worker; None: an even share of this process's threads.
        cluster: the Ray cluster where the workers run; None: on this machine.

    Raises:
        RecipeError: `count` is not positive.
    """

    def __init__(
        self,
        load: "Callable[[], Hosted]",
        count: int,
        threads: int | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        if count < 1:
            raise RecipeError(f"workers = {count}: must be at least 1")
        self._start: Callable[..., tuple[Any, Any]] = start if cluster is None else cluster.start
        if cluster is not None:
            threads = cluster.threads
        if threads is None:
            import torch

            threads = max(1, torch.get_num_threads() // count)
        self._load = pickle.dumps(load)
        self.threads = threads
        self.seats = [Seat(number) for number in range(count)]
        # called with a message about a worker that is replaced
        self.warn: Callable[[str], None] = lambda text: None
        self.memory = 0  # the largest peak memory of a worker, in bytes
        self._expected = b""
        self._newest = False
        self._remembered: Path | None = None
        # the steps that a freshly loaded worker must apply
        self._records: list[Record] = []
        self._threads: ThreadPoolExecutor | None = None
        self._free: queue.SimpleQueue[Seat] = queue.SimpleQueue()
        self._dealt: list[Future[Any]] = []
        self._closing = False
        # no worker starts once `close` has been called
        self._lock = threading.Lock()

    def load(self) -> None:
        """Start the workers, which load the model. This process may load it at the same time. Later
        calls do nothing.
        """
        if self._threads is None and not self._closing:
            self._threads = ThreadPoolExecutor(len(self.seats))
            for seat in self.seats:
                self._free.put(seat)
            for _ in self.seats:
                self._threads.submit(self._give, None)

    def limit(self, most_workers: int) -> None:
        """Reduce the number of workers to those that can have work at the same time."""
        if self._threads is None:
            del self.seats[most_workers:]

    def expect(self, start: bytes, newest: bool, memory: Path | None = None) -> None:
        """Set what the workers of a run need to know, before the run starts.

        Args:
            start: the start of the run's orbit; a worker that has loaded another model fails.
            newest: whether a step replaces all earlier steps.
            memory: folder of what clients keep from round to round; None: they keep nothing.
        """
        self._remembered = memory
        self._expected = start
        self._newest = newest

    def begin(self, orders: Sequence[Work]) -> None:
        """Give the workers a round's work; `results` waits for it."""
        self.load()
        if self._threads is not None:
            self._dealt = [self._threads.submit(self._give, order) for order in orders]

    def results(self) -> list[Any]:
        """Wait for all work given to `begin`, and return its results in order.

        Raises:
            FedseedError: a worker has died, or has loaded another base.
            Exception: an error that a worker raised.
        """
        return [future.result() for future in self._dealt]

    def apply(self, *records: Record) -> None:
        """Add steps for the workers, which apply them before their next work. Also used for the
        steps of earlier sessions.
        """
        for record in records:
            if not self._newest:
                self._records.append(record)
            elif record.payload:  # an empty step changes nothing
                self._records = [record]

    def confirm(self, digest: str) -> None:
        """Set the weights' digest after the last step. A worker that catches up compares it with
        its own.
        """
        if self._records and digest != NO_DIGEST:
            self._records[-1] = replace(self._records[-1], digest=digest)

    def close(self) -> None:
        """End all workers, busy or not; later calls do nothing."""
        with self._lock:
            self._closing = True
            processes = [seat.process for seat in self.seats if seat.process is not None]
            for process in processes:
                process.kill()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for process in processes:
            process.join()

    def _give(self, work: Work | None) -> Any:
        """Have a free worker do a piece of work, and return the result.

        Without work (None) the worker is only started.
        """
        seat = self._free.get()
        try:
            for lives_left in reversed(range(LIVES)):
                with self._lock:
                    if seat.process is None and not self._closing:
                        arguments = seat.number, self._load
                        seat.process, seat.connection = self._start(
                            _live, *arguments, threads=self.threads
                        )
                try:
                    if work is None:
                        return None
                    return self._do_work(seat, work)
                except _DiedError as error:
                    if not lives_left or self._closing:
                        raise
                    self.warn(
                        f"{error.description}: another worker takes over and repeats its work"
                    )
                    seat.process, seat.start, seat.last_round = None, None, 0
            return None
        finally:
            self._free.put(seat)

    def _do_work(self, seat: Seat, work: Work) -> Any:
        """Return the result of a piece of work.

        Raises the worker's own error, or FedseedError if the worker has loaded another model.
        """
        if seat.start is None:
            seat.start = _exchange(seat).result
        if seat.start != self._expected:
            raise FedseedError(
                f"worker {seat.number + 1} has loaded another model than this process, perhaps "
                "because the base's files changed: start again"
            )
        lacking = self._records[
            bisect_right(self._records, seat.last_round, key=lambda record: record.round) :
        ]
        # only a newly started worker compares digests, because hashing the weights takes long
        if seat.last_round:
            lacking = [replace(record, digest=NO_DIGEST) for record in lacking]
        seat.last_round = lacking[-1].round if lacking else seat.last_round
        outcome = _exchange(seat, Order(lacking, self._remembered, work))
        self.memory = max(self.memory, outcome.memory)
        return outcome.result


def _exchange(seat: Seat, order: Order | None = None) -> Done:
    """Give a worker an order, if there is one, and return its next message.

    Raises the worker's own error, or _DiedError.
    """
    try:
        if order is not None:
            tell(seat.connection, order)
        outcome: Done = seat.connection.recv()
    except (EOFError, OSError) as error:
        assert seat.process is not None
        seat.process.join()
        ending = _describe_exit(seat.process.exitcode or 0)
        raise _DiedError(f"worker {seat.number + 1} died ({ending})") from error
    if outcome.error is not None:
        raise outcome.error
    return outcome


def _describe_exit(code: int) -> str:
    """Return a description of how a process ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}" + (", as a system out of memory does" if name == "SIGKILL" else "")


def _live(
    orders: "queue.SimpleQueue[Order]", say: Callable[[Done], None], number: int, load: bytes
) -> None:
    """Load the model, then do one piece of work after another; this is the main function of worker
    process `number` (from 0).
    """
    try:
        # imported here because torch and all modules that need it are slow to import
        import torch

        from fedseed.training.memory import Memory
        from fedseed.weights.devices import peak_on

        count = torch.cuda.device_count()
        if count:  # to each worker, "cuda" means one of the GPUs
            torch.cuda.set_device(number % count)
        hosted = pickle.loads(load)()
        say(Done(hosted.start))
        while True:
            records, folder, work = orders.get()
            if folder is not None:
                hosted.worker.memory = Memory(folder)
            hosted.worker.catch_up(records)
            result = work(hosted)
            say(Done(result, peak_on(hosted.worker.space.devices) or resident_memory(peak=True)))
    except Exception as error:
        error.add_note(
            "in a worker process:\n" + "".join(traceback.format_exception(error)).rstrip()
        )
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # the error can't be pickled, so send its text
            error = RuntimeError(f"{type(error).__name__}: {error}")
        say(Done(error=error))


def train(plan: bytes, client: int, hosted: "Hosted") -> Any:
    """Carry out a client's plan and return its `Answer`."""
    return hosted.worker.train(plan, client, hosted.items[hosted.names[client]])


def look(
    plans: Sequence[bytes], clients: Sequence[int], part: int, parts: int, hosted: "Hosted"
) -> Any:
    """Measure a part of the losses that a round's clients share.

    Returns the result of each measurement.

    Measurements are numbered in order. This part has those whose number is `part` modulo `parts`,
    the number of workers.
    """
    return hosted.worker.look(
        plans, clients, [hosted.items[hosted.names[c]] for c in clients], part, parts
    )
