"""A local worker's life: it loads the model, applies every step, and answers for the clients it is given.

Started by `fedseed.runs.workers`. A thread listens for orders and ends the process, in the middle of whatever it does,
when the run's own process is gone: the system closes a dead process' sockets, however it died.
"""

import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from fedseed.runs.workers import Apply, CatchUp, Done, Evaluate, Failed, Load, Loaded, Order, Reply, Train

if TYPE_CHECKING:
    from fedseed.federation.hosted import Hosted

GONE = 3  # exit code of a worker whose run is gone


def main(handle: int | str) -> None:
    """Do what comes in over a socket, until it is closed. Does not return.

    Args:
        handle: the socket's file descriptor.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, whose end is this one's, too
    connection: Connection[Reply, Order] = Connection(int(handle))
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders), daemon=True).start()
    try:
        _serve(connection, orders)
    except Exception as error:
        with suppress(OSError):
            connection.send_bytes(pickle.dumps(Failed(_portable(error))))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def choose_device(number: int) -> None:
    """Worker i works on GPU i modulo their number: "cuda" is that one to it. Without GPUs there is no choice."""
    import torch

    if count := torch.cuda.device_count():
        torch.cuda.set_device(number % count)


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
    from fedseed.runs.learner import (
        limited,
        peak_memory,  # all that follows needs torch, which takes its time
    )
    from fedseed.training.memory import Memory

    with limited(first.threads):
        choose_device(first.number)
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


def _portable(error: Exception) -> Exception:
    """The error as the run's process can raise it, with a note of where it was raised here."""
    error.add_note("in a worker process:\n" + "".join(traceback.format_exception(error)).rstrip())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an error with arguments of its own does not travel, but what it says does
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
