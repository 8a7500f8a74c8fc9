"""A client's process on a network. It may speak for many clients, and keeps the model in memory.

It handles entries of the log first, then plans, then questions. A separate thread does the work, so
that the process can still send beats.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedseed.errors import MessageError, NetworkError, OrbitError
from fedseed.federation.client.accounts import accounts_in_memory
from fedseed.federation.client.answers import Responder
from fedseed.federation.client.heartbeat import Presence
from fedseed.federation.client.replica import Replica
from fedseed.federation.client.state import Hosted, WorkThread
from fedseed.federation.control import Beat
from fedseed.federation.cost import Cost
from fedseed.federation.large import fetch
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.protocol import LogContents
from fedseed.orbit import NO_DIGEST, Record
from fedseed.orbit.file import begin, write_orbit
from fedseed.orbit.record import ending, link, pack_records
from fedseed.reports.progress import Progress
from fedseed.transport.base import End, Events, Transport


class NetworkClient:
    """A process that takes part in a run for the clients it hosts.

    Args:
        transport: the transport of the run.
        run: the run's name.
        load: loads the base model with the hosted clients' data; called again if the weights have
            to be replayed.
        rounds: the run's number of rounds, to show progress.
        progress: shows progress.
        orbit: a new file for the run's orbit, written when the run is over; only for a method that
            has one.
    """

    def __init__(
        self,
        transport: Transport,
        run: str,
        load: Callable[[], Hosted],
        rounds: int,
        progress: Progress | None = None,
        orbit: Path | None = None,
    ) -> None:
        self.transport = transport
        self.run_name = run
        self.rounds = rounds
        self.progress = progress or Progress()
        self.hosted = load()
        if not self.hosted.accounts:
            names = list(self.hosted.items)
            self.hosted.accounts = accounts_in_memory(self.hosted.worker.method, names, rounds)
        for note in self.hosted.notes:
            self.progress.note(note)
        if self.hosted.worker.method.remembers:
            self.progress.note(
                f"{self.hosted.worker.method.name}: this process remembers what its clients have "
                "not sent yet. If it is restarted, that part is lost"
            )
        self.replica: Replica | None = None  # once connected
        self.evaluations: list[dict[str, Any]] = []  # this process's measurements, by round
        # costs of the local training of this process's clients, over all rounds
        self.training = Cost()
        self._orbit = orbit
        self._load = load
        self._thread = WorkThread()
        self._wake = asyncio.Event()
        self._failure: Exception | None = None

    @property
    def last_step(self) -> int:
        """The last step that was applied."""
        return 0 if self.replica is None else self.replica.at

    def run(self) -> str:
        """Take part until the run is over; return the weights' digest.

        Raises FedseedError if it can't take part, or if the run fails.
        """
        try:
            return asyncio.run(self._run())
        finally:
            self._thread.end()

    async def _run(self) -> str:
        host = self.hosted.host

        def refused(text: str) -> None:
            self._fail(
                NetworkError(f"the server refuses {host}: {text}: its key is not allowed to")
            )

        events = Events(refused, lambda: presence.say_hello_again(), self.progress.warn, self._fail)
        end = await self.transport.client(host, events)
        if end.unproven is not None:
            self.progress.note(end.unproven)
        replica = self.replica = Replica(
            end, self.run_name, self._load, self.hosted, self._thread, self.progress, self._wake.set
        )
        presence = Presence(replica, self._fail)
        responder = Responder(replica, presence)
        self.evaluations, self.training = responder.evaluations, responder.training

        def take(data: bytes) -> None:
            responder.hear(data)
            self._wake.set()

        try:
            await end.listen(take)
            presence.begin()
            with self.progress.running(self.hosted.worker.method.name, self.rounds):
                await self._work(replica, responder)
            await presence.say(Beat, done=True)
            if self._orbit is not None and not self.hosted.worker.method.catch_up.replaces:
                await _write_log(end, self.run_name, self._orbit)
        finally:
            await presence.stop()
            await replica.stop()
            await end.close()
        return await replica.digest()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._wake.set()

    async def _work(self, replica: Replica, responder: Responder) -> None:
        while True:
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            if replica.ended and replica.current and not replica.waits:
                return
            if not await responder.work():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), None if replica.current else 1.0)
                await replica.advance()


async def _write_log(end: End, run: str, path: Path) -> None:
    """Write the orbit of a finished run from its log, byte for byte like the coordinator's file."""
    if path.exists():
        raise OrbitError(f"{path}: the file exists already")
    records: list[Record] = []
    try:
        log = LogContents.from_entries(await end.entries())
        if not log.ended:
            raise MessageError("it has no end")
        previous_link = log.link
        for number, (step_link, carried) in enumerate(log.steps, start=1):
            message = await fetch(end, carried, None)
            if link(previous_link, message) != step_link:
                raise OrbitError(f"{path}: a step of the log does not follow the previous one")
            previous_link = step_link
            records.append(Record(number, message[FRAME_BYTES:], log.marks.get(number, NO_DIGEST)))
    except (IndexError, MessageError) as error:
        raise NetworkError(
            f"the log of run {run} can't be read again for its orbit: {error}"
        ) from error
    write_orbit(path, begin(log.header), ending(pack_records(log.header.method, records)))
