"""Local worker processes among which a simulation deals a round's clients (`fedseed run --workers N`).

Each holds the model at the weights of the run: it loads the base by itself and applies every step, as the run's own
process does. A client's answer depends on (seed, round, client) and the weights and on nothing else, so it does not
matter which process computes it, when, or how often. So a worker that dies is replaced: the new one loads the base and
catches up on the steps so far, or on the newest one where that replaces all before it (`Method.catch_up`), and what the
dead one was working on is dealt again.

A thread hears the workers: it takes results, deals out and replaces, also while the main thread evaluates.
"""

import os
import pickle
import queue
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedseed.errors import FedseedError, RecipeError
from fedseed.orbit.record import NO_DIGEST, Record
from fedseed.processes import start

if TYPE_CHECKING:
    from fedseed.federation.hosted import Hosted
    from fedseed.federation.worker import Answer
    from fedseed.training.together import Look, Seen

GONE = 3  # exit code of a worker whose run is gone
MOST_DEATHS = 5  # of one worker, or over one piece of work, without a result in between: it will not get better


# -- what a run and its workers say to each other: pickled, for they are one program and trust each other --------------


class Load(NamedTuple):
    """The first order: load the model at its base, and the clients' examples."""

    number: int  # the worker's, from 0; on a machine with GPUs it decides which one is its
    threads: int  # torch's and numba's
    load: bytes  # a pickled function that returns a `Hosted` of all clients


class CatchUp(NamedTuple):
    """Apply the steps so far."""

    records: Sequence[Record]
    memory: Path | None = None  # the folder of what clients keep from round to round; None: they keep nothing


class Apply(NamedTuple):
    """Apply a step, as the coordinator's message has it."""

    step: bytes


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


class Loaded(NamedTuple):
    """The model is at its base; `start` is what an orbit of it begins with, which must be the run's own."""

    start: bytes


class Done(NamedTuple):
    """Work is done: a client's answer, or losses by look."""

    result: "Answer | Mapping[Look, Seen]"
    memory: int  # the worker's peak so far, in bytes


class Failed(NamedTuple):
    """What one process would have raised; the worker ends."""

    error: Exception


Work = Train | Evaluate
Order = Load | CatchUp | Apply | Work
Reply = Loaded | Done | Failed


class Workers:
    """What a simulation needs to know to start workers.

    Args:
        load: returns the model at its base, with the examples of all clients; it is pickled for the workers, so it is
            a function of a module, or a `functools.partial` of one.
        count: how many processes.
        threads: that each process computes with, the run's own one, too; by default those that one process would have
            are shared out.

    Raises:
        RecipeError: fewer than one process.
    """

    def __init__(self, load: "Callable[[], Hosted]", count: int, threads: int | None = None) -> None:
        if count < 1:
            raise RecipeError(f"workers = {count}: at least 1")
        if threads is None:
            import torch

            threads = max(1, torch.get_num_threads() // count)
        self.load = pickle.dumps(load)
        self.count = count
        self.threads = threads


@dataclass
class _Task:
    """A piece of a round's work."""

    position: int  # where its result belongs
    order: Work
    losses: int = 0  # how many workers died over it


@dataclass
class _Seat:
    """The place of a worker; one that dies is followed by another in the same place."""

    first: Load  # the order that a worker there begins with
    process: BaseProcess | None = None
    connection: "Connection[Order, Reply]" = field(init=False)
    loaded: bytes | None = None  # what an orbit of the model that it has loaded begins with; None: it has not yet
    ready: bool = False  # whether it is at the run's weights and can be given work
    task: _Task | None = None
    deaths: int = 0  # of workers in this place since one there has had a result

    def start(self) -> None:
        """Start a worker here."""
        self.loaded, self.ready = None, False
        self.process, self.connection = start(main, threads=self.first.threads)
        self.tell(pickle.dumps(self.first))

    def tell(self, order: bytes) -> None:
        """Send an order. A worker that is dead does not hear it: its successor will be told what it needs."""
        with suppress(OSError):
            self.connection.send_bytes(order)

    def kill(self) -> None:
        """Have the worker end, whatever it does: nothing that it holds is needed any more."""
        if self.process is not None:
            self.process.kill()

    def end(self) -> int:
        """Wait until the worker has ended, by itself or now; returns its exit code."""
        assert self.process is not None
        self.process.kill()
        self.connection.close()
        self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode


class Team:
    """The workers of one run.

    Args:
        workers: what to start.
        most: how many processes can have work at once at the most; no more are started.
    """

    def __init__(self, workers: Workers, most: int) -> None:
        count = min(workers.count, most)
        self.threads = workers.threads
        self.seats = [_Seat(Load(number, workers.threads, workers.load)) for number in range(count)]
        self.memory = 0  # the largest peak of a worker, in bytes
        self._expected = b""
        self._newest = False
        self._remembered: Path | None = None
        self._open = False  # whether workers that have loaded are let in
        self._records: list[Record] = []  # what a new worker has to catch up on
        self._waiting: deque[_Task] = deque()
        self._results: dict[int, Any] = {}
        self._wanted = 0
        self._said: list[str] = []  # for the main thread to tell
        self._problem: BaseException | None = None
        self._closing = False
        self._changed = threading.Condition()  # guards all of this
        self._bell, self._rope = Pipe(duplex=False)  # wakes the thread up when it is to end
        self._thread: threading.Thread | None = None

    # -- what the run says -------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Let the workers load, once; this process may do the same meanwhile."""
        if self._thread is None and not self._closing:
            for seat in self.seats:
                seat.start()
            self._thread = threading.Thread(target=self._hear, name="workers", daemon=True)
            self._thread.start()

    def expect(self, start: bytes, newest: bool, memory: Path | None = None) -> None:
        """What the run is, before it starts.

        Args:
            start: what its orbit begins with: a worker that has loaded something else is no use.
            newest: whether a step replaces all before it.
            memory: the folder of what clients keep from round to round; None: they keep nothing.
        """
        self._remembered = memory
        self._expected = start
        self._newest = newest

    def restored(self, records: Sequence[Record]) -> None:
        """Steps of an earlier session, before the run starts."""
        for record in records:
            self._keep(record)

    def start(self) -> None:
        """The run starts from here: workers catch up on what was restored, and on every step from now on."""
        self.load()
        with self._changed:
            if not self._open:
                self._open = True
                for seat in self.seats:
                    self._welcome(seat)

    def begin(self, orders: Sequence[Work]) -> None:
        """Deal out a round's work; `results` waits for it. Starts the run, if it has not been."""
        self.start()
        with self._changed:
            self._waiting = deque(_Task(position, order) for position, order in enumerate(orders))
            self._results, self._wanted = {}, len(orders)
            self._deal()

    def results(self, warn: Callable[[str], None]) -> list[Any]:
        """The results of the work that was dealt out, in its order, once all are there.

        Args:
            warn: is told of workers that died.

        Raises:
            FedseedError: workers die again and again, or one has another base.
            Exception: what a worker raised.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._said or self._problem or len(self._results) == self._wanted)
                said, self._said = self._said, []
                problem, results = self._problem, self._results
            for text in said:
                warn(text)
            if problem is not None:
                raise problem
            if len(results) == self._wanted:
                return [results[position] for position in range(self._wanted)]

    def apply(self, number: int, step: bytes, payload: bytes) -> None:
        """Let all workers apply a step.

        Args:
            number: the step's round.
            step: the message.
            payload: what it carries.
        """
        order = pickle.dumps(Apply(step), protocol=5)
        with self._changed:
            self._keep(Record(number, payload))
            for seat in self.seats:
                if seat.ready:  # others will catch up
                    seat.tell(order)

    def confirm(self, digest: str) -> None:
        """The weights' digest after the last step: a worker that catches up compares."""
        with self._changed:
            if self._records and digest != NO_DIGEST:
                self._records[-1] = replace(self._records[-1], digest=digest)

    def close(self) -> None:
        """End all workers, whatever they do; again is fine."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
        for seat in self.seats:
            seat.kill()
        self._rope.close()
        if self._thread is not None:
            self._thread.join()
        for seat in self.seats:
            if seat.process is not None:
                seat.end()
        self._bell.close()

    # -- what workers say --------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """The thread's life."""
        try:
            while True:
                with self._changed:
                    if self._closing or self._problem is not None:
                        return
                    speaking = {seat.connection: seat for seat in self.seats}
                for connection in wait([self._bell, *speaking]):
                    if connection is not self._bell:
                        self._take(speaking[connection])  # type: ignore[index]  # no sockets or handles among them
        except Exception as error:
            with self._changed:
                self._problem = error
                self._changed.notify_all()

    def _take(self, seat: _Seat) -> None:
        """A reply, or the end of a worker."""
        try:
            data = seat.connection.recv_bytes()
        except (EOFError, OSError):
            self._follow(seat)
            return
        reply: Reply = pickle.loads(data)
        with self._changed:
            match reply:
                case Loaded():
                    seat.loaded = reply.start
                    self._welcome(seat)
                case Done():
                    assert seat.task is not None
                    self._results[seat.task.position] = reply.result
                    self.memory = max(self.memory, reply.memory)
                    seat.task, seat.deaths = None, 0
                case Failed():
                    self._problem = reply.error
            self._deal()
            self._changed.notify_all()

    def _welcome(self, seat: _Seat) -> None:
        """Let a worker that has loaded the model catch up; from here on it is told every step."""
        if not self._open or seat.loaded is None:
            return
        if seat.loaded != self._expected:
            self._problem = FedseedError(
                f"worker {seat.first.number + 1} has loaded another model than this process: has the base changed "
                "meanwhile? Start again"
            )
            return
        seat.ready = True
        seat.tell(pickle.dumps(CatchUp(self._records, self._remembered), protocol=5))

    def _deal(self) -> None:
        """Give those work that have none."""
        for seat in self.seats:
            if self._waiting and seat.ready and seat.task is None:
                seat.task = self._waiting.popleft()
                seat.tell(pickle.dumps(seat.task.order, protocol=5))

    def _follow(self, seat: _Seat) -> None:
        """A worker is dead: start another in its place, and deal its work again."""
        with self._changed:
            if self._closing:
                return
            code, task, loaded = seat.end(), seat.task, seat.loaded is not None
            seat.task, seat.ready = None, False
            seat.deaths += 1
            deaths = seat.deaths
            if task is not None:
                task.losses += 1
                deaths = max(deaths, task.losses)
                self._waiting.appendleft(task)
            if deaths >= MOST_DEATHS:
                self._problem = FedseedError(_hopeless(code, deaths, loaded))
            else:
                self._said.append(f"worker {seat.first.number + 1} died ({_how(code)}): another takes its place")
                seat.start()
                self._deal()
            self._changed.notify_all()

    def _keep(self, record: Record) -> None:
        """Remember a step for workers that come later."""
        if not self._newest:
            self._records.append(record)
        elif record.payload:  # an empty one changes nothing
            self._records = [record]


def _how(code: int) -> str:
    """How a process ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}" + (", as a system out of memory does" if name == "SIGKILL" else "")


def _hopeless(code: int, deaths: int, loaded: bool) -> str:
    """Why it is given up."""
    when = "over the same work" if loaded else "before they had loaded the model"
    return (
        f"workers died {deaths} times in a row {when} ({_how(code)}); each holds a model of its own: try fewer "
        "--workers, or smaller batches (method.training.batch, method.batch); what was said above may tell more"
    )


# -- a worker ----------------------------------------------------------------------------------------------------------


def main(connection: "Connection[Reply, Order]") -> None:
    """A worker's life: does what comes in over a socket, until it is closed.

    A thread listens for orders and ends the process, in the middle of whatever it does, when the run's own process is
    gone: the system closes a dead process' sockets, however it died.
    """
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders), daemon=True).start()
    try:
        _serve(connection, orders)
    except Exception as error:
        error.add_note("in a worker process:\n" + "".join(traceback.format_exception(error)).rstrip())
        try:
            failed = pickle.dumps(Failed(error))
            pickle.loads(failed)
        except Exception:  # an error with arguments of its own does not travel, but what it says does
            failed = pickle.dumps(Failed(RuntimeError(f"{type(error).__name__}: {error}")))
        with suppress(OSError):
            connection.send_bytes(failed)


def _listen(connection: Connection, orders: "queue.SimpleQueue[bytes]") -> None:
    """Take orders off the socket at once, so that whoever sends them never waits."""
    try:
        while True:
            orders.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(GONE)


def _serve(connection: Connection, orders: "queue.SimpleQueue[bytes]") -> None:
    """Load, then carry out one order after the other."""
    first: Load = pickle.loads(orders.get())
    import torch  # which takes its time, as all does that needs it

    from fedseed.runs.learner import limited, peak_memory
    from fedseed.training.memory import Memory

    with limited(first.threads):
        if count := torch.cuda.device_count():  # "cuda" is one of the GPUs to each worker
            torch.cuda.set_device(first.number % count)
        hosted = pickle.loads(first.load)()
        connection.send_bytes(pickle.dumps(Loaded(hosted.start)))
        while True:
            order = pickle.loads(orders.get())
            match order:
                case CatchUp():
                    hosted.worker.memory = Memory(order.memory)
                    hosted.worker.catch_up(order.records)
                case Apply():
                    hosted.worker.apply(order.step)
                case Train() | Evaluate():
                    done = Done(_work(hosted, order), peak_memory(hosted.worker.space.devices))
                    connection.send_bytes(pickle.dumps(done, protocol=5))


def _work(hosted: "Hosted", order: Train | Evaluate) -> Any:
    """A client's answer, or a part of what several clients look at together."""
    if isinstance(order, Train):
        return hosted.worker.train(order.plan, order.client, hosted.items[hosted.names[order.client]])
    items = [hosted.items[hosted.names[client]] for client in order.clients]
    return hosted.worker.look(order.plans, order.clients, items, order.part, order.parts)
