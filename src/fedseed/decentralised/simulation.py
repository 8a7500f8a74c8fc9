"""Simulate many nodes in one process with a simulated clock: delays, losses, partitions, kills. The
nodes are those of a real mesh, byte for byte; only network and time are simulated. The seed
determines everything.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedseed.decentralised.node import Node

Link = tuple[str, str]
START_SECONDS = 0.001


@dataclass(frozen=True)
class Partition:
    """A time during which no message crosses between two sides."""

    begin: float  # seconds
    end: float
    side: frozenset[str]  # the names of one side; all other nodes are on the other

    def cuts(self, sender: str, receiver: str, current_time: float) -> bool:
        """Return whether a message between two nodes is lost at a time."""
        crosses = (sender in self.side) != (receiver in self.side)
        return crosses and self.begin <= current_time < self.end


@dataclass(frozen=True)
class NetworkSettings:
    """Delays and losses of messages, and durations of steps."""

    # least and most seconds, drawn for each message
    delay_seconds: tuple[float, float] = (0.001, 0.05)
    loss: float = 0.0  # the share of messages that are lost
    # links of the graph that are down at any time, drawn anew every `change_seconds`
    down: float = 0.0
    change_seconds: float = 5.0
    step_seconds: tuple[float, float] = (0.05, 0.1)  # least and most seconds, drawn for each step
    partitions: Sequence[Partition] = ()


def random_graph(names: Sequence[str], degree: float, seed: int) -> list[Link]:
    """Return the links of a connected random graph.

    A random tree connects all nodes, and links between random pairs are added.

    Args:
        names: the nodes.
        degree: the mean number of neighbours; at least that of a tree, at most that of all pairs.
        seed: draws the graph.
    """
    source = random.Random(seed)
    order = list(names)
    source.shuffle(order)
    links = {
        tuple(sorted((name, order[source.randrange(place)])))
        for place, name in enumerate(order)
        if place
    }
    pairs = [tuple(sorted(pair)) for pair in itertools.combinations(names, 2)]
    source.shuffle(pairs)
    link_count = min(len(pairs), max(len(links), round(degree * len(names) / 2)))
    for pair in pairs:
        if len(links) >= link_count:
            break
        links.add(pair)
    return sorted((first, second) for first, second in links)


def neighbours_of(name: str, links: Sequence[Link]) -> list[str]:
    """Return the names of a node's neighbours in a graph."""
    linked = [link for link in links if name in link]
    others = [second if first == name else first for first, second in linked]
    return sorted(others)


@dataclass(order=True)
class Event:
    """Something that happens at a time."""

    time: float
    order: int
    act: Callable[[], None] = field(compare=False)


class MeshSimulation:
    """Runs nodes with simulated time.

    Args:
        make_node: makes a node at a time; called again when a node that was stopped comes back, by
            name and time.
        links: the graph.
        settings: delays and losses of messages.
        seed: draws delays, losses and links.
    """

    def __init__(
        self,
        make_node: Callable[[str, Sequence[str], float], Node],
        links: Sequence[Link],
        settings: NetworkSettings,
        seed: int,
    ) -> None:
        self.links = list(links)
        self.settings = settings
        self.now = 0.0
        self.nodes: dict[str, Node] = {}  # the running nodes
        self.over: dict[str, float] = {}  # the time at which each node had nothing left to do
        self.lost_messages = 0
        self._make_node = make_node
        self._random = random.Random(seed)
        self._events: list[Event] = []
        self._order = itertools.count()
        self._busy: set[str] = set()
        self._lives: dict[str, int] = {}  # number of starts of each node
        self._down: set[Link] = set()
        self._links_drawn_for = -1

    @property
    def names(self) -> list[str]:
        """Return the names of all nodes of the graph."""
        return sorted({name for link in self.links for name in link})

    def schedule(self, time: float, act: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._events, Event(time, next(self._order), act))

    def start(self, name: str, time: float = 0.0) -> None:
        """Start a node at a time; one that was stopped comes back with what it has on disk."""

        def act() -> None:
            node = self._make_node(name, neighbours_of(name, self.links), self.now)
            self.nodes[name] = node
            life = self._lives[name] = self._lives.get(name, 0) + 1
            self._tick(name, life)

        self.schedule(time, act)

    def stop(self, name: str, time: float) -> None:
        """Stop a node at a time without warning, like kill -9."""

        def act() -> None:
            node = self.nodes.pop(name, None)
            self._busy.discard(name)
            self.over.pop(name, None)
            if node is not None:
                node.history.close()

        self.schedule(time, act)

    def run(self, seconds: float) -> bool:
        """Run until all nodes have nothing left to do, or the time is over.

        Returns:
            Whether all nodes have nothing left to do.
        """
        while self._events:
            event = heapq.heappop(self._events)
            if event.time > seconds:
                self.schedule(event.time, event.act)
                return False
            self.now = event.time
            event.act()
            if self._is_over():
                return True
        return False

    def digests(self) -> dict[str, str]:
        """Return the digest of each running node's weights, after all that it has heard."""
        digests = {}
        for name, node in self.nodes.items():
            work = node.plan_last_move()
            node.model.move_to(work.round - 1, work.changed, work.updates)
            digests[name] = node.model.digest()
        return digests

    def _is_over(self) -> bool:
        pending_starts = set(self.names) - set(self._lives)
        return not pending_starts and len(self.over) == len(self.nodes) > 0

    def _tick(self, name: str, life: int) -> None:
        node = self.nodes.get(name)
        if node is None or self._lives[name] != life:
            return
        node.tick(self.now)
        self._go_on(name)
        beat = node.pace.settings.beat_seconds
        self.schedule(self.now + beat, lambda: self._tick(name, life))

    def _go_on(self, name: str) -> None:
        """Send a node's messages, and let it begin its next step."""
        node = self.nodes[name]
        outgoing, node.outbox = node.outbox, []
        for message in outgoing:
            for receiver in message.receivers:
                self._carry(name, receiver, message.data)
        if node.is_over(self.now):
            self.over.setdefault(name, self.now)
        else:
            self.over.pop(name, None)
        if name in self._busy:
            return
        work = node.plan_work(self.now)
        if work is None:
            return
        self._busy.add(name)
        payload, life = work.compute(node.model), self._lives[name]

        def finish() -> None:
            if self._lives[name] == life and name in self.nodes:
                self._busy.discard(name)
                node.finish_work(work, payload, self.now)
                self._go_on(name)

        self.schedule(self.now + self._random.uniform(*self.settings.step_seconds), finish)

    def _carry(self, sender: str, receiver: str, data: bytes) -> None:
        if self._is_lost(sender, receiver):
            self.lost_messages += 1
            return

        def arrive() -> None:
            node = self.nodes.get(receiver)
            if node is not None:
                node.receive(sender, data, self.now)
                self._go_on(receiver)

        self.schedule(self.now + self._random.uniform(*self.settings.delay_seconds), arrive)

    def _is_lost(self, sender: str, receiver: str) -> bool:
        settings = self.settings
        if any(cut.cuts(sender, receiver, self.now) for cut in settings.partitions):
            return True
        if self._is_down(sender, receiver):
            return True
        return self._random.random() < settings.loss

    def _is_down(self, sender: str, receiver: str) -> bool:
        if not self.settings.down:
            return False
        period = int(self.now // self.settings.change_seconds)
        if period != self._links_drawn_for:
            self._links_drawn_for = period
            count = round(self.settings.down * len(self.links))
            self._down = set(self._random.sample(self.links, count))
        return (min(sender, receiver), max(sender, receiver)) in self._down
