"""Processes on the machines of a Ray cluster, in the place of `fedseed.processes`' on this one:
`--ray ADDRESS`.

An actor lives the same life as a process does, `life(heard, say, *more)`. fedseed must be installed
on every machine, and find bases, data and runs' folders at the same paths.
"""

import logging
import os
import pickle
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

from fedseed.errors import FedseedError, RecipeError, to_install
from fedseed.processes import compute_with
from fedseed.registry import one_line

AUTH_MODE = "RAY_AUTH_MODE"
LIVES = 3  # of what is done by an actor, after which it is to blame


class Cluster:
    """A Ray cluster, which this process joins.

    Args:
        address: of its head, such as "10.0.0.7:6379"; "auto": the one that this machine belongs to.
        count: how many actors there will be at a time.
        threads: of each; None: an even share of the cluster's processors.
        note: hears what a person should know of the cluster.

    Raises:
        RecipeError: there is no such cluster, it asks for a token, or it has too few processors.
        FedseedError: Ray is not installed.
    """

    def __init__(
        self,
        address: str,
        count: int,
        threads: int | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        if find_spec("ray") is None:
            raise FedseedError(f"--ray needs Ray: {to_install('ray')}")
        absent = (
            f"--ray {address}: no cluster answers there; `ray start --head` on one machine begins "
            "one, `ray start --address=HEAD:6379` on others joins it"
        )
        try:
            is_here = _reach(address)
        except (OSError, ValueError) as error:
            raise RecipeError(absent) from error
        if is_here and _has_token():
            # where a token is on this machine, a cluster that begins here asks for it, and Ray
            # sends it to no address that is named; it reads this when it is imported
            os.environ.setdefault(AUTH_MODE, "token")
        import ray

        try:
            ray.init(
                address, ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR
            )
        except (OSError, ValueError, ray.exceptions.RayError) as error:
            if is_here is None:
                raise RecipeError(absent) from error
            raise RecipeError(
                f"--ray {address}: something answers there, but this process can't join it "
                f"({one_line(error)}). If it is a Ray cluster, it may ask for a token: copy "
                "~/.ray/auth_token of its head to here, and set RAY_AUTH_MODE=token before Ray is "
                "imported"
            ) from error
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
        processors, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
        self.threads = threads or max(1, processors // count)
        if count * self.threads > processors:
            raise RecipeError(
                f"--ray {address}: {count} processes of {self.threads} threads, and the cluster "
                f"has {processors} processors: take fewer --workers, --jobs or --threads, or join "
                "more machines"
            )
        niceness = ray.get(ray.remote(num_cpus=0)(_set_niceness).remote(_niceness()))
        if niceness:
            note(
                f"Ray's processes have a niceness of {niceness}, and get little of a processor "
                "beside others: begin its machines with RAY_worker_niceness=0 ray start ..."
            )
        self._actor = ray.remote(_Life).options(
            num_cpus=self.threads,
            num_gpus=1 / ceil(count / gpus) if gpus else 0,
            max_concurrency=2,  # one call waits for the next word
        )

    def start(
        self, life: Callable[..., Any], *arguments: Any, threads: int | None = None
    ) -> tuple["Actor", "Actor"]:
        """Start an actor where there is room, as `processes.start` starts a process.

        It is its own connection.
        """
        surroundings = str(Path.cwd()), sys.path
        actor = Actor(
            self._actor.remote(
                pickle.dumps((life, arguments)), threads or self.threads, _niceness(), *surroundings
            )
        )
        return actor, actor


def _reach(address: str) -> bool | None:
    """Return whether an address is this machine's; None: it names no port.

    Ray itself would try an address that nobody answers at for minutes.

    Raises OSError or ValueError: nobody answers there.
    """
    host, colon, port = address.rpartition(":")
    if not colon or "://" in address:
        return None
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        return bool(connection.getsockname()[0] == connection.getpeername()[0])


def _has_token() -> bool:
    """Whether Ray would find a token here, where its documentation says."""
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or Path(path).is_file()


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def _set_niceness(niceness: int) -> int:
    """Set this process' niceness, if it is allowed to; return by how much it is above "
    "`niceness`.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(niceness, _niceness()))
    return max(0, _niceness() - niceness)


class Actor:
    """An actor as this process sees it: a process, and the connection to it."""

    exitcode: int | None = None  # Ray does not tell

    def __init__(self, life: Any) -> None:
        self._life = life

    def send_bytes(self, data: bytes) -> None:
        """Send something pickled. Raises EOFError if the actor has died."""
        self._await_reply(self._life.take.remote(data))

    def recv(self) -> Any:
        """Return the actor's next message. Raises EOFError if it has died."""
        return pickle.loads(self._await_reply(self._life.next.remote()))

    def _await_reply(self, called: Any) -> Any:
        import ray

        try:
            return ray.get(called)
        except ray.exceptions.RayError as error:
            self.exitcode = 1
            raise EOFError(str(error)) from error

    def kill(self) -> None:
        """End the actor, busy or not; later calls do nothing."""
        import ray

        self.exitcode = 1
        with suppress(ray.exceptions.RayError):
            ray.kill(self._life)

    terminate = join = close = kill  # what was to be heard has been

    def __enter__(self) -> "Actor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Life:
    """Runs an actor's function in a thread of its own; Ray's thread calls the methods."""

    def __init__(
        self, life: bytes, threads: int, niceness: int, folder: str, path: list[str]
    ) -> None:
        _set_niceness(niceness)  # Ray's own is 15: a thirtieth of a core beside a busy process
        with suppress(OSError):  # paths may be relative to it
            os.chdir(folder)
        # so that a plug-in's modules are found here, too
        sys.path += [place for place in path if place not in sys.path]
        compute_with(threads)
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._said: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._live, args=(life,), daemon=True).start()

    def _live(self, pickled: bytes) -> None:
        def say(thing: Any) -> None:
            self._said.put(pickle.dumps(thing, protocol=5))

        try:
            life, arguments = pickle.loads(pickled)
            say(life(self._heard, say, *arguments))
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def take(self, data: bytes) -> None:
        """Hear something."""
        self._heard.put(pickle.loads(data))

    def next(self) -> bytes:
        """Wait for the function's next message, and return it."""
        return self._said.get()
