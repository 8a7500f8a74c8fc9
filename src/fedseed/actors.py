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
from math import ceil
from pathlib import Path
from typing import Any

from fedseed.errors import FedseedError, RecipeError, to_install
from fedseed.processes import compute_with

LIVES = 3  # of what is done by an actor, after which it is to blame


class Cluster:
    """A Ray cluster, which this process joins.

    Args:
        address: of its head, such as "10.0.0.7:6379"; "auto": the one that this machine belongs to.
        count: how many actors there will be at a time.
        threads: of each; None: an even share of the cluster's processors.

    Raises:
        RecipeError: there is no such cluster, or it has too few processors.
        FedseedError: Ray is not installed.
    """

    def __init__(self, address: str, count: int, threads: int | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise FedseedError(f"--ray needs Ray: {to_install('ray')}") from error
        try:
            host, colon, port = address.rpartition(":")
            if colon and "://" not in address:  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(
                address, ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR
            )
        except (OSError, ValueError) as error:
            raise RecipeError(
                f"--ray {address}: no cluster answers there; `ray start --head` on one machine "
                "begins one, `ray start --address=HEAD:6379` on others joins it"
            ) from error
        there = ray.cluster_resources()  # type: ignore[no-untyped-call]
        processors, gpus = int(there.get("CPU", 0)), int(there.get("GPU", 0))
        self.threads = threads or max(1, processors // count)
        if count * self.threads > processors:
            raise RecipeError(
                f"--ray {address}: {count} processes of {self.threads} threads, and the cluster "
                f"has {processors} "
                "processors: take fewer --workers, --jobs or --threads, or join more machines"
            )
        self._actor = ray.remote(_Life).options(
            num_cpus=self.threads,
            num_gpus=1 / ceil(count / gpus) if gpus else 0,
            max_concurrency=2,  # one call waits for the next word
        )

    def start(
        self, life: Callable[..., Any], *more: Any, threads: int | None = None
    ) -> tuple["Actor", "Actor"]:
        """Starts an actor where there is room, as `processes.start` starts a process.

        It is its own connection.
        """
        here = str(Path.cwd()), sys.path
        actor = Actor(
            self._actor.remote(pickle.dumps((life, more)), threads or self.threads, *here)
        )
        return actor, actor


class Actor:
    """An actor as this process sees it: a process, and the connection to it."""

    exitcode: int | None = None  # Ray does not tell

    def __init__(self, life: Any) -> None:
        self._life = life

    def send_bytes(self, data: bytes) -> None:
        """Sends something pickled. Raises EOFError if the actor has died."""
        self._asked(self._life.take.remote(data))

    def recv(self) -> Any:
        """Returns what the actor says next. Raises EOFError if it has died."""
        return pickle.loads(self._asked(self._life.next.remote()))

    def _asked(self, called: Any) -> Any:
        import ray

        try:
            return ray.get(called)
        except ray.exceptions.RayError as error:
            self.exitcode = 1
            raise EOFError(str(error)) from error

    def kill(self) -> None:
        """Ends the actor, whatever it does; again is fine."""
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
    """A life in an actor's process, in a thread of its own: the calls come from Ray's."""

    def __init__(self, life: bytes, threads: int, folder: str, path: list[str]) -> None:
        with suppress(OSError):  # paths may be relative to it
            os.chdir(folder)
        # a plug-in's modules are found as elsewhere
        sys.path += [place for place in path if place not in sys.path]
        compute_with(threads)
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._said: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._live, args=(life,), daemon=True).start()

    def _live(self, pickled: bytes) -> None:
        def say(thing: Any) -> None:
            self._said.put(pickle.dumps(thing, protocol=5))

        try:
            life, more = pickle.loads(pickled)
            say(life(self._heard, say, *more))
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def take(self, data: bytes) -> None:
        """Hears something."""
        self._heard.put(pickle.loads(data))

    def next(self) -> bytes:
        """Returns what the life says next, once it does."""
        return self._said.get()
