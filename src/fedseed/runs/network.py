"""The coordinator's side of a run over a transport, for `fedseed serve`.

This module needs no torch, model or data.

`NetworkCoordinator` talks with the clients; this module adds the run's files and the order of the
work.
"""

import asyncio
import concurrent.futures
import json
import time
from collections.abc import Coroutine
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fedseed.attacks.updates import SIMULATED
from fedseed.durable import write_whole
from fedseed.errors import NetworkError, RecipeError
from fedseed.federation.coordinator.network import NetworkCoordinator
from fedseed.federation.coordinator.rounds import Gathered
from fedseed.federation.coordinator.session import CoordinatorSettings
from fedseed.federation.coordinator.step_log import StepLogContents
from fedseed.federation.cost import Cost
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.orbit import NO_DIGEST
from fedseed.recipe.settings import Recipe
from fedseed.reports.machine import resident_memory
from fedseed.reports.pictures import draw_apart
from fedseed.reports.progress import Progress
from fedseed.reports.prometheus import Exporter
from fedseed.reports.results import RoundLine
from fedseed.runs import stopping
from fedseed.runs.costs import RunResult
from fedseed.runs.folder import RunFolder
from fedseed.runs.loop import Run
from fedseed.runs.parties import ROSTER_FILE, names_beforehand, read_names
from fedseed.runs.spec import RunSpec
from fedseed.runs.store import Restored
from fedseed.transport.base import Events, LogLostError, LogUnusableError, Transport

T = TypeVar("T")
MOST_TOLD = 50  # how many refusals by the server are reported
# subfolder of the run's folder, for the proofs against clients barred from secure sums
PROOFS = "proofs"
# seconds between syncs of steps to the disk; longer, because the server's log already has them
SYNC_SECONDS = 1.0
# seconds that another thread waits for the coordinator's status
STATUS_SECONDS = 0.5


def coordinate(
    recipe: Recipe,
    run: str,
    transport: Transport,
    folder: Path,
    fresh: bool = False,
    progress: Progress | None = None,
    exporter: Exporter | None = None,
) -> RunResult:
    """Coordinate a run from its beginning or its interruption to its end.

    Args:
        recipe: the recipe.
        run: the run's name on the transport.
        transport: the connection to the clients.
        folder: folder for the run's files. An unfinished run of this recipe in it is resumed.
        fresh: delete a run of this name from the server first.
        progress: shows progress.
        exporter: serves the run's figures to Prometheus.

    Raises:
        NetworkError: the server can't be reached, or another coordinator has this run.
        FedseedError: the server or the folder holds another run.
    """
    for tracker in recipe.tracking:
        tracker.check()
    with closing(NetworkRun(recipe, run, transport, folder, fresh, progress, exporter)) as going:
        return going.run(resume=True)


class NetworkRun(Run):
    """A run over a transport.

    Making it waits until the clients that the recipe asks for have joined. The arguments are those
    of `coordinate`.

    Always close it, because it holds the connection.
    """

    waits = True

    def __init__(
        self,
        recipe: Recipe,
        run: str,
        transport: Transport,
        folder: Path,
        fresh: bool = False,
        progress: Progress | None = None,
        exporter: Exporter | None = None,
    ) -> None:
        super().__init__(progress or Progress())
        self._exporter = exporter
        if recipe.tune_rate:
            raise RecipeError(
                'learning_rate = "auto" works in a simulation only: find a rate with fedseed '
                "tune-rate and set it here"
            )
        if recipe.attack is not None and recipe.attack.kind in SIMULATED:
            raise RecipeError(
                f'attack.kind = "{recipe.attack.kind}": these attackers need to know the other '
                "clients' updates and what the coordinator accepts, so the attack works in a "
                "simulation only (fedseed run)"
            )
        self.spec = RunSpec.from_recipe(recipe, folder)
        self._refusals = 0  # how often the server refused something
        self._synced = 0.0
        self._talk: NetworkCoordinator | None = None
        # lock the folder before the first message to the server: a wrong folder must not end
        # another coordinator
        self.folder = RunFolder(
            folder, self.spec.recipe_text, True, self.spec.chat_template, claim=True
        )
        self._loop = asyncio.new_event_loop()
        if self.folder.finished:
            return
        if exporter is not None:
            # before any client connects, so that the metrics also show a run without clients
            exporter.attach(self._status)
        try:
            self._wait(self._start(recipe, run, transport, folder, fresh))
        except BaseException:
            self.close()
            raise

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the event loop until this is done, and return its result.

        Raises NetworkError, also if the server has lost the run or its log is unusable.
        """
        try:
            return self._loop.run_until_complete(work)
        except (LogLostError, LogUnusableError) as error:
            remedy = "it restores the log from the orbit"
            if self.spec.method.catch_up.replaces:
                remedy = "only the log had the weights, so it makes all rounds again"
            options = "with the same --out"
            if isinstance(error, LogUnusableError):
                options = "with --fresh and the same --out"
            raise NetworkError(
                f"{error}: start `fedseed serve` again {options}: {remedy}"
            ) from error

    async def _start(
        self, recipe: Recipe, run: str, transport: Transport, folder: Path, fresh: bool
    ) -> None:
        # steps published by an earlier coordinator of this run
        settings, roster_file = recipe.federation, folder / ROSTER_FILE
        has_roster = roster_file.is_file() and settings.enrolment == "open" and not fresh
        names = read_names(roster_file) if has_roster else names_beforehand(recipe)
        dealings = CoordinatorSettings(
            settings.deadline,
            settings.minimum,
            settings.start_with,
            settings.dead_after,
            settings.base_digest,
            settings.replicas,
            recipe.model.digest,
            tuple(names or ()),
            settings.enrolment == "open" and not has_roster,
            recipe.of_parties and not recipe.task.shares_evaluation,
            () if self.spec.patience is None else (stopping.VALIDATION_LOSS,),
            settings.check,
            weights_digest=settings.weights_digest,
            secure=recipe.secure_sums,
            patience=settings.patience,
            proofs=folder / PROOFS,
        )
        end = await transport.coordinator(
            Events(refused=self._refused, noted=self.progress.warn, failed=self._failed)
        )
        if end.unproven is not None:
            self.progress.note(end.unproven)
        self._talk = NetworkCoordinator(
            end, run, recipe.method, recipe.seed, recipe.rounds, dealings, self.progress
        )
        self.header = await self._talk.start(fresh, (folder / "model.orbit").exists())
        self.names = self._talk.roster.names
        if settings.enrolment == "open" and not has_roster:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(roster_file, (json.dumps(list(self.names), indent=1) + "\n").encode())
        self.coordinator = await self._talk.open(
            settings.count(len(self.names)), recipe.aggregation, recipe.bounds
        )
        if recipe.attack is not None:
            count = len(self.names)
            self.spec = replace(self.spec, attackers=range(count - recipe.attack.clients, count))

    def _failed(self, error: NetworkError) -> None:
        """End the conversation, because the transport has failed."""
        if self._talk is not None:
            self._talk.session.fail(error)

    def _refused(self, text: str) -> None:
        """Warn that the server refused something, and count it."""
        self._refusals += 1
        if self._refusals <= MOST_TOLD:
            self.progress.warn(f"the server refuses this coordinator: {text}")

    @property
    def talk(self) -> NetworkCoordinator:
        """Return the conversation with the clients."""
        assert self._talk is not None
        return self._talk

    def logged(self) -> StepLogContents:
        """Return the content of the log.

        After a crash, either of orbit file and log may lack steps that the other has.
        """
        assert self.folder is not None
        self.folder.lazy = self.spec.method.stepwise
        steps = len(self.talk.log.steps)
        if steps and self.talk.rounds is not None:
            self.talk.rounds.grace = (
                self.talk.session.clock() + self.talk.session.settings.dead_after
            )
        return self._wait(self.talk.log.take_up(self.talk.run, self.spec.logs(steps)))

    def catch_up(self, restored: Restored) -> None:
        self._wait(self.talk.take_over())
        first = restored.round - len(restored.unlogged) + 1
        for number, payload in enumerate(restored.unlogged, start=first):
            step = Message(
                MessageKind.STEP, self.spec.method.code, number, EVERYBODY, payload
            ).encode()
            self._wait(self.talk.log.publish(number, step))

    def gather(self, number: int) -> Gathered:
        assert self.talk.rounds is not None
        return self._wait(self.talk.rounds.gather(number))

    def publish(self, step: Message, line: RoundLine) -> None:
        self._wait(self.talk.log.publish(line.round, step.encode()))

    def recorded(self, line: RoundLine, log: bool) -> None:
        self.talk.tell(line)
        if self._exporter is not None:
            self._exporter.count(line)
        if not log and time.monotonic() > self._synced + SYNC_SECONDS:
            self._sync()

    def examine(self, line: RoundLine, evaluate: bool) -> None:
        digest = self._wait(self.talk.inquiry.ask(line, evaluate, self.spec.digests(line.round)))
        if self.spec.private and line.round:
            # the status shows only the clients' work, not other figures of a private run
            Cost().tell(line)
        self.talk.tell(line)
        if evaluate:
            self.talk.line["evaluated"] = line.round
        if digest is not None:
            self._wait(self.talk.log.mark(line.round, digest))
        if self.store is not None:
            self.store.confirm(digest or NO_DIGEST)
        self._sync()

    def _sync(self) -> None:
        """Write pending data to the disk. A step-by-step method does this only now and then."""
        if self.folder is not None and self.store is not None:
            self.folder.sync()
            self.store.sync()
            self._synced = time.monotonic()

    def finish(self) -> None:
        self._wait(self.talk.log.finish())

    def draw(self, folder: RunFolder, summary: dict[str, Any]) -> None:
        """Draw in a separate process: this one stays small and goes on answering messages."""
        self._wait(asyncio.to_thread(draw_apart, folder.path, summary))

    def describe_process(self) -> dict[str, Any]:
        return {"peak_memory_bytes": resident_memory(peak=True), **self.talk.figures()}

    def _status(self) -> dict[str, Any] | None:
        """Return the coordinator's status; called from another thread.

        None if the coordinator is busy or has ended.
        """
        talk, answer = self._talk, concurrent.futures.Future[dict[str, Any]]()
        if talk is None:
            return None

        def tell() -> None:
            if answer.set_running_or_notify_cancel():
                answer.set_result(talk.status())

        try:
            self._loop.call_soon_threadsafe(tell)
            return answer.result(STATUS_SECONDS)
        except (TimeoutError, RuntimeError):  # the loop is busy or closed
            answer.cancel()
            return None

    def close(self) -> None:
        """Close the connection; later calls do nothing."""
        if self._loop.is_closed():
            return
        if self.folder is not None:
            self.folder.release()
        if self._talk is not None:
            with suppress(NetworkError):
                self._wait(self._talk.close())
        unfinished = asyncio.all_tasks(self._loop)
        for task in unfinished:
            task.cancel()
        if unfinished:
            self._wait(asyncio.wait(unfinished, timeout=1))
        self._loop.close()
