"""Other Python processes of fedseed's: forked from one that has imported what runs need, or new
ones.

They find the modules that this one finds, and no others: not those that happen to lie in the
working folder with somebody's data, such as a `peft.py` or `json.py`, where the command `fedseed`
does not look either. (A notebook, which does, hands it on.) The script that somebody has started is
not run once more. A process ends with the one that asked
for it, in the middle of whatever it does: the system closes a dead process' pipes, however it died.

What forks is the standard library's server. It computes nothing itself, so that no thread of torch
or numba exists yet when it forks. This module imports no torch; the server does.
"""

import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from fedseed.errors import RecipeError

# these take long; a run imports whatever else it needs. peft would bring bitsandbytes, which looks
# for GPUs: a process that has done so has children that can use none
IMPORTED = [
    "transformers.modeling_utils",
    "fedseed.models.adapters",
    "fedseed.randomness.kernels.cpu",
    "fedseed.reports.plots",
    "fedseed.runs.assembly",
]
# in the environment of the command line and its processes: their screen is fedseed's own
COMMAND = "FEDSEED_COMMAND"
# Windows can't fork: there each process imports everything itself
FORKS = "forkserver" in multiprocessing.get_all_start_methods()
CONTEXT: Any = multiprocessing.get_context("forkserver" if FORKS else "spawn")
NEW = multiprocessing.get_context("spawn")
GONE = 3  # exit code of a process whose asker is gone
# that torchrun started
GROUP = int(os.environ.get("WORLD_SIZE", 1)) if "TORCHELASTIC_RUN_ID" in os.environ else 1
_LOCK = threading.Lock()


def refuse_torchrun(feature: str) -> None:
    """Raise RecipeError if torchrun has started this process with others
    (`fedseed.federation.client.group`).
    """
    if GROUP > 1:
        raise RecipeError(
            f"{feature}: not for processes that torchrun starts together; leave one of the two out"
        )


def start(
    life: Callable[..., Any], *arguments: Any, threads: int | None = None, new: bool = False
) -> tuple[BaseProcess, Connection]:
    """Start a process that does `life(heard, say, *more)`.

    It ends with exit code 1 where that returns or raises.

    Args:
        life: a function of a module: `heard` is a queue of what this process sends, `say` sends
            something back, as does returning it.
        arguments: what it is called with, pickled.
        threads: how many threads numba and torch have there; None: as many as there are cores.
        new: start a process that has imported nothing, in place of a forked one.

    Returns:
        The process, deaf to Ctrl-C, which is for this one; and this end of the pipe.
    """
    ours, child_end = CONTEXT.Pipe()
    process = (NEW if new else CONTEXT).Process(
        target=_begin, args=(dict(os.environ), threads, life, child_end, *arguments)
    )
    with serving():
        process.start()
    child_end.close()
    return process, ours


def tell(connection: Any, thing: Any) -> None:
    """Send something as it is: not as a connection would, with tensors in memory that both
    share.
    """
    connection.send_bytes(pickle.dumps(thing, protocol=5))


def warm() -> None:
    """Start the server that forks, if there is none: it imports while this process does something
    else.
    """
    if not FORKS:
        return
    from multiprocessing import forkserver

    with serving():
        forkserver.ensure_running()


@contextmanager
def serving() -> Iterator[None]:
    """Inside, a process of `CONTEXT` or `NEW` may be started, and with it the server, as this
    module's text says.
    """
    # what a killed process leaves (a progress bar's lock) is cleared away at the end, and nobody
    # need hear of it
    hushed = ",".join(
        filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker:UserWarning"])
    )
    path = os.pathsep.join(map(os.fspath, sys.path))
    environment = {"PYTHONSAFEPATH": "1", "PYTHONPATH": path, "PYTHONWARNINGS": hushed}
    with _LOCK:
        earlier = {name: os.environ.get(name) for name in environment}
        main, current = sys.modules["__main__"], multiprocessing.current_process()
        # a daemon may start no processes; ours end with it in any case, so clear the mark
        daemon, current.daemon = current.daemon, False
        os.environ.update(environment)
        deaf = None
        if FORKS:
            deaf = _stay_deaf()
        # otherwise the new process would run the main module's file
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            if FORKS:
                CONTEXT.set_forkserver_preload(IMPORTED)
            yield
        finally:
            current.daemon = daemon
            sys.modules["__main__"] = main
            for name, value in earlier.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            if deaf is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, deaf)


def _stay_deaf() -> set[Any]:
    """Let Ctrl-C wait, also for processes that are started now; return the mask of before."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # to start it would let Ctrl-C through again
    return signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


def _begin(
    environment: dict[str, str],
    threads: int | None,
    life: Callable[..., Any],
    connection: Connection,
    *arguments: Any,
) -> None:
    """Run a process' life: the environment is that of whoever asked, not the server's."""
    os.environ.clear()
    os.environ.update(environment)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    try:
        if threads is not None:
            compute_with(threads)
        say = partial(tell, connection)
        say(life(messages, say, *arguments))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # threads that wait never end by themselves


def compute_with(threads: int) -> None:
    """Set the number of threads of numba and torch; call it before either starts threads."""
    import numba
    import torch

    os.environ["NUMBA_NUM_THREADS"] = str(threads)
    numba.config.reload_config()
    torch.set_num_threads(threads)


def _listen(connection: Connection, messages: "queue.SimpleQueue[Any]") -> None:
    """Take what is sent at once, so that whoever sends it never waits.

    Ends the process with the one that asked.
    """
    with suppress(EOFError, OSError):
        while True:
            messages.put(connection.recv())
    os._exit(GONE)
