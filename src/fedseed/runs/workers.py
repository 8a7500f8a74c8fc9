"""Local worker processes among which a simulation deals a round's clients (`fedseed run --workers N`).

Each holds the model at the weights of the run: it loads the base by itself, and is told with each piece of work which
steps it has not applied yet. A client's answer depends on (seed, round, client) and the weights and on nothing else, so
it does not matter which process computes it, when, or how often. So a worker that dies is replaced, and what it was
working on is done again.

Each worker has a thread here, which takes the next piece of work, sends it and waits for the result, also while the
main thread evaluates.
"""

import pickle
import queue
import signal
import threading
import traceback
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedseed.errors import FedseedError, RecipeError
from fedseed.orbit.record import NO_DIGEST, Record
from fedseed.processes import start, tell

if TYPE_CHECKING:
    from fedseed.federation.hosted import Hosted
    from fedseed.federation.worker import Answer
    from fedseed.training.together import Look, Seen

MOST_DEATHS = 5  # of one worker, or over one piece of work, without a result in between: it will not get better


# -- what a run and its workers say to each other: pickled, for they are one program and trust each other --------------


class Train(NamedTuple):
    """Do what a plan asks of a client; the result is its `Answer`."""

    plan: bytes
    client: int


class Evaluate(NamedTuple):
    """Measure a part of the losses that a round's clients have in common; the result says what each look found."""

    plans: Sequence[bytes]  # of all clients that take part
    clients: Sequence[int]
    part: int  # of the looks, numbered in order, those whose number is this modulo `parts`
    parts: int  # how many workers share them


Work = Train | Evaluate


class Order(NamedTuple):
    """Apply the steps that you lack, then do the work."""

    records: Sequence[Record]
    memory: Path | None  # the folder of what clients keep from round to round; None: they keep nothing
    work: Work


class Done(NamedTuple):
    """Work is done, or one process would have raised something: then the worker ends."""

    result: "Answer | Mapping[Look, Seen] | None" = None  # a client's answer, or losses by look
    memory: int = 0  # the worker's peak so far, in bytes
    error: Exception | None = None


@dataclass
class _Task:
    """A piece of a round's work."""

    order: Work
    result: "Future[Any]" = field(default_factory=Future)
    losses: int = 0  # how many workers died over it


@dataclass
class _Seat:
    """The place of a worker; one that dies is followed by another in the same place."""

    number: int
    process: BaseProcess | None = None
    connection: "Connection[Any, Any]" = field(init=False)
    start: bytes | None = None  # what an orbit of the model that it has loaded begins with; None: it has not yet
    at: int = 0  # the round of the newest step that it has been told
    task: _Task | None = None
    deaths: int = 0  # of workers in this place since one there has had a result

    def end(self) -> int:
        """Ends the worker, whatever it does, and returns its exit code."""
        assert self.process is not None
        self.process.kill()
        self.connection.close()
        self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode


class Workers:
    """The workers of one run.

    Args:
        load: returns the model at its base, with the examples of all clients; it is pickled for the workers, so it is
            a function of a module, or a `functools.partial` of one.
        count: how many workers.
        threads: how many threads each computes with; None: an even share of those that this process has.

    Raises:
        RecipeError: `count` is not positive.
    """

    def __init__(self, load: "Callable[[], Hosted]", count: int, threads: int | None = None) -> None:
        if count < 1:
            raise RecipeError(f"workers = {count}: at least 1")
        if threads is None:
            import torch

            threads = max(1, torch.get_num_threads() // count)
        self._load = pickle.dumps(load)
        self.threads = threads
        self.seats = [_Seat(number) for number in range(count)]
        self.memory = 0  # the largest peak of a worker, in bytes
        self.warn: Callable[[str], None] = lambda text: None  # is told of workers that died, from their threads
        self._expected = b""
        self._newest = False
        self._remembered: Path | None = None
        self._records: list[Record] = []  # what a new worker has to catch up on
        self._waiting: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._dealt: list[_Task] = []
        self._lives: list[threading.Thread] = []
        self._closing = False
        self._lock = threading.Lock()  # no worker is started once they are told to end

    # -- what the run says -------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Let the workers load, once; this process may do the same meanwhile."""
        if not self._lives and not self._closing:
            self._lives = [threading.Thread(target=self._live, args=(seat,), daemon=True) for seat in self.seats]
            for life in self._lives:
                life.start()

    def limit(self, most: int) -> None:
        """Starts no more workers than can have work at once."""
        if not self._lives:
            del self.seats[most:]

    def expect(self, start: bytes, newest: bool, memory: Path | None = None) -> None:
        """Says what the run is, before it starts.

        Args:
            start: what its orbit begins with: a worker that has loaded something else is no use.
            newest: whether a step replaces all before it.
            memory: the folder of what clients keep from round to round; None: they keep nothing.
        """
        self._remembered = memory
        self._expected = start
        self._newest = newest

    def begin(self, orders: Sequence[Work]) -> None:
        """Deal out a round's work; `results` waits for it."""
        self.load()
        self._dealt = [_Task(order) for order in orders]
        for task in self._dealt:
            self._waiting.put(task)

    def results(self) -> list[Any]:
        """Returns the results of the work that was dealt out, in its order, once all are there.

        Raises:
            FedseedError: workers die again and again, or one has another base.
            Exception: what a worker raised.
        """
        return [task.result.result() for task in self._dealt]

    def apply(self, *records: Record) -> None:
        """Takes steps, which workers apply before they go on; those of an earlier session, too."""
        for record in records:
            if not self._newest:
                self._records.append(record)
            elif record.payload:  # an empty one changes nothing
                self._records = [record]

    def confirm(self, digest: str) -> None:
        """Takes the weights' digest after the last step: a worker that catches up compares."""
        if self._records and digest != NO_DIGEST:
            self._records[-1] = replace(self._records[-1], digest=digest)

    def close(self) -> None:
        """End all workers, whatever they do; again is fine."""
        with self._lock:
            self._closing = True
            for seat in self.seats:
                self._waiting.put(None)
                if seat.process is not None:
                    seat.process.kill()
        for life in self._lives:
            life.join()

    # -- a worker's thread -------------------------------------------------------------------------------------------

    def _live(self, seat: _Seat) -> None:
        """Has workers in a place, one after the other if they die, and gives them work until the run is over."""
        try:
            while self._start(seat):
                try:
                    problem = self._give_work(seat)
                except (EOFError, OSError):
                    self._replace(seat)
                    continue
                if problem is not None:
                    self._fail(problem, seat.task)
        except Exception as error:
            self._fail(error, seat.task)
        if seat.process is not None:
            seat.end()

    def _start(self, seat: _Seat) -> bool:
        """Starts a worker where there is none; returns whether the run goes on."""
        with self._lock:
            if seat.process is None and not self._closing:
                seat.start, seat.at = None, 0
                made = start(main, seat.number, self._load, threads=self.threads)
                seat.process, seat.connection = made
        return not self._closing

    def _give_work(self, seat: _Seat) -> Exception | None:
        """Lets a worker that has loaded the model do the next piece of work.

        Returns:
            What the worker has raised, or what is wrong with it; None: nothing.

        Raises:
            EOFError, OSError: it has died.
        """
        if seat.start is None:
            done = seat.connection.recv()
            if done.error is not None:
                return done.error
            seat.start = done.result
        task = seat.task = self._waiting.get()
        if task is None:
            return None
        if seat.start != self._expected:
            return FedseedError(
                f"worker {seat.number + 1} has loaded another model than this process: has the base changed meanwhile? "
                "Start again"
            )
        lacking = self._records[bisect_right(self._records, seat.at, key=lambda record: record.round) :]
        if seat.at:  # only one that begins here compares: to hash the weights takes long
            lacking = [replace(record, digest=NO_DIGEST) for record in lacking]
        tell(seat.connection, Order(lacking, self._remembered, task.order))
        seat.at = lacking[-1].round if lacking else seat.at
        done = seat.connection.recv()
        if done.error is not None:
            return done.error
        self.memory = max(self.memory, done.memory)
        seat.task, seat.deaths = None, 0
        task.result.set_result(done.result)
        return None

    def _replace(self, seat: _Seat) -> None:
        """Clears a dead worker's place for another one, which will find its work dealt again."""
        if self._closing:
            return
        code, task, loaded = seat.end(), seat.task, seat.start is not None
        seat.process, seat.task = None, None
        seat.deaths += 1
        deaths = seat.deaths
        if task is not None:
            task.losses += 1
            deaths = max(deaths, task.losses)
        if deaths >= MOST_DEATHS:
            self._fail(FedseedError(_hopeless(code, deaths, loaded)), task)
            return
        self.warn(f"worker {seat.number + 1} died ({_how(code)}): another takes its place")
        if task is not None:
            self._waiting.put(task)

    def _fail(self, error: Exception, task: _Task | None) -> None:
        """Gives up a place: whatever work comes to it fails, until the run is over."""
        while (task := task or self._waiting.get()) is not None:
            task.result.set_exception(error)
            task = None


def _how(code: int) -> str:
    """Says how a process ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}" + (", as a system out of memory does" if name == "SIGKILL" else "")


def _hopeless(code: int, deaths: int, loaded: bool) -> str:
    """Says why it is given up."""
    when = "over the same work" if loaded else "before they had loaded the model"
    return (
        f"workers died {deaths} times in a row {when} ({_how(code)}); each holds a model of its own: try fewer "
        "--workers, or smaller batches (method.training.batch, method.batch); what was said above may tell more"
    )


# -- a worker ----------------------------------------------------------------------------------------------------------


def main(orders: "queue.SimpleQueue[Order]", say: Callable[[Done], None], number: int, load: bytes) -> None:
    """Loads the model and does one piece of work after the other: the life of a worker's process.

    Args:
        orders: what to do.
        say: tells the run's process what came of it.
        number: the worker's, from 0; on a machine with GPUs it decides which one is its.
        load: a pickled function that returns a `Hosted` of all clients.
    """
    try:
        import torch  # which takes its time, as all does that needs it

        from fedseed.runs.learner import peak_memory
        from fedseed.training.memory import Memory

        if count := torch.cuda.device_count():  # "cuda" is one of the GPUs to each worker
            torch.cuda.set_device(number % count)
        hosted = pickle.loads(load)()
        say(Done(hosted.start))
        while True:
            records, folder, work = orders.get()
            if folder is not None:
                hosted.worker.memory = Memory(folder)
            hosted.worker.catch_up(records)
            say(Done(_work(hosted, work), peak_memory(hosted.worker.space.devices)))
    except Exception as error:
        error.add_note("in a worker process:\n" + "".join(traceback.format_exception(error)).rstrip())
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an error with arguments of its own does not travel, but what it says does
            error = RuntimeError(f"{type(error).__name__}: {error}")
        say(Done(error=error))


def _work(hosted: "Hosted", work: Work) -> Any:
    """Returns a client's answer, or a part of what several clients look at together."""
    if isinstance(work, Train):
        return hosted.worker.train(work.plan, work.client, hosted.items[hosted.names[work.client]])
    items = [hosted.items[hosted.names[client]] for client in work.clients]
    return hosted.worker.look(work.plans, work.clients, items, work.part, work.parts)
