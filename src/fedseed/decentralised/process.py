"""A node as a process: it hears its neighbours over a transport, and works in a thread."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedseed.decentralised.node import Node
from fedseed.errors import FedseedError, NetworkError
from fedseed.federation.client.state import WorkThread
from fedseed.reports.progress import Progress
from fedseed.reports.results import RoundLine
from fedseed.text import listed
from fedseed.transport.base import Events
from fedseed.transport.mesh import MeshTransport

# seconds without a step after which a line names the nodes that it waits for
QUIET_SECONDS = 10.0
SHOWN = 6  # most names in a line


@dataclass(frozen=True)
class MeshResult:
    """The result of a node."""

    digest: str  # digest of its weights
    round: int  # the last round with a known step
    figures: dict[str, Any]  # the recipe's metrics at these weights
    by_node: list[dict[str, Any]]  # a description of each node's log


class MeshProcess:
    """Runs a node on a transport until the run is over.

    Args:
        node: the node.
        transport: reaches its neighbours.
        progress: shows the run's progress.
        evaluate_every: steps of this node between evaluations; there is one at the end, too.
        leave: whether to end this node's log in place of making steps.
    """

    def __init__(
        self,
        node: Node,
        transport: MeshTransport,
        progress: Progress | None = None,
        evaluate_every: int | None = None,
        leave: bool = False,
    ) -> None:
        self.node = node
        self.transport = transport
        self.progress = progress or Progress()
        self._evaluate_every = evaluate_every
        self._leaves = leave
        self._thread = WorkThread()
        self._wake = asyncio.Event()
        self._failure: Exception | None = None
        self._said: set[str] = set()
        self._last_step = time.monotonic()

    def run(self) -> MeshResult:
        """Take part until the run is over.

        Raises FedseedError: the network fails, a file can't be written, or another process has made
        steps under this node's name.
        """
        try:
            return asyncio.run(self.work())
        finally:
            self._thread.end()

    async def work(self) -> MeshResult:
        """Do the same in an event loop that runs already."""
        node = self.node
        events = Events(
            refused=lambda text: self._fail(
                NetworkError(
                    f"the server refuses {node.name}: {text}: its key has no right to do this"
                )
            ),
            noted=self.progress.warn,
            failed=self._fail,
        )
        end = await self.transport.node(node.name, node.neighbours, events)
        if end.unproven is not None:
            self.progress.note(end.unproven)

        async def send() -> None:
            outgoing, node.outbox = node.outbox, []
            for message in outgoing:
                await end.send(message.data, message.receivers)

        def take(sender: str, data: bytes) -> None:
            try:
                node.receive(sender, data, time.monotonic())
            except FedseedError as error:
                self._fail(error)
            self._wake.set()

        ticking = None
        try:
            await end.listen(take)
            ticking = asyncio.create_task(self._tick(send))
            with self.progress.running(node.model.header.method.name, node.history.rounds):
                await self._make_steps(send)
            node.say_farewell()
            await send()
            return await self._result()
        finally:
            if ticking is not None:
                ticking.cancel()
            await end.close()
            node.history.close()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._wake.set()

    async def _tick(self, send: Callable[[], Any]) -> None:
        while True:
            current_time = time.monotonic()
            self.node.tick(current_time)
            self._tell_news(current_time)
            try:
                await send()
            except NetworkError as error:
                self._fail(error)
                return
            self._wake.set()
            await asyncio.sleep(self.node.pace.settings.beat_seconds)

    async def _make_steps(self, send: Callable[[], Any]) -> None:
        node = self.node
        if self._leaves:
            node.leave(time.monotonic())
        while True:
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            current_time = time.monotonic()
            work = None if self._leaves else node.plan_work(current_time)
            if work is not None:
                payload = await self._thread.run(work.compute, node.model)
                if self._failure is not None:
                    raise self._failure
                node.finish_work(work, payload, time.monotonic())
                await send()
                await self._show_step(work.round)
                continue
            await send()
            if self._leaves and self._all_know_the_end():
                return
            if node.is_over(current_time):
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), node.pace.settings.beat_seconds)

    def _all_know_the_end(self) -> bool:
        """Return whether all present neighbours have all entries, so that a node may end."""
        return self.node.is_settled(time.monotonic())

    async def _show_step(self, number: int) -> None:
        self._last_step = time.monotonic()
        every = self._evaluate_every
        if every is not None and number % every == 0 and number < self.node.history.rounds:
            model = self.node.model
            figures = await self._thread.run(model.evaluate)
            # digest of the weights at which the step was made
            self.progress.round(self._line(model.round, figures))
        else:
            self.progress.advance(number)

    @staticmethod
    def _line(number: int, figures: dict[str, Any]) -> RoundLine:
        plain = {name: value for name, value in figures.items() if isinstance(value, float)}
        return RoundLine(number, metrics=plain)

    def _tell_news(self, current_time: float) -> None:
        """Show refusals, forks and the nodes that this one waits for, each once."""
        node = self.node
        for text in node.fork_notes:
            self._warn_once(text)
        for neighbour, reasons in node.refusals.items():
            for reason in reasons:
                self._warn_once(f"refused from {neighbour}: {reason}")
        quiet = current_time - self._last_step
        if quiet < QUIET_SECONDS:
            return
        own_round = node.history.logs[node.number].last_round
        names = [
            node.history.names[number] for number in node.pace.missing(own_round, current_time)
        ]
        if names and own_round < node.history.rounds:
            self._warn_once(f"step {own_round + 1} waits for {listed(names, SHOWN)}")

    def _warn_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.progress.warn(text)

    async def _result(self) -> MeshResult:
        node, model = self.node, self.node.model
        work = node.plan_last_move()
        last = work.round - 1
        await self._thread.run(model.move_to, last, work.changed, work.updates)
        figures = await self._thread.run(model.evaluate)
        digest = await self._thread.run(model.digest)
        if last:
            self.progress.round(self._line(last, figures))
        return MeshResult(digest, last, figures, describe_nodes(node))


def describe_nodes(node: Node) -> list[dict[str, Any]]:
    """Return a description of each node's log: number of steps, last step, and faults."""
    history = node.history
    lines = []
    for number, (name, log) in enumerate(zip(history.names, history.logs, strict=True)):
        state = "complete" if log.last_round >= history.rounds else "away"
        if number in history.forks:
            state = f"two different entries of number {history.forks[number][0].number}"
        elif log.has_left:
            state = "has left"
        lines.append(
            {
                "node": name,
                "entries": len(log.entries),
                "last_step": log.last_round,
                "state": state,
            }
        )
    return lines
